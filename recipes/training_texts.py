"""What the recipes train on: the sources of the running Python, and a target's continuations of them."""

from __future__ import annotations

import sysconfig
from pathlib import Path

import torch
from torch import Tensor
from transformers import LlamaForCausalLM, PreTrainedTokenizerBase

SKIPPED_FOLDERS = {"site-packages", "test", "tests", "idlelib", "lib2to3", "encodings"}

PROMPT_LENGTH = 48


def read_sources() -> tuple[list[str], list[str]]:
    """Reads the standard library of the running Python.

    Returns:
        The texts to train on, and the texts held out for the prompts.
    """
    root = Path(sysconfig.get_path("stdlib"))
    paths = sorted(
        path
        for path in root.rglob("*.py")
        if not SKIPPED_FOLDERS & set(path.relative_to(root).parts)
    )
    texts = [path.read_text(encoding="utf-8", errors="replace") for path in paths]
    held_out = [text for number, text in enumerate(texts) if number % 20 == 7]
    training = [text for number, text in enumerate(texts) if number % 20 != 7]
    return training, held_out


def tokenize(tokenizer: PreTrainedTokenizerBase, documents: list[str]) -> Tensor:
    """Tokenizes documents into one stream."""
    encoded = tokenizer(documents, add_special_tokens=False)["input_ids"]
    return torch.tensor([token for document in encoded for token in document])


def draw_windows(stream: Tensor, count: int, length: int, generator: torch.Generator) -> Tensor:
    """Draws random windows of a token stream, one a row."""
    starts = torch.randint(len(stream) - length, (count, 1), generator=generator)
    return stream[starts + torch.arange(length)]


@torch.no_grad()
def generate(target: LlamaForCausalLM, prompts: Tensor, new_tokens: int) -> Tensor:
    """Continues the prompts greedily by exactly that many tokens, end-of-sequence ignored."""
    text, cache = prompts, None
    for _ in range(new_tokens):
        fed = text if cache is None else text[:, -1:]
        output = target(input_ids=fed, past_key_values=cache, use_cache=True, logits_to_keep=1)
        cache = output.past_key_values
        text = torch.cat([text, output.logits[:, -1:].argmax(-1)], dim=1)
    return text
