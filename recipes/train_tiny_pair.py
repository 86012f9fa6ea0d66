"""Train the tiny target and the EAGLE-3 drafts that the tests read.

The point of the drafts is that they are what the speculators library *really* writes: its own
model class, its own loss, its own ``save_pretrained``. Everything else is kept small enough for a
laptop: a six-layer llama that has read the Python standard library, and drafts of 0.4 M weights.

Run it from the root of the repository, in an environment made as
``train_tiny_pair.requirements.txt`` says::

    python recipes/train_tiny_pair.py                  # what is missing
    python recipes/train_tiny_pair.py --only qwen3 --overwrite

Everything is seeded; weights still depend, in the last digits, on the Python (its sources are the
text), the processor and the number of threads.
"""

from __future__ import annotations

import argparse
import json
import platform
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict, dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch
from loguru import logger
from speculators.config import SpeculatorsConfig, VerifierConfig
from speculators.losses import resolve_loss_config
from speculators.models.eagle3 import Eagle3DraftModel, Eagle3SpeculatorConfig
from speculators.proposals.greedy import GreedyTokenProposalConfig
from speculators.train.checkpointer import convert_float_dtype, patch_config_dtype
from speculators.train.vocab_mapping import build_vocab_mappings_from_distribution
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from torch import Tensor
from training_texts import PROMPT_LENGTH, draw_windows, generate, read_sources, tokenize
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedConfig,
    PreTrainedTokenizerFast,
    Qwen3Config,
    get_cosine_schedule_with_warmup,
    get_linear_schedule_with_warmup,
)
from transformers.utils import logging

