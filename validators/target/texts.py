"""Texts to measure on: prompts, encoded and continued by the target itself."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from transformers import AutoTokenizer, PreTrainedTokenizerBase

from eagle3_interop.schemas.findings import Usage
from eagle3_interop.validators.target.prompts import Prompt
from eagle3_interop.validators.target.running import Progress, Target, pack


@dataclass(frozen=True)
class Text:
    """A prompt and its continuation.

    Attributes:
        prompt: its token ids, at least one.
        completion: the target's tokens: the scored ones, and more to judge drafts past their end.
        scored: how many of them count.
    """

    prompt: tuple[int, ...]
    completion: tuple[int, ...]
    scored: int

    def __len__(self) -> int:
        """Tokens in all."""
        return len(self.prompt) + len(self.completion)

    @property
    def starts(self) -> range:
        """Positions from which an engine can draft: the prefill's, up to one before the last token.

        The first knows the features of the whole prompt; the walk is over once all scored tokens are out.
        """
        first = len(self.prompt) - 1
        return range(first, first + self.scored - 1)

    @property
    def walks(self) -> tuple[tuple[int, int], ...]:
        """What engines would generate of it: the first of `starts` and the scored tokens of each run."""
        return ((0, self.scored),)


@dataclass(frozen=True)
class Texts:
    """What `write_texts` made.

    Attributes:
        texts: in the prompts' order.
        given: tokens that came from a file.
        disagreements: how many of those are not the target's own greedy choice.
    """

    texts: tuple[Text, ...]
    given: int = 0
    disagreements: int = 0


def load_tokenizer(
    path: str | Path, *, trust_remote_code: bool = False
) -> PreTrainedTokenizerBase | None:
    """The target's tokenizer, or None where it has none that loads (then only token ids will do)."""
    try:
        found: PreTrainedTokenizerBase = AutoTokenizer.from_pretrained(
            path, trust_remote_code=trust_remote_code
        )
    except Exception:  # missing, broken, or of a class that is not installed: loaders share no base
        return None
    return found


def encode(
    prompts: Sequence[Prompt],
    tokenizer: PreTrainedTokenizerBase | None,
    vocabulary: int,
    *,
    positions: int | None = None,
    room: int = 0,
) -> list[tuple[int, ...]]:
    """Token ids of each prompt.

    Chats go through the tokenizer's template, with the opening of the assistant's turn; without a template
    the contents are joined by line breaks.

    Args:
        prompts: as they were given.
        tokenizer: the target's.
        vocabulary: how many tokens the target has.
        positions: how many the target reaches, where known.
        room: tokens that shall follow each prompt.

    Raises:
        Usage: a text but no tokenizer; an id that the target does not have; an empty prompt; one that the
            target's template refuses, or that ends beyond its positions.
    """
    encoded = []
    for prompt in prompts:
        ids = _encode(prompt, tokenizer)
        if not ids or max((*ids, *(prompt.completion or ()))) >= vocabulary:
            raise Usage(f"{prompt.where}: empty, or a token id is not below {vocabulary}")
        if positions is not None and len(ids) + room > positions:
            raise Usage(
                f"{prompt.where}: {len(ids)} tokens and {room} to follow are more than the "
                f"{positions} positions of the target; shorten the prompt or --max-new-tokens."
            )
        encoded.append(ids)
    return encoded


def _encode(prompt: Prompt, tokenizer: PreTrainedTokenizerBase | None) -> tuple[int, ...]:
    if prompt.token_ids is not None:
        return prompt.token_ids
    if tokenizer is None:
        raise Usage(
            f"{prompt.where}: the target has no tokenizer that loads, so prompts must be token_ids"
        )
    if prompt.messages is None:
        return tuple(tokenizer(prompt.text or "")["input_ids"])
    if getattr(tokenizer, "chat_template", None) is None:
        joined = "\n".join(message["content"] for message in prompt.messages)
        return tuple(tokenizer(joined)["input_ids"])
    try:
        text = tokenizer.apply_chat_template(
            list(prompt.messages), tokenize=False, add_generation_prompt=True
        )
    except Exception as error:  # a template is a program of somebody else's
        why = str(error).partition("\n")[0] or type(error).__name__
        raise Usage(
            f"{prompt.where}: the target's chat template refuses these messages: {why.rstrip('.')}. "
            "Give messages that it takes, or token_ids."
        ) from error
    return tuple(tokenizer(str(text), add_special_tokens=False)["input_ids"])


def write_texts(
    target: Target,
    prompts: Sequence[Sequence[int]],
    new_tokens: int,
    extra: int,
    *,
    given: Sequence[Sequence[int] | None] | None = None,
    stop_ids: Sequence[int] = (),
    temperature: float = 0.0,
    seed: int = 0,
    token_budget: int = 16384,
    progress: Progress | None = None,
) -> Texts:
    """Let the target continue each prompt by exactly `new_tokens` scored tokens and `extra` more.

    Args:
        target: writes, and judges what is given.
        prompts: token ids.
        new_tokens: tokens to score.
        extra: tokens after those: as many as the longest draft.
        given: completions from elsewhere, or None for those that the target shall write; a shorter one is
            scored at its own length.
        stop_ids: end-of-sequence ids at which a text's scored part ends (the id included); by default a
            text never ends early, as with ``ignore_eos`` in the engines.
        temperature: 0 for greedy.
        seed: of the sampling.
        token_budget: tokens a batch may hold.
        progress: told the tokens done.
    """
    given = given or [None] * len(prompts)
    known = [tuple(text or ())[: new_tokens + extra] for text in given]
    generator = torch.Generator(device=target.device).manual_seed(seed)
    scored = [min(new_tokens, len(text)) if text else new_tokens for text in known]
    missing = [max(0, n + extra - len(text)) for n, text in zip(scored, known, strict=True)]
    completions = [list(text) for text in known]
    for length in sorted(set(missing) - {0}):
        chosen = [i for i, wanted in enumerate(missing) if wanted == length]
        added = target.generate(
            [[*prompts[i], *known[i]] for i in chosen],
            length,
            temperature=temperature,
            generator=generator,
            token_budget=token_budget,
            progress=progress,
        )
        for i, tokens in zip(chosen, added, strict=True):
            completions[i] += tokens
    texts = [
        Text(tuple(prompt), tuple(text), _stopped(text, n, stop_ids))
        for prompt, text, n in zip(prompts, completions, scored, strict=True)
    ]
    checked = [(text, len(known[i])) for i, text in enumerate(texts) if known[i]]
    return Texts(
        tuple(texts), sum(n for _, n in checked), disagreements(target, checked, token_budget)
    )


def disagreements(
    target: Target, texts: Sequence[tuple[Text, int]], token_budget: int = 16384
) -> int:
    """How many of the first n completion tokens are not the target's greedy choice given those before."""
    wrong = 0
    for group in pack([len(text) for text, _ in texts], token_budget):
        chosen = [texts[i] for i in group]
        longest = max(len(text) for text, _ in chosen)
        rows = [[*t.prompt, *t.completion, *[0] * (longest - len(t))] for t, _ in chosen]
        final = target.features(torch.tensor(rows), ()).final
        for row, (text, count) in zip(final, chosen, strict=True):
            first = len(text.prompt) - 1
            best = target.greedy(row[first : first + count]).tolist()
            wrong += sum(a != b for a, b in zip(best, text.completion, strict=False))
    return wrong


def _stopped(completion: Sequence[int], scored: int, stop_ids: Sequence[int]) -> int:
    ends = (i + 1 for i, token in enumerate(completion[:scored]) if token in stop_ids)
    return next(ends, scored)
