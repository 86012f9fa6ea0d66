"""Recorded hidden states as the streams that a diagnosis searches: what was recorded, and nothing else.

Each read maps the files and gathers one stream of the texts that are searched; the products of fc are kept by
`Fusion`, as of streams that were captured.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from eagle3_interop.validators.diagnose.wiring import NORMED, RESCALED, STREAM
from eagle3_interop.validators.target.captured import Streams
from eagle3_interop.validators.target.recorded import RecordedText, Recording
from eagle3_interop.validators.target.recordings import Recorded
from eagle3_interop.validators.target.source import Source

MEMORY = 1 << 30
"""Bytes that one stream of the texts may take."""

UNLIKELY = -30.0
"""Logit of a token of which nothing was recorded, below the likeliest."""


@dataclass
class Replayed(Streams):
    """The streams of a recording's texts.

    Attributes:
        recording: where they lie.
    """

    recording: Recording | None = None
    _lengths: list[int] = field(default_factory=list, repr=False)

    @property
    def _from(self) -> Recording:
        assert self.recording is not None  # noqa: S101 - `replay` set it
        return self.recording

    @property
    def count(self) -> int:
        """Positions in all."""
        return sum(self._lengths)

    @property
    def width(self) -> int:
        """Of a stream."""
        return self._from.hidden_size

    @property
    def untried(self) -> tuple[int, ...]:
        """Taps of the target that were not recorded."""
        return tuple(tap for tap in range(self.depth + 1) if tap not in self._from.taps)

    def reads(self, tap: int) -> list[str]:
        """The stream where it was recorded; at the end also the target's output after its norm."""
        found = [STREAM] if tap in self._from.taps else []
        if tap == self.depth and self._from.recordings.last != "absent":
            found.append(NORMED)
        return [*found, RESCALED] if tap == 0 and found else found

    def read(self, tap: int, read: str, count: int) -> Tensor:
        """The first `count` positions of a stream, as a block of fc could read it."""
        if read == NORMED:
            return self.ends(count)
        found = self._gathered(lambda one, n: self._from.stream(one, tap, n), count)
        return found * self.width**0.5 if read == RESCALED else found

    def ends(self, count: int) -> Tensor:
        """The target's output after its final norm, at the first `count` positions."""
        return self._gathered(self._from.final, count)

    def _gathered(self, take: Callable[[Recorded, int], Tensor], count: int) -> Tensor:
        parts, left = [], count
        for text, length in zip(self.texts, self._lengths, strict=True):
            if left <= 0:
                break
            assert isinstance(text, RecordedText)  # noqa: S101
            parts.append(take(self._from.recordings.texts[text.number], min(length, left)))
            left -= length
        return torch.cat(parts)

    def likely(self, target: Source, first: int, last: int) -> Tensor:
        """[last - first, V], logits of the target's distribution, as far as it was recorded."""
        recordings = self._from.recordings
        parts = []
        for text, begin, length in zip(self.texts, self.offsets, self._lengths, strict=True):
            low, high = max(first, begin) - begin, min(last, begin + length) - begin
            if low >= high:
                continue
            assert isinstance(text, RecordedText)  # noqa: S101
            one = recordings.texts[text.number]
            if recordings.last != "absent":
                parts.append(target.logits(self._from.final(one, high, low)))
            elif one.top is not None:
                ids, scores = one.top()
                parts.append(self._spread(ids[low:high], scores[low:high]))
            else:
                told = torch.full((high - low, 1), -1)
                after = one.tokens[low + 1 : high + 1]
                told[: len(after), 0] = after
                parts.append(self._spread(told, torch.zeros(high - low, 1)))
        return torch.cat(parts)

    def _spread(self, ids: Tensor, scores: Tensor) -> Tensor:
        """Log-probabilities of a few tokens over the vocabulary; an id of -1 is none."""
        found = torch.full((len(ids), self._from.vocabulary_size + 1), UNLIKELY)
        found.scatter_(1, ids.remainder(found.shape[1]), scores.clamp(min=UNLIKELY).float())
        return found[:, :-1].to(self._from.device)


def replay(recording: Recording, texts: Sequence[RecordedText]) -> Replayed:
    """The streams of some texts, lying in this order."""
    lengths = [len(text) for text in texts]
    offsets = [sum(lengths[:i]) for i in range(len(texts))]
    empty = torch.empty(0, recording.hidden_size)
    return Replayed(
        texts, offsets, recording.depth, empty, {}, recording=recording, _lengths=lengths
    )


def as_many(texts: Sequence[RecordedText], width: int) -> list[RecordedText]:
    """Texts spread over all, as many as a diagnosis holds."""
    room = MEMORY // (width * 4)
    total = sum(map(len, texts))
    if total <= room:
        return list(texts)
    share = room / total
    wanted = max(1, int(len(texts) * share))
    chosen = [texts[i * len(texts) // wanted] for i in range(wanted)]
    while len(chosen) > 1 and sum(map(len, chosen)) > room:
        chosen.pop()
    return chosen


def spans(taps: Sequence[int]) -> str:
    """Numbers, in words: ``4, 6 to 9``."""
    found: list[list[int]] = []
    for tap in sorted(taps):
        if found and tap == found[-1][1] + 1:
            found[-1][1] = tap
        else:
            found.append([tap, tap])
    return ", ".join(str(a) if a == b else f"{a} to {b}" for a, b in found)
