"""Train drafts of SmolLM2-135M-Instruct, a real chat model: what the figures of docs and benchmarks speak of.

``make smollm`` runs it; by hand, once ``smollm2_target.py`` has made the target::

    python recipes/train_smollm2_drafts.py build/smollm2/target build/smollm2/drafts --only plain

The two shifted drafts of the tiny pair, which tests read, are made by the same loop (one line)::

    python recipes/train_smollm2_drafts.py tests/data/target tests/data/shifted --only ahead behind
        --taps 1 3 5 --vocabulary 512 --steps 400 --documents 512

One layer, 4096 of the target's 49152 tokens, trained in a light loop over the package's own reference network: its
cross-entropy to the target's distribution at depths 0 to 2, the text fed to each. They learn from Python sources and
from what the target makes of them, and so are fair at that, weak at everything else. Some are trained on purpose as
no engine feeds them: a diagnosis has to find that.
"""

import argparse
import hashlib
import json
import time
from collections import Counter
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor
from training_texts import PROMPT_LENGTH, draw_windows, generate, read_sources, tokenize
from transformers import (
    AutoTokenizer,
    LlamaConfig,
    LlamaForCausalLM,
    get_cosine_schedule_with_warmup,
)

from eagle3_interop.schemas.dialects.base import Wishes
from eagle3_interop.schemas.draft import Draft, Fc, Gqa, Layers, Mlp, Rope, Target, Vocabulary
from eagle3_interop.schemas.registry import DESTINATIONS
from eagle3_interop.validators.network.reference import Network
from eagle3_interop.validators.network.weights import Tables, Weights

LENGTH = 160
LEARNING_RATE, BATCH, DEPTHS = 1e-3, 4, 3
NUM_PROMPTS = 64


@dataclass(frozen=True)
class Recipe:
    """What sets one draft apart from the others.

    Attributes:
        steps: of the optimiser.
        taps: as `Draft.taps` counts them.
        residual: what layer 0 adds attention to.
        shift: positions by which the features run ahead of what every engine pairs with a token.
        seed: of the weights and of the order of the documents.
    """

    steps: int = 120
    taps: tuple[int, ...] = (2, 14, 27)
    residual: str = "raw"
    shift: int = 0
    seed: int = 0


DRAFTS = {
    "plain": Recipe(steps=360),
    "weak": Recipe(seed=1),
    "ahead": Recipe(shift=1),
    "normed": Recipe(residual="normed", seed=2),
    "early": Recipe(taps=(1, 6, 12), seed=3),
    "behind": Recipe(shift=-1),
}


@dataclass(frozen=True)
class Pool:
    """Documents, and what the target computes over them.

    Attributes:
        tokens: [N, T].
        streams: by tap, [N, T, H] in bfloat16.
        last: the target's output after its final norm, [N, T, H].
    """

    tokens: Tensor
    streams: dict[int, Tensor]
    last: Tensor


