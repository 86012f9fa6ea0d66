"""Counters taken apart: by prompt, category and context, and against what the draft's vocabulary can say."""

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass

from eagle3_interop.schemas.breakdown import (
    Breakdown,
    CategoryRow,
    ContextRow,
    MarkedText,
    MissedToken,
    VocabularyRow,
)
from eagle3_interop.schemas.intervals import accept_length_interval
from eagle3_interop.schemas.report import PromptRow
from eagle3_interop.validators.accept.acceptance import Acceptance, walk
from eagle3_interop.validators.target.texts import Text

MOST_TEXTS, MOST_TOKENS, MOST_MISSED = 8, 256, 20
"""Texts that are shown, tokens of each, and tokens that are listed."""

Decode = Callable[[Sequence[int]], str]
"""Token ids as text."""


@dataclass(frozen=True)
class Parts:
    """What is taken apart.

    Attributes:
        acceptance: counters, with their steps.
        texts: that were counted.
        categories: of each.
        can: target tokens that the draft can propose.
        target_size: tokens of the target.
    """

    acceptance: Acceptance
    texts: Sequence[Text]
    categories: Sequence[str | None]
    can: Collection[int]
    target_size: int

    def rows(self) -> tuple[PromptRow, ...]:
        """The counters of each text."""
        of = self.acceptance
        each = zip(of.prompts, of.positions, self.texts, self.categories, strict=True)
        return tuple(
            PromptRow(
                steps=steps,
                accepted=accepted,
                per_position=positions,
                category=category,
                tokens=sum(scored for _, scored in text.walks),
                accept_length=_length(steps, accepted),
                inexpressible=sum(token not in self.can for token in _scored(text)),
            )
            for (steps, accepted), positions, text, category in each
        )

    def breakdown(self, decode: Decode, seed: int) -> Breakdown:
        """The counters taken apart.

        Args:
            decode: the target's tokenizer.
            seed: of the intervals.
        """
        rows = self.rows()
        return Breakdown(
            categories=tuple(_categories(rows, seed)),
            contexts=tuple(self._contexts()),
            vocabulary=self._vocabulary(rows),
            missed=tuple(self._missed(decode)),
            texts=tuple(self._marked(rows, decode)),
        )

    def _contexts(self) -> Iterator[ContextRow]:
        taken: dict[int, list[int]] = {}
        for text, steps in zip(self.texts, self.acceptance.steps, strict=True):
            for place, accepted in steps:
                taken.setdefault((len(text.prompt) + place).bit_length() - 1, []).append(accepted)
        for power, counts in sorted(taken.items()):
            yield ContextRow(
                first=2**power,
                last=2 ** (power + 1) - 1,
                steps=len(counts),
                accepted=sum(counts),
                accept_length=_length(len(counts), sum(counts)),
            )

    def _vocabulary(self, rows: Sequence[PromptRow]) -> VocabularyRow:
        shape = self.acceptance.shape
        return VocabularyRow(
            draft_size=len(self.can),
            target_size=self.target_size,
            tokens=self.acceptance.tokens,
            inexpressible=sum(row.inexpressible or 0 for row in rows),
            accept_length_bound=bound(self.texts, self.can, min(shape.steps, shape.tokens - 1)),
        )

    def _missed(self, decode: Decode) -> Iterator[MissedToken]:
        missed: Counter[int] = Counter()
        for text, steps in zip(self.texts, self.acceptance.steps, strict=True):
            ends = (place + taken for place, taken in steps if taken < self.acceptance.shape.steps)
            missed.update(text.completion[end] for end in ends if end < text.scored)
        there = Counter(token for text in self.texts for token in text.completion[: text.scored])
        for token, count in sorted(missed.items(), key=lambda x: (-x[1], x[0]))[:MOST_MISSED]:
            yield MissedToken(
                token=token,
                text=decode([token]),
                missed=count,
                tokens=there[token],
                expressible=token in self.can,
            )

    def _marked(self, rows: Sequence[PromptRow], decode: Decode) -> Iterator[MarkedText]:
        worst = sorted(
            (index for index, row in enumerate(rows) if row.steps),
            key=lambda index: (rows[index].accept_length or 0, index),
        )
        for index in worst[:MOST_TEXTS]:
            text = self.texts[index]
            ids = text.completion[: min(text.scored, MOST_TOKENS)]
            shown = decode(ids)
            runs = (
                (_offset(ids, place, decode), _offset(ids, place + taken, decode))
                for place, taken in self.acceptance.steps[index]
                if taken and place < len(ids)
            )
            accepted = tuple((a, min(b, len(shown))) for a, b in runs if a < min(b, len(shown)))
            whole = len(ids) == text.scored
            yield MarkedText(prompt=index, text=shown, accepted=accepted, whole=whole)


def _offset(ids: Sequence[int], place: int, decode: Decode) -> int:
    """Where a token begins in the text of all: what the tokens before it decode to is as long."""
    # A character whose last bytes are still to come is written as U+FFFD until then.
    return len(decode(ids[:place]).rstrip("\ufffd"))


def bound(texts: Sequence[Text], can: Collection[int], steps: int) -> float:
    """The largest accept length of any draft that proposes these tokens alone, up to `steps` a step.

    Whoever proposes every token that it can needs the fewest steps; but the last step of a text counts in full,
    however little of it was still asked for. So one step more can pay, if the last one then begins at the last
    token; more than one never does.
    """
    choices = []
    for text in texts:
        lengths = _reach(text, can, steps)
        for first, scored in text.walks:
            if scored < 2:
                continue
            taken = walk(lengths[first:], scored)
            fewest = (len(taken), sum(taken))
            last = lengths[first + scored - 2]
            more = (len(taken) + 1, scored - 1 + last - (len(taken) + 1))
            choices.append((fewest, more if len(taken) <= scored - 2 else fewest))
    rate, better = 0.0, -1.0
    chosen = [fewest for fewest, _ in choices]
    while chosen and rate > better:
        better = rate
        rate = sum(accepted for _, accepted in chosen) / sum(count for count, _ in chosen)
        chosen = [max(pair, key=lambda one: one[1] - rate * one[0]) for pair in choices]
    return 1 + max(rate, 0.0)


def _reach(text: Text, can: Collection[int], steps: int) -> list[int]:
    """By start, how many of the next tokens a draft could propose."""
    found, run = [], 0
    wanted = text.completion[1 : text.scored + steps - 1]
    for token in reversed(wanted):
        run = min(run + 1, steps) if token in can else 0
        found.append(run)
    return found[::-1][: len(text.starts)]


def _scored(text: Text) -> Iterator[int]:
    for first, scored in text.walks:
        yield from text.completion[first : first + scored]


def _categories(rows: Sequence[PromptRow], seed: int) -> Iterator[CategoryRow]:
    named = dict.fromkeys(row.category for row in rows)
    for category in named if any(named) else ():
        ours = [row for row in rows if row.category == category]
        steps, accepted = (sum(x) for x in zip(*((r.steps, r.accepted) for r in ours), strict=True))
        yield CategoryRow(
            category=category,
            prompts=len(ours),
            accept_length=_length(steps, accepted),
            interval=accept_length_interval([(row.steps, row.accepted) for row in ours], seed),
            steps=steps,
            accepted=accepted,
            tokens=sum(row.tokens or 0 for row in ours),
        )


def _length(steps: int, accepted: int) -> float:
    return 1 + accepted / steps if steps else 1.0
