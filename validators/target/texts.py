"""Texts to measure on, and prompts as the target's tokens."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from transformers import AutoTokenizer, PreTrainedTokenizerBase

from eagle3_interop.schemas.findings import Usage
from eagle3_interop.validators.target.prompts import Prompt


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


def decoder(tokenizer: PreTrainedTokenizerBase | None) -> Callable[[Sequence[int]], str]:
    """Token ids as text, nothing left out or tidied; without a tokenizer the ids themselves."""
    if tokenizer is None:
        return lambda ids: "".join(f"{token} " for token in ids)
    made = tokenizer

    def decode(ids: Sequence[int]) -> str:
        return str(made.decode(list(ids), clean_up_tokenization_spaces=False))

    return decode


def encode(
    prompts: Sequence[Prompt],
    tokenizer: PreTrainedTokenizerBase | None,
    vocabulary: int,
    *,
    positions: int | None = None,
    room: int = 0,
    beyond: int = 0,
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
        beyond: tokens that the target writes behind these, by which the last drafts are judged.

    Raises:
        Usage: a text but no tokenizer; an id that the target does not have; an empty prompt; one that the
            target's template refuses, or that ends beyond its positions.
    """
    encoded = []
    for prompt in prompts:
        ids = _encode(prompt, tokenizer)
        if not ids or max((*ids, *(prompt.completion or ()))) >= vocabulary:
            raise Usage(f"{prompt.where}: empty, or a token id is not below {vocabulary}")
        if positions is not None and len(ids) + room + beyond > positions:
            further = f" and {beyond} by which the last drafts are judged" if beyond else ""
            raise Usage(
                f"{prompt.where}: {len(ids)} tokens and {room} to follow{further} are more than the "
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