def make_documents(target: LlamaForCausalLM, training: Tensor, count: int, seed: int) -> Tensor:
    """Half of them windows of the sources, half the target's continuations of such windows."""
    generator = torch.Generator().manual_seed(seed)
    written = draw_windows(training, count // 2, LENGTH, generator)
    prompts = draw_windows(training, count // 2, PROMPT_LENGTH, generator)
    parts = [generate(target, some, LENGTH - PROMPT_LENGTH) for some in prompts.split(128)]
    return torch.cat([written, *parts])


@torch.no_grad()
def record(target: LlamaForCausalLM, tokens: Tensor, taps: set[int]) -> Pool:
    """Run the target once over all documents, for all drafts."""
    shape = (*tokens.shape, target.config.hidden_size)
    streams = {tap: torch.empty(shape, dtype=torch.bfloat16) for tap in taps}
    last = torch.empty(shape, dtype=torch.bfloat16)
    for rows in torch.arange(len(tokens)).split(16):
        out = target.model(tokens[rows], output_hidden_states=True, use_cache=False)
        last[rows] = out.last_hidden_state
        for tap in taps:
            streams[tap][rows] = out.hidden_states[tap]
    return Pool(tokens, streams, last)


def describe(recipe: Recipe, config: LlamaConfig, vocabulary: int) -> Draft:
    """The network: one of the target's own layers, with a vocabulary of its own."""
    width = config.hidden_size
    attention = Gqa(
        heads=config.num_attention_heads,
        kv_heads=config.num_key_value_heads,
        head_dim=config.head_dim,
    )
    return Draft(
        hidden_size=width,
        target=Target(hidden_size=width, layers=config.num_hidden_layers),
        taps=recipe.taps,
        fc=Fc(blocks=len(recipe.taps)),
        layers=Layers(
            count=1,
            attention=attention,
            mlp=Mlp(width=config.intermediate_size),
            norm_eps=config.rms_norm_eps,
            windows=(None,),
        ),
        rope=Rope(theta=config.rope_parameters["rope_theta"]),
        residual=recipe.residual,
        vocabulary=Vocabulary(
            target_size=config.vocab_size,
            draft_size=vocabulary,
            mapped=True,
            head="own",
            embeddings="target",
        ),
    )


def begin(draft: Draft, target: LlamaForCausalLM, pool: Pool, ids: Tensor) -> dict[str, Tensor]:
    """Untrained weights: fc's blocks scaled to what they read, the head's rows the target's."""
    width, heads = draft.hidden_size, draft.layers.gqa
    sizes = {
        "q": heads.heads * heads.head_dim,
        "k": heads.kv_heads * heads.head_dim,
        "v": heads.kv_heads * heads.head_dim,
    }
    layer, mlp = "layers.0", draft.layers.mlp.width
    weights = {
        f"{layer}.self_attn.{part}_proj.weight": torch.randn(size, 2 * width) * 0.02
        for part, size in sizes.items()
    }
    weights |= {
        f"{layer}.self_attn.o_proj.weight": torch.randn(width, sizes["q"]) * 0.02,
        f"{layer}.mlp.gate_proj.weight": torch.randn(mlp, width) * 0.04,
        f"{layer}.mlp.up_proj.weight": torch.randn(mlp, width) * 0.04,
        f"{layer}.mlp.down_proj.weight": torch.randn(width, mlp) * 0.02,
    }
    norms = ("hidden_norm", "input_layernorm", "post_attention_layernorm")
    weights |= {f"{layer}.{norm}.weight": torch.ones(width) for norm in norms}
    weights["norm.weight"] = target.model.norm.weight.detach().float().clone()
    weights["lm_head.weight"] = target.lm_head.weight.detach()[ids].float().clone()
    blocks = []
    for tap in draft.taps:
        size = pool.streams[tap][:8].float().square().mean().sqrt()
        blocks.append(torch.randn(width, width) / (size * (len(draft.taps) * width) ** 0.5))
    weights["fc.weight"] = torch.cat(blocks, dim=1)
    return weights


def loss_of(network: Network, pool: Pool, rows: Tensor, recipe: Recipe, ids: Tensor) -> Tensor:
    """Cross-entropy of every depth from every start, against the target's distribution over the draft's tokens."""
    tokens, last = pool.tokens[rows], pool.last[rows]
    count = tokens.shape[1] - 1 - DEPTHS
    with torch.no_grad():
        head = network.weights.tables_head[ids]
        wanted = (last[:, 1:].to(head.dtype) @ head.T).float().softmax(dim=-1)
    places = (torch.arange(count) + recipe.shift).clamp(min=0)
    taps = [pool.streams[tap][rows][:, places] for tap in recipe.taps]
    hidden = torch.nn.functional.linear(torch.cat(taps, dim=-1), network.weights["fc.weight"])
    out, cache = network.begin(tokens[:, 1 : count + 1], hidden)
    losses = []
    for depth in range(DEPTHS):
        if depth:
            out = network.step(tokens[:, 1 + depth : count + 1 + depth], out.feedback, cache)
        logits = network.logits(out.normed).float()
        share = wanted[:, depth : count + depth]
        losses.append((logits.logsumexp(dim=-1) - (share * logits).sum(dim=-1)).mean())
    return torch.stack(losses).mean()


class Trained(Weights):
    """Weights that gradients reach, beside the target's own tables."""

    def __init__(self, draft: Draft, tensors: dict[str, Tensor], target: LlamaForCausalLM) -> None:
        """Keep them."""
        table = target.model.embed_tokens.weight.detach()
        super().__init__(
            draft, tensors.__getitem__, tables=lambda: Tables(table, target.lm_head.weight.detach())
        )
        self.tables_head = target.lm_head.weight.detach()
        self._tensors = tensors

    def __getitem__(self, name: str) -> Tensor:
        """The tensor itself, not a copy."""
        return self._tensors[name]

    @property
    def head(self) -> Tensor:
        """The draft's own."""
        return self._tensors["lm_head.weight"]


def train(
    name: str, recipe: Recipe, target: LlamaForCausalLM, pool: Pool, ids: Tensor, out: Path
) -> None:
    """Train one draft and write it in vLLM's flat form."""
    began = time.monotonic()
    torch.manual_seed(recipe.seed)
    draft = describe(recipe, target.config, len(ids))
    tensors = {key: x.requires_grad_() for key, x in begin(draft, target, pool, ids).items()}
    network = Network(draft, Trained(draft, tensors, target))
    optimizer = torch.optim.AdamW(tensors.values(), lr=LEARNING_RATE, weight_decay=0.01)
    schedule = get_cosine_schedule_with_warmup(optimizer, recipe.steps // 20, recipe.steps)
    for step in range(1, recipe.steps + 1):
        rows = torch.randint(len(pool.tokens), (BATCH,))
        with torch.autocast("cpu", torch.bfloat16):
            loss = loss_of(network, pool, rows, recipe, ids)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(tensors.values(), 1.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
        if step % 20 == 0:
            print(f"{name}: step {step}, loss {loss.item():.3f}", flush=True)
    save(draft, tensors, ids, out / name)
    digest = hashlib.sha256((out / name / "model.safetensors").read_bytes()).hexdigest()
    print(f"{name}: {time.monotonic() - began:.0f} s, sha256 {digest}", flush=True)


def save(draft: Draft, tensors: dict[str, Tensor], ids: Tensor, folder: Path) -> None:
    """Write it."""
    folder.mkdir(parents=True)
    stored = {key: x.detach().to(torch.bfloat16) for key, x in tensors.items()}
    listed = torch.zeros(draft.vocabulary.target_size, dtype=torch.bool)
    listed[ids] = True
    stored |= {"d2t": ids - torch.arange(len(ids)), "t2d": listed}
    config = DESTINATIONS["vllm"].write(draft, Wishes()).config
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
    save_file(stored, folder / "model.safetensors", metadata={"format": "pt"})


def main() -> None:
    """Make what is missing."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("target", type=Path, help="folder of the target")
    parser.add_argument("out", type=Path, help="folder for the drafts and their texts")
    parser.add_argument("--only", nargs="+", choices=DRAFTS, default=list(DRAFTS), metavar="NAME")
    parser.add_argument("--taps", nargs="+", type=int, help="instead of each draft's own")
    parser.add_argument("--steps", type=int, help="instead of each draft's own")
    parser.add_argument("--vocabulary", type=int, default=4096, help="tokens of a draft")
    parser.add_argument("--documents", type=int, default=512)
    args = parser.parse_args()
    changes = {"taps": args.taps and tuple(args.taps), "steps": args.steps}
    told = {key: value for key, value in changes.items() if value}
    recipes = {name: replace(DRAFTS[name], **told) for name in args.only}
    args.out.mkdir(parents=True, exist_ok=True)
    target = LlamaForCausalLM.from_pretrained(args.target, dtype=torch.bfloat16)
    target.eval().requires_grad_(False)
    tokenizer = AutoTokenizer.from_pretrained(args.target)
    training, held_out = (tokenize(tokenizer, texts) for texts in read_sources())
    prompts = draw_windows(held_out, NUM_PROMPTS, PROMPT_LENGTH, torch.Generator().manual_seed(0))
    lines = [json.dumps({"token_ids": prompt}) + "\n" for prompt in prompts.tolist()]
    (args.out / "prompts.jsonl").write_text("".join(lines), encoding="utf-8")
    missing = {name: one for name, one in recipes.items() if not (args.out / name).exists()}
    if not missing:
        return
    kept = args.out / "documents.pt"
    if not kept.exists():
        torch.save(make_documents(target, training, args.documents, 0), kept)
    taps = {tap for recipe in missing.values() for tap in recipe.taps}
    pool = record(target, torch.load(kept), taps)
    counts = Counter(pool.tokens.flatten().tolist())
    ids = torch.tensor(sorted(token for token, _ in counts.most_common(args.vocabulary)))
    for name, recipe in missing.items():
        train(name, recipe, target, pool, ids, args.out)


if __name__ == "__main__":
    main()