ENDOFTEXT, USER, ASSISTANT, END, PAD = range(5)
SPECIAL_TOKENS = ["<|endoftext|>", "<|user|>", "<|assistant|>", "<|end|>", "<|pad|>"]
CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{{ ('<|assistant|>' if message['role'] == 'assistant' else '<|user|>')"
    " + message['content'] + '<|end|>\\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}"
)
LAYER_CONFIGS = {"llama": LlamaConfig, "qwen3": Qwen3Config}

VOCAB_SIZE = 1024
DRAFT_VOCAB_SIZE = 512
NUM_DRAFT_TOKENS = 4

TARGET_STEPS = 1500
TARGET_BATCH = 12
TARGET_LENGTH = 192
DRAFT_LENGTH = 160
DRAFT_LEARNING_RATE = 2e-3
POOL_PROMPTS = 2048

NUM_PROMPTS = 24
NEW_TOKENS = 96

README = """\
# The tiny pair

A target and EAGLE-3 drafts for it, made by `recipes/train_tiny_pair.py` (which also wrote this
page). The drafts are what speculators 0.9.0 writes: its model class, its loss, its
`save_pretrained`, cast to bfloat16 as its trainer does, and not touched afterwards.

- `target/`: a llama of six layers, hidden size 128, 1024 tokens ({target_megabytes} MB, bfloat16),
  with its own byte-level BPE tokenizer and a chat template.
- `drafts/NAME/`: one draft each: hidden size 128, head size 32, 512 draft tokens, bfloat16. The
  path of the verifier in each config is relative to the root of the repository.
- `prompts.jsonl`: the prompts of the table below, as token ids.
- `acceptance.json`: the table below, for programs.

Target and tokenizer were trained on the `.py` files of the standard library of Python {python},
without its tests; the prompts come from files that were held out. That text is copyright of the
Python Software Foundation and its contributors, under the PSF License Version 2. The `config.py` in
each draft is written by speculators and is its code (Apache-2.0).

## Measured

{num_prompts} prompts of {prompt_length} tokens, {new_tokens} new tokens each, end-of-sequence
ignored, greedy, float32, {num_draft_tokens} draft tokens a step. Drafts are verification steps; the
accept length is 1 + accepted / drafts; per position: the steps that accepted more than 0, 1, ...
drafts. Replayed with the model class of speculators itself, whose window stays at the first draft
step's place; engines move it on, and count 1186 and 1121 for `sliding`.

{table}
"""


@dataclass(frozen=True)
class DraftRecipe:
    """What sets one draft apart from the others.

    Attributes:
        note: One line for the table of drafts.
        taps: Ids of the tapped target layers, as speculators counts them: id k is the residual
            stream that enters decoder layer k, so 0 is the output of the embeddings.
        steps: Optimiser steps.
        batch: Documents a step.
        layer_type: ``llama``, or ``qwen3`` for layers with norms on queries and keys.
        num_layers: Decoder layers of the draft.
        sliding_window: Window of all its layers, or None for full attention.
        flags: Further fields of ``Eagle3SpeculatorConfig``.
    """

    note: str
    taps: tuple[int, ...] = (1, 3, 5)
    steps: int = 300
    batch: int = 4
    layer_type: str = "llama"
    num_layers: int = 1
    sliding_window: int | None = None
    flags: tuple[str, ...] = ()


DRAFTS = {
    "plain": DraftRecipe("one llama layer, every flag off", steps=400, batch=16),
    "norm_before_residual": DraftRecipe(
        "the residual is the normed hidden state",
        steps=400,
        batch=16,
        flags=("norm_before_residual",),
    ),
    "embed_tap": DraftRecipe("the first tap is on the embeddings", taps=(0, 3, 5)),
    "qwen3": DraftRecipe("a qwen3 layer: q_norm and k_norm", layer_type="qwen3"),
    "fc_norm": DraftRecipe("a norm per tap, post-norm feedback", flags=("fc_norm", "norm_output")),
    "two_layers": DraftRecipe("two llama layers", num_layers=2),
    "four_taps": DraftRecipe("four taps", taps=(1, 2, 4, 5)),
    "library_defaults": DraftRecipe(
        "the flags that the library's own command sets when none are given",
        flags=("norm_before_residual", "norm_before_fc", "norm_output"),
    ),
    "sliding": DraftRecipe("a sliding window of 64", sliding_window=64),
}


@dataclass(frozen=True)
class Features:
    """What a draft sees of its target, for a batch of token ids.

    Attributes:
        taps: The tapped residual streams, concatenated on the last axis.
        last: The residual stream before the final norm (the draft class norms it itself).
    """

    taps: Tensor
    last: Tensor


@dataclass(frozen=True)
class Acceptance:
    """Counters of chain drafting with greedy verification."""

    drafts: int
    accepted: int
    per_position: list[int]

    @property
    def accept_length(self) -> float:
        """Tokens that a verification step yields on average."""
        return 1 + self.accepted / self.drafts


# --- text -----------------------------------------------------------------------------------------


def as_documents(texts: list[str], lines_per_chat: int = 24) -> Iterator[str]:
    """Yields every text as it is, and every fourth as chats: first line asked, the rest answered.

    Args:
        texts: Source files.
        lines_per_chat: Lines of one exchange.
    """
    for number, text in enumerate(texts):
        if number % 4:
            yield text + SPECIAL_TOKENS[ENDOFTEXT]
            continue
        lines = [line for line in text.splitlines() if line.strip()]
        for start in range(0, len(lines), lines_per_chat):
            asked, *answered = lines[start : start + lines_per_chat]
            answer = "\n".join(answered)
            yield f"<|user|>{asked}<|end|>\n<|assistant|>{answer}<|end|>\n<|endoftext|>"


def train_tokenizer(texts: list[str]) -> PreTrainedTokenizerFast:
    """Trains the byte-level BPE tokenizer."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB_SIZE,
        special_tokens=SPECIAL_TOKENS,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token=SPECIAL_TOKENS[ENDOFTEXT],
        eos_token=SPECIAL_TOKENS[ENDOFTEXT],
        pad_token=SPECIAL_TOKENS[PAD],
        extra_special_tokens=SPECIAL_TOKENS[USER:PAD],
        chat_template=CHAT_TEMPLATE,
        model_max_length=2048,
        clean_up_tokenization_spaces=False,
    )


# --- target ---------------------------------------------------------------------------------------


def make_target(folder: Path, seed: int) -> None:
    """Trains tokenizer and target, and saves both."""
    torch.manual_seed(seed)
    documents = list(as_documents(read_sources()[0]))
    tokenizer = train_tokenizer(documents)
    model = train_target(tokenize(tokenizer, documents), seed)
    model.generation_config.eos_token_id = [ENDOFTEXT, END]
    model.to(torch.bfloat16).save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def train_target(stream: Tensor, seed: int) -> LlamaForCausalLM:
    """Trains the target on windows of the stream."""
    model = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=VOCAB_SIZE,
            hidden_size=128,
            intermediate_size=320,
            num_hidden_layers=6,
            num_attention_heads=4,
            num_key_value_heads=2,
            head_dim=32,
            max_position_embeddings=2048,
            rms_norm_eps=1e-5,
            rope_parameters={"rope_type": "default", "rope_theta": 10000.0},
            tie_word_embeddings=False,
            bos_token_id=ENDOFTEXT,
            eos_token_id=ENDOFTEXT,
            pad_token_id=PAD,
        )
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, betas=(0.9, 0.95))
    schedule = get_cosine_schedule_with_warmup(optimizer, 50, TARGET_STEPS)
    generator = torch.Generator().manual_seed(seed)
    for step in range(1, TARGET_STEPS + 1):
        batch = draw_windows(stream, TARGET_BATCH, TARGET_LENGTH, generator)
        loss = model(input_ids=batch, labels=batch, use_cache=False).loss
        loss.backward()
        take_step(model, optimizer, schedule)
        if step % 100 == 0:
            print(f"target: step {step}, loss {loss.item():.3f}", flush=True)
    return model


def take_step(
    model: torch.nn.Module,
    optimizer: torch.optim.Optimizer,
    schedule: torch.optim.lr_scheduler.LRScheduler,
) -> None:
    """Takes one optimiser step along the gradients that are there, and clears them."""
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    schedule.step()
    optimizer.zero_grad()


def load_target(folder: Path) -> LlamaForCausalLM:
    """Loads the saved target in float32, as every evaluation does."""
    return LlamaForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()


@torch.no_grad()
def extract_features(target: LlamaForCausalLM, tokens: Tensor, taps: tuple[int, ...]) -> Features:
    """Runs the target and records what a draft sees of it.

    ``hidden_states[k]`` of transformers is the stream that enters layer k; its last entry has
    already passed the final norm, so the stream before that norm is caught on its way in.
    """
    caught: list[Tensor] = []
    hook = target.model.norm.register_forward_pre_hook(lambda _, inputs: caught.append(inputs[0]))
    states = target.model(tokens, output_hidden_states=True, use_cache=False).hidden_states
    hook.remove()
    return Features(taps=torch.cat([states[tap] for tap in taps], dim=-1), last=caught[0])


def make_pool(target: LlamaForCausalLM, folder: Path, seed: int) -> Tensor:
    """Makes the documents that the drafts learn from.

    Half of them are windows of the training text, half are the target's own greedy continuations of
    such windows: the text that a draft will be asked to guess.
    """
    generator = torch.Generator().manual_seed(seed)
    tokenizer = PreTrainedTokenizerFast.from_pretrained(folder)
    stream = tokenize(tokenizer, list(as_documents(read_sources()[0])))
    written = draw_windows(stream, POOL_PROMPTS, DRAFT_LENGTH, generator)
    prompts = draw_windows(stream, POOL_PROMPTS, PROMPT_LENGTH, generator)
    continued = [
        generate(target, some, DRAFT_LENGTH - PROMPT_LENGTH) for some in prompts.split(256)
    ]
    return torch.cat([written, *continued])


def make_prompts(folder: Path, seed: int) -> Tensor:
    """Draws the prompts of the measurement from sources that nothing was trained on."""
    generator = torch.Generator().manual_seed(seed)
    tokenizer = PreTrainedTokenizerFast.from_pretrained(folder)
    stream = tokenize(tokenizer, read_sources()[1])
    return draw_windows(stream, NUM_PROMPTS, PROMPT_LENGTH, generator)


# --- drafts ---------------------------------------------------------------------------------------


def build_draft(recipe: DraftRecipe, target_folder: Path, pool: Tensor) -> Eagle3DraftModel:
    """Builds an untrained draft with the embeddings, head and final norm of its target."""
    flags: dict[str, Any] = dict.fromkeys(recipe.flags, True)
    config = Eagle3SpeculatorConfig(
        transformer_layer_config=layer_config(recipe),
        draft_vocab_size=DRAFT_VOCAB_SIZE,
        eagle_aux_hidden_state_layer_ids=list(recipe.taps),
        speculators_config=SpeculatorsConfig(
            algorithm="eagle3",
            proposal_methods=[GreedyTokenProposalConfig(speculative_tokens=NUM_DRAFT_TOKENS)],
            default_proposal_method="greedy",
            verifier=VerifierConfig.from_pretrained(target_folder.as_posix()),
        ),
        **flags,
    )
    draft = Eagle3DraftModel(config)
    frequencies = Counter(pool.flatten().tolist())
    d2t, t2d = build_vocab_mappings_from_distribution(frequencies, DRAFT_VOCAB_SIZE, VOCAB_SIZE)
    draft.load_vocab_mappings(t2d, d2t)
    draft.load_verifier_weights()
    return draft


def layer_config(recipe: DraftRecipe) -> PreTrainedConfig:
    """Describes the decoder layers of a draft; eager attention, for flex wants a GPU."""
    keys: dict[str, Any] = {
        "vocab_size": VOCAB_SIZE,
        "hidden_size": 128,
        "intermediate_size": 192,
        "num_hidden_layers": recipe.num_layers,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 32,
        "max_position_embeddings": 2048,
        "rms_norm_eps": 1e-5,
        "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
        "tie_word_embeddings": False,
        "bos_token_id": ENDOFTEXT,
        "eos_token_id": ENDOFTEXT,
        "pad_token_id": PAD,
    }
    if recipe.sliding_window is not None:
        keys["sliding_window"] = recipe.sliding_window
        keys["use_sliding_window"] = True
        keys["layer_types"] = ["sliding_attention"] * recipe.num_layers
    config_class: type[PreTrainedConfig] = LAYER_CONFIGS[recipe.layer_type]
    config = config_class(**keys)
    config._attn_implementation = "eager"
    return config


def train_draft(name: str, out: Path, pool: Tensor, seed: int) -> float:
    """Trains one draft and saves it.

    Args:
        name: Key of ``DRAFTS``.
        out: Folder that holds ``target`` and ``drafts``.
        pool: Documents, one a row.
        seed: Seed of the weights and of the order of the documents.

    Returns:
        The seconds that it took.
    """
    torch.set_num_threads(1)
    torch.manual_seed(seed)
    began = time.monotonic()
    recipe = DRAFTS[name]
    target = load_target(out / "target")
    draft = build_draft(recipe, out / "target", pool)
    weights = [weight for weight in draft.parameters() if weight.requires_grad]
    optimizer = torch.optim.AdamW(weights, lr=DRAFT_LEARNING_RATE, weight_decay=0.01)
    schedule = get_linear_schedule_with_warmup(optimizer, recipe.steps // 50, recipe.steps)
    generator = torch.Generator().manual_seed(seed)
    for step in range(1, recipe.steps + 1):
        batch = pool[torch.randint(len(pool), (recipe.batch,), generator=generator)]
        loss = accumulate_gradients(draft, batch, extract_features(target, batch, recipe.taps))
        take_step(draft, optimizer, schedule)
        if step % 50 == 0:
            print(f"{name}: step {step}, loss {loss:.3f}", flush=True)
    save_draft(draft, out / "drafts" / name)
    return time.monotonic() - began


def accumulate_gradients(draft: Eagle3DraftModel, batch: Tensor, features: Features) -> float:
    """Runs the library's own loss on every document and adds up the gradients.

    The class takes one packed row, and the cost grows with the square of its length, so documents
    go one by one. As in the library's ``shift_batch``, the token x[t+1] stands beside the feature
    g[t] and the verifier state y[t+1].

    Returns:
        The mean loss.
    """
    loss_config = resolve_loss_config("kl_div", implementation="eager")
    total = 0.0
    for tokens, taps, last in zip(batch, features.taps, features.last, strict=True):
        _, loss, _ = draft(
            hidden_states=taps[None, :-1],
            input_ids=tokens[None, 1:],
            document_ids=torch.zeros(1, len(tokens) - 1, dtype=torch.long),
            verifier_last_hidden_states=last[None, 1:],
            ttt_steps=NUM_DRAFT_TOKENS,
            loss_config=loss_config,
        )
        (loss / len(batch)).backward()
        total += loss.item() / len(batch)
    return total


def save_draft(draft: Eagle3DraftModel, folder: Path) -> None:
    """Saves a draft as the library's trainer does: weights cast to bfloat16, then written."""
    state = convert_float_dtype(draft.state_dict(), torch.bfloat16)
    draft.save_pretrained(folder, state_dict=state)
    patch_config_dtype(folder / "config.json", torch.bfloat16)


# --- measuring ------------------------------------------------------------------------------------


@torch.no_grad()
def measure(draft: Eagle3DraftModel, target: LlamaForCausalLM, texts: Tensor) -> Acceptance:
    """Replays chain drafting on texts that the target generated greedily.

    One teacher-forced call of the draft judges every start position at once: as long as drafts are
    accepted they equal the text, so feeding the text is the same as feeding the drafts. Then the
    serial engine is a walk over the accepted counts.

    Args:
        draft: Draft in float32.
        target: Its target in float32.
        texts: Prompt, new tokens, and as many again as there are draft tokens; one text a row.
    """
    features = extract_features(target, texts, tuple(draft.target_layer_ids))
    accepted = []
    for tokens, taps in zip(texts, features.taps, strict=True):
        accepted += walk(accepted_from_each_start(draft, tokens, taps))
    return Acceptance(
        drafts=len(accepted),
        accepted=sum(accepted),
        per_position=[sum(n > depth for n in accepted) for depth in range(NUM_DRAFT_TOKENS)],
    )


def accepted_from_each_start(draft: Eagle3DraftModel, tokens: Tensor, taps: Tensor) -> list[int]:
    """Counts the drafts accepted when drafting starts from the features of each position."""
    drafted = draft(
        hidden_states=taps[None, :-1],
        input_ids=tokens[None, 1:],
        document_ids=torch.zeros(1, len(tokens) - 1, dtype=torch.long),
        ttt_steps=NUM_DRAFT_TOKENS,
    )
    starts = len(tokens) - 1 - NUM_DRAFT_TOKENS
    hits = []
    for depth, ids in enumerate(drafted):
        in_target_vocabulary = ids[0] + draft.get_buffer("d2t")[ids[0]]
        hits.append(in_target_vocabulary[:starts] == tokens[2 + depth :][:starts])
    return torch.stack(hits).cumprod(0).sum(0).tolist()


def walk(accepted: list[int]) -> list[int]:
    """Returns what each step of the serial engine accepts; the prefill gives the first token."""
    steps = []
    position = PROMPT_LENGTH - 1
    while position - (PROMPT_LENGTH - 1) < NEW_TOKENS - 1:
        steps.append(accepted[position])
        position += accepted[position] + 1
    return steps


def load_draft(folder: Path) -> Eagle3DraftModel:
    """Loads a saved draft in float32, by the library's own loader."""
    config = Eagle3SpeculatorConfig.from_pretrained(folder)
    config.transformer_layer_config._attn_implementation = "eager"
    draft: Eagle3DraftModel = Eagle3DraftModel.from_pretrained(
        folder, config=config, dtype=torch.float32
    )
    return draft.eval()


# --- records --------------------------------------------------------------------------------------


def write_prompts(path: Path, prompts: Tensor) -> None:
    """Writes prompts as JSON lines of token ids."""
    lines = [json.dumps({"token_ids": prompt}) + "\n" for prompt in prompts.tolist()]
    path.write_text("".join(lines), encoding="utf-8")


def read_records(path: Path) -> dict[str, dict[str, Any]]:
    """Reads what earlier runs measured, by the name of the draft."""
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}


