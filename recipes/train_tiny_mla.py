"""Train the tiny target with latent attention, and the EAGLE-3 drafts for it that the tests read.

The target is a DeepSeek-V3 of transformers' own class: six layers, the last two with experts. Its latents have the
sizes that DeepSeek and Kimi use (512 and 64), because vLLM's CPU kernel knows no others. The drafts are trained by
this project's reference network and spelled by hand, as their trainers publish such drafts: nothing of the
project's writers is used.

Run it from the root of the repository, where ``eagle3-interop[validate]`` is installed and ``tests/data/target``
lies, whose tokenizer is shared::

    python recipes/train_tiny_mla.py                # what is missing
    python recipes/train_tiny_mla.py --only mla --overwrite

Everything is seeded; weights still depend, in the last digits, on the Python (its sources are the text), the
processor and the number of threads.
"""

from __future__ import annotations

import argparse
import json
import math
import shutil
import sysconfig
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor
from transformers import (
    DeepseekV3Config,
    DeepseekV3ForCausalLM,
    PreTrainedTokenizerFast,
    get_cosine_schedule_with_warmup,
)

from eagle3_interop.schemas.draft import (
    Attention,
    Draft,
    Fc,
    Gqa,
    Layers,
    Mla,
    Mlp,
    Rope,
    Target,
    Vocabulary,
)
from eagle3_interop.schemas.parameters import shapes
from eagle3_interop.validators.network.reference import Network
from eagle3_interop.validators.network.weights import Tables, Weights
from eagle3_interop.validators.target.running import Target as Running
from eagle3_interop.validators.target.writing import write_texts

VOCAB, DRAFT_VOCAB, WIDTH, DEPTH, HEADS = 1024, 512, 128, 6, 2
Q_RANK, KV_RANK, NOPE, ROPE, V_DIM = 64, 512, 32, 64, 32
FACTOR, TRAINED_POSITIONS, THETA, EPS = 4.0, 128, 10000.0, 1e-6
GROWTH = 0.1 * math.log(FACTOR) + 1
"""How much yarn lengthens the scores' two sides each, with an ``mscale_all_dim`` of 1."""

TARGET_STEPS, TARGET_BATCH, TARGET_LENGTH = 1000, 8, 128
DRAFT_BATCH, STEPS_AHEAD = 8, 4
POOL, PROMPT, DOCUMENT = 768, 32, 112

YARN = {
    "type": "yarn",
    "factor": FACTOR,
    "original_max_position_embeddings": TRAINED_POSITIONS,
    "beta_fast": 32.0,
    "beta_slow": 1.0,
    "mscale": 1.0,
    "mscale_all_dim": 1.0,
}
"""As DeepSeek's and Kimi's own configs say it."""

SIZES: dict[str, Any] = {
    "vocab_size": VOCAB,
    "hidden_size": WIDTH,
    "num_attention_heads": HEADS,
    "hidden_act": "silu",
    "rms_norm_eps": EPS,
    "tie_word_embeddings": False,
    "attention_bias": False,
}
LATENT: dict[str, Any] = {
    "num_key_value_heads": HEADS,
    "q_lora_rank": Q_RANK,
    "kv_lora_rank": KV_RANK,
    "qk_nope_head_dim": NOPE,
    "qk_rope_head_dim": ROPE,
    "v_head_dim": V_DIM,
}
OWN_KEYS = {
    "moe_layer_freq": 1,
    "topk_method": "noaux_tc",
    "scoring_func": "sigmoid",
    "num_nextn_predict_layers": 0,
}
"""Of DeepSeek's own config: SGLang reads them, transformers' class no longer writes them."""


@dataclass(frozen=True)
class Recipe:
    """One draft.

    Attributes:
        taps: streams that fc is trained on.
        ids: what its config says; SGLang adds one in this family where the first is 1.
        latent: its attention is latent, too.
        steps: of training.
    """

    taps: tuple[int, ...]
    ids: tuple[int, ...]
    latent: bool
    steps: int


DRAFTS = {
    "mla": Recipe((2, 3, 5), (1, 2, 4), latent=True, steps=300),
    "gqa": Recipe((2, 3, 5), (1, 2, 4), latent=False, steps=150),
    "shifted": Recipe((0, 2, 3), (1, 2, 4), latent=False, steps=150),
}
"""``shifted`` is the one whose config is wrong: its data held [embedding, 2, 3], and it is served as [2, 3, 5]."""


# --- text -----------------------------------------------------------------------------------------


def read_stream(tokenizer: PreTrainedTokenizerFast) -> Tensor:
    """The standard library's modules as tokens, without those that prompts are drawn from."""
    paths = sorted(Path(sysconfig.get_path("stdlib")).glob("*.py"))
    texts = [path.read_text(encoding="utf-8", errors="replace") for path in paths]
    kept = [text for number, text in enumerate(texts) if number % 20 != 7]
    encoded = tokenizer(kept, add_special_tokens=False)["input_ids"]
    return torch.tensor([token for document in encoded for token in (*document, 0)])


