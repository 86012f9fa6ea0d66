"""Train the tiny P-EAGLE draft that the tests read: all tokens from one pass.

It is what speculators' own ``PEagleDraftModel`` writes, trained on texts of the tiny target with the class's
own loss. Run it from the root of the repository, in the environment of ``train_tiny_pair.py``, once the target
is there::

    TORCHDYNAMO_DISABLE=1 python recipes/train_tiny_peagle.py
"""

from __future__ import annotations

import argparse
import time
from collections import Counter
from pathlib import Path

import torch
from speculators.config import SpeculatorsConfig, VerifierConfig
from speculators.losses import resolve_loss_config
from speculators.models.peagle import PEagleDraftModel, PEagleSpeculatorConfig
from speculators.proposals.greedy import GreedyTokenProposalConfig
from speculators.train.vocab_mapping import build_vocab_mappings_from_distribution
from torch import Tensor
from train_tiny_pair import (
    DRAFT_VOCAB_SIZE,
    NUM_DRAFT_TOKENS,
    PAD,
    PROMPT_LENGTH,
    VOCAB_SIZE,
    DraftRecipe,
    Features,
    as_documents,
    draw_windows,
    extract_features,
    generate,
    layer_config,
    load_target,
    quieten,
    read_sources,
    save_draft,
    take_step,
    tokenize,
)
from transformers import PreTrainedTokenizerFast, get_linear_schedule_with_warmup

RECIPE = DraftRecipe("all tokens from one pass", steps=300)
DOCUMENTS, LENGTH = 384, 128
LEARNING_RATE = 3e-3


def make_documents(target_folder: Path, seed: int) -> Tensor:
    """The target's own greedy continuations, which are what a draft will be asked to guess."""
    generator = torch.Generator().manual_seed(seed)
    tokenizer = PreTrainedTokenizerFast.from_pretrained(target_folder)
    stream = tokenize(tokenizer, list(as_documents(read_sources()[0])))
    prompts = draw_windows(stream, DOCUMENTS, PROMPT_LENGTH, generator)
    target = load_target(target_folder)
    parts = [generate(target, some, LENGTH - PROMPT_LENGTH) for some in prompts.split(128)]
    return torch.cat(parts)


def build_draft(target_folder: Path, documents: Tensor) -> PEagleDraftModel:
    """An untrained draft with the embeddings, head and final norm of its target; the mask is a token of no text."""
    config = PEagleSpeculatorConfig(
        transformer_layer_config=layer_config(RECIPE),
        draft_vocab_size=DRAFT_VOCAB_SIZE,
        eagle_aux_hidden_state_layer_ids=list(RECIPE.taps),
        mask_token_id=PAD,
        speculators_config=SpeculatorsConfig(
            algorithm="peagle",
            proposal_methods=[GreedyTokenProposalConfig(speculative_tokens=NUM_DRAFT_TOKENS)],
            default_proposal_method="greedy",
            verifier=VerifierConfig.from_pretrained(target_folder.as_posix()),
        ),
    )
    draft = PEagleDraftModel(config)
    frequencies = Counter(documents.flatten().tolist())
    d2t, t2d = build_vocab_mappings_from_distribution(frequencies, DRAFT_VOCAB_SIZE, VOCAB_SIZE)
    draft.load_vocab_mappings(t2d, d2t)
    draft.load_verifier_weights()
    return draft.float()


def accumulate_gradients(draft: PEagleDraftModel, batch: Tensor, features: Features) -> float:
    """The class's own loss of every depth at every anchor, added up document by document."""
    loss_config = resolve_loss_config("kl_div", implementation="eager")
    total = 0.0
    for tokens, taps, last in zip(batch, features.taps, features.last, strict=True):
        _, loss, _ = draft(
            hidden_states=taps[None, :-1],
            input_ids=tokens[None, 1:],
            document_ids=torch.zeros(1, len(tokens) - 1, dtype=torch.long),
            verifier_last_hidden_states=last[None, 1:],
            num_depths=NUM_DRAFT_TOKENS,
            loss_config=loss_config,
            down_sample_ratio=1.0,
            down_sample_ratio_min=1.0,
        )
        (loss / len(batch)).backward()
        total += loss.item() / len(batch)
    return total


def main() -> None:
    """Train it."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--data", type=Path, default=Path("tests/data"), help="holds the target")
    parser.add_argument("--out", type=Path, default=Path("tests/data/parallel/peagle"))
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    quieten()
    torch.set_num_threads(1)
    torch.manual_seed(args.seed)
    began = time.monotonic()
    documents = make_documents(args.data / "target", args.seed)
    target = load_target(args.data / "target")
    draft = build_draft(args.data / "target", documents)
    weights = [weight for weight in draft.parameters() if weight.requires_grad]
    optimizer = torch.optim.AdamW(weights, lr=LEARNING_RATE, weight_decay=0.01)
    schedule = get_linear_schedule_with_warmup(optimizer, RECIPE.steps // 20, RECIPE.steps)
    generator = torch.Generator().manual_seed(args.seed)
    for step in range(1, RECIPE.steps + 1):
        batch = documents[torch.randint(len(documents), (RECIPE.batch,), generator=generator)]
        loss = accumulate_gradients(draft, batch, extract_features(target, batch, RECIPE.taps))
        take_step(draft, optimizer, schedule)
        if step % 20 == 0:
            print(f"step {step}, loss {loss:.3f}, {time.monotonic() - began:.0f} s", flush=True)
    save_draft(draft, args.out)


if __name__ == "__main__":
    main()