def make_record(name: str, acceptance: Acceptance, seconds: float) -> dict[str, Any]:
    """Describes a draft and what was measured on it."""
    return {
        "note": DRAFTS[name].note,
        "taps": list(DRAFTS[name].taps),
        "steps": DRAFTS[name].steps,
        "batch": DRAFTS[name].batch,
        "train_seconds": round(seconds),
        "accept_length": round(acceptance.accept_length, 4),
        **asdict(acceptance),
    }


def megabytes(folder: Path) -> str:
    """Adds up the files of a folder."""
    size = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    return f"{size / 1e6:.2f}"


def as_table(out: Path, records: dict[str, dict[str, Any]]) -> str:
    """Renders the records as a Markdown table."""
    lines = [
        "| draft | what it is | taps | accept length | drafts | accepted | per position | MB |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for name, record in records.items():
        cells = [
            f"`{name}`",
            record["note"],
            str(record["taps"]),
            f"{1 + record['accepted'] / record['drafts']:.3f}",
            str(record["drafts"]),
            str(record["accepted"]),
            " ".join(map(str, record["per_position"])),
            megabytes(out / "drafts" / name),
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def save_records(out: Path, records: dict[str, dict[str, Any]]) -> None:
    """Writes the records, and the README of the folder from them."""
    ordered = {name: records[name] for name in DRAFTS if name in records}
    text = json.dumps(ordered, indent=2) + "\n"
    (out / "acceptance.json").write_text(text, encoding="utf-8")
    readme = README.format(
        table=as_table(out, ordered),
        num_prompts=NUM_PROMPTS,
        prompt_length=PROMPT_LENGTH,
        new_tokens=NEW_TOKENS,
        num_draft_tokens=NUM_DRAFT_TOKENS,
        target_megabytes=megabytes(out / "target"),
        python=platform.python_version(),
    )
    (out / "README.md").write_text(readme, encoding="utf-8")


# --- command --------------------------------------------------------------------------------------


def parse_arguments() -> argparse.Namespace:
    """Reads the command line."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument(
        "--only", nargs="+", choices=DRAFTS, metavar="NAME", help=f"of {', '.join(DRAFTS)}"
    )
    parser.add_argument("--target-only", action="store_true", help="train no draft")
    parser.add_argument("--out", type=Path, default=Path("tests/data"), help="output folder")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=2, help="drafts trained side by side")
    parser.add_argument(
        "--overwrite",
        action="store_true",
        help="make again what exists (with --only: those drafts, not the target)",
    )
    return parser.parse_args()


def quieten() -> None:
    """Silences the libraries; each prints a line for every file that it opens."""
    logger.disable("speculators")
    logging.set_verbosity_error()
    logging.disable_progress_bar()


def train_drafts(names: list[str], args: argparse.Namespace) -> None:
    """Trains drafts side by side, and measures each when it is there."""
    target = load_target(args.out / "target")
    pool = make_pool(target, args.out / "target", args.seed)
    prompts = make_prompts(args.out / "target", args.seed)
    write_prompts(args.out / "prompts.jsonl", prompts)
    texts = generate(target, prompts, NEW_TOKENS + NUM_DRAFT_TOKENS)
    records = read_records(args.out / "acceptance.json")
    with ProcessPoolExecutor(args.jobs, get_context("spawn"), quieten) as workers:
        running = {
            workers.submit(train_draft, name, args.out, pool, args.seed): name for name in names
        }
        for done in as_completed(running):
            name = running[done]
            acceptance = measure(load_draft(args.out / "drafts" / name), target, texts)
            records[name] = make_record(name, acceptance, done.result())
            save_records(args.out, records)
            print(f"{name}: accept length {acceptance.accept_length:.3f}", flush=True)
    print(as_table(args.out, records))


def main() -> None:
    """Makes what is missing."""
    args = parse_arguments()
    quieten()
    target_folder = args.out / "target"
    if (args.overwrite and not args.only) or not target_folder.exists():
        torch.set_num_threads(args.jobs)
        make_target(target_folder, args.seed)
    torch.set_num_threads(1)
    names = [] if args.target_only else args.only or list(DRAFTS)
    missing = [n for n in names if args.overwrite or not (args.out / "drafts" / n).exists()]
    if missing:
        train_drafts(missing, args)


if __name__ == "__main__":
    main()