def windows(stream: Tensor, count: int, length: int, generator: torch.Generator) -> Tensor:
    """Random windows of a stream, one a row."""
    starts = torch.randint(len(stream) - length, (count, 1), generator=generator)
    return stream[starts + torch.arange(length)]


# --- target ---------------------------------------------------------------------------------------


def make_target(folder: Path, stream: Tensor, seed: int) -> None:
    """Train the target and save it in bfloat16."""
    torch.manual_seed(seed)
    config = DeepseekV3Config(
        **SIZES,
        **LATENT,
        intermediate_size=256,
        moe_intermediate_size=64,
        num_hidden_layers=DEPTH,
        n_shared_experts=1,
        n_routed_experts=4,
        num_experts_per_tok=2,
        n_group=2,
        topk_group=1,
        norm_topk_prob=True,
        routed_scaling_factor=1.0,
        first_k_dense_replace=DEPTH - 2,
        max_position_embeddings=int(FACTOR * TRAINED_POSITIONS),
        rope_parameters={**YARN, "rope_type": "yarn", "rope_theta": THETA},
        bos_token_id=0,
        eos_token_id=0,
        pad_token_id=None,
        initializer_range=0.06,
    )
    model = DeepseekV3ForCausalLM(config)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, betas=(0.9, 0.95))
    schedule = get_cosine_schedule_with_warmup(optimizer, 50, TARGET_STEPS)
    generator, began = torch.Generator().manual_seed(seed), time.monotonic()
    for step in range(1, TARGET_STEPS + 1):
        batch = windows(stream, TARGET_BATCH, TARGET_LENGTH, generator)
        loss = model(input_ids=batch, labels=batch, use_cache=False).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
        if step % 50 == 0:
            print(f"target: step {step}, loss {loss.item():.3f}, {spent(began)}", flush=True)
    torch.nn.Module.to(model, torch.bfloat16)
    model.save_pretrained(folder)
    written = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    write_config(folder, {**written, **OWN_KEYS})


def spent(began: float) -> str:
    """Seconds since then."""
    return f"{time.monotonic() - began:.0f} s"


# --- drafts ---------------------------------------------------------------------------------------


def describe(recipe: Recipe) -> Draft:
    """The network that is trained."""
    attention: Attention = Gqa(heads=4, kv_heads=2, head_dim=32)
    rope = Rope(theta=THETA)
    if recipe.latent:
        attention = Mla(
            heads=HEADS,
            q_rank=Q_RANK,
            kv_rank=KV_RANK,
            nope_dim=NOPE,
            rope_dim=ROPE,
            v_dim=V_DIM,
            softmax_scale=GROWTH**2 * (NOPE + ROPE) ** -0.5,
        )
        known = ("factor", "original_max_position_embeddings", "beta_fast", "beta_slow")
        parameters = {key: YARN[key] for key in known} | {"attention_factor": 1.0}
        rope = Rope(theta=THETA, scaling="yarn", parameters=parameters)
    return Draft(
        hidden_size=WIDTH,
        target=Target(hidden_size=WIDTH, layers=DEPTH),
        taps=recipe.taps,
        fc=Fc(blocks=len(recipe.taps)),
        layers=Layers(
            count=1, attention=attention, mlp=Mlp(width=128), norm_eps=EPS, windows=(None,)
        ),
        rope=rope,
        vocabulary=Vocabulary(
            target_size=VOCAB, draft_size=DRAFT_VOCAB, mapped=True, embeddings="target"
        ),
        dtype="float32",
    )


def start(draft: Draft, tables: Tables, ids: Tensor) -> dict[str, Tensor]:
    """Weights to begin with: the target's head, norms of one, small matrices."""
    tensors = {
        name: torch.ones(shape) if "norm" in name else torch.randn(shape) * 0.06
        for name, shape in shapes(draft).items()
    }
    tensors["lm_head.weight"] = tables.head[ids].clone()
    trained = {name: x.requires_grad_() for name, x in tensors.items() if name != "d2t"}
    return {**trained, "d2t": ids - torch.arange(len(ids))}


def train_draft(name: str, out: Path, pool: Tensor, seed: int) -> None:
    """Train a draft on documents and write it."""
    torch.manual_seed(seed)
    recipe, target = DRAFTS[name], Running.load(out / "target")
    draft, tables = describe(recipe), target.tables()
    ids = torch.bincount(pool.flatten(), minlength=VOCAB).topk(DRAFT_VOCAB).indices.sort().values
    tensors = start(draft, tables, ids)
    network = Network(draft, Weights.of(draft, tensors, tables=lambda: tables))
    weights = [x for x in tensors.values() if x.requires_grad]
    optimizer = torch.optim.AdamW(weights, lr=3e-3, weight_decay=0.01)
    schedule = get_cosine_schedule_with_warmup(optimizer, 20, recipe.steps)
    generator, began = torch.Generator().manual_seed(seed), time.monotonic()
    for step in range(1, recipe.steps + 1):
        batch = pool[torch.randint(len(pool), (DRAFT_BATCH,), generator=generator)]
        losses = list(depths(network, target, batch, ids))
        torch.autograd.backward(losses)
        torch.nn.utils.clip_grad_norm_(weights, 1.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
        if step % 50 == 0:
            shown = " ".join(f"{loss.item():.2f}" for loss in losses)
            print(f"{name}: step {step}, losses {shown}, {spent(began)}", flush=True)
    write_draft(out / "drafts" / name, recipe, tensors)


def depths(network: Network, target: Running, batch: Tensor, ids: Tensor) -> Iterator[Tensor]:
    """Cross-entropy with the target's own distribution, of every depth from every start."""
    features = target.features(batch, network.draft.taps or ())
    wanted = target.logits(features.final)[..., ids].softmax(dim=-1)
    fed = torch.cat([batch[:, 1:], batch.new_zeros(len(batch), STEPS_AHEAD)], dim=1)
    length = batch.shape[1]
    out, cache = network.begin(fed[:, :length], network.fuse(features))
    for depth in range(STEPS_AHEAD):
        if depth:
            out = network.step(fed[:, depth : depth + length], out.feedback, cache)
        known = length - 1 - depth
        logits = network.logits(out.normed[:, :known]).log_softmax(dim=-1)
        yield -(wanted[:, 1 + depth :] * logits).sum(dim=-1).mean() * 0.8**depth


def write_draft(folder: Path, recipe: Recipe, tensors: dict[str, Tensor]) -> None:
    """As trainers publish such drafts for SGLang: ids of layers whose output is taken, in ``eagle_config`` alone."""
    folder.mkdir(parents=True, exist_ok=True)
    config = {
        "architectures": ["LlamaForCausalLMEagle3"],
        "model_type": "llama",
        "num_key_value_heads": 2,
        "head_dim": 32,
        **SIZES,
        "num_attention_heads": 4,
        "rope_theta": THETA,
        "max_position_embeddings": int(FACTOR * TRAINED_POSITIONS),
    }
    if recipe.latent:
        config = {
            "architectures": ["Eagle3DeepseekV2ForCausalLM"],
            "model_type": "kimi_k2",
            **SIZES,
            **LATENT,
            "rope_theta": THETA,
            "rope_scaling": YARN,
        }
    config |= {
        "intermediate_size": 128,
        "num_hidden_layers": 1,
        "draft_vocab_size": DRAFT_VOCAB,
        "eagle_config": {
            "eagle_aux_hidden_state_layer_ids": list(recipe.ids),
            "use_aux_hidden_state": True,
        },
        "torch_dtype": "bfloat16",
    }
    write_config(folder, config)
    stored = {name.replace("layers.0.", "midlayer."): x for name, x in tensors.items()}
    stored = {
        name: x.detach() if name == "d2t" else x.detach().bfloat16() for name, x in stored.items()
    }
    listed = torch.zeros(VOCAB, dtype=torch.bool)
    listed[stored["d2t"] + torch.arange(DRAFT_VOCAB)] = True
    save_file({**stored, "t2d": listed}, folder / "model.safetensors", metadata={"format": "pt"})


def write_config(folder: Path, config: dict[str, Any]) -> None:
    """Write a folder's config."""
    text = json.dumps(config, indent=2) + "\n"
    (folder / "config.json").write_text(text, encoding="utf-8")


# --- command --------------------------------------------------------------------------------------


def make_pool(target: Running, stream: Tensor, seed: int) -> Tensor:
    """Documents to learn from: the target's own greedy continuations, the text that a draft will be asked for."""
    generator = torch.Generator().manual_seed(seed)
    prompts = windows(stream, POOL, PROMPT, generator).tolist()
    texts = write_texts(target, prompts, DOCUMENT - PROMPT, 0).texts
    return torch.tensor([[*text.prompt, *text.completion] for text in texts])


def main() -> None:
    """Make what is missing."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n\n")[0])
    parser.add_argument("--only", nargs="+", choices=DRAFTS, default=list(DRAFTS), metavar="NAME")
    parser.add_argument("--tokenizer", type=Path, default=Path("tests/data/target"))
    parser.add_argument("--out", type=Path, default=Path("tests/data/mla"))
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--overwrite", action="store_true", help="make these drafts again")
    args = parser.parse_args()
    torch.set_num_threads(1)
    tokenizer = PreTrainedTokenizerFast.from_pretrained(args.tokenizer)
    stream, folder = read_stream(tokenizer), args.out / "target"
    if not (folder / "config.json").exists():
        make_target(folder, stream, args.seed)
        for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
            shutil.copyfile(args.tokenizer / name, folder / name)
    missing = [n for n in args.only if args.overwrite or not (args.out / "drafts" / n).exists()]
    pool = make_pool(Running.load(folder), stream, args.seed) if missing else stream
    for name in missing:
        train_draft(name, args.out, pool, args.seed)


if __name__ == "__main__":
    main()
