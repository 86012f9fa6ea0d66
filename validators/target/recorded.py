"""Recorded hidden states in place of a target that runs: mapped, checked, and given out a batch at a time.

Three forms are read: ours (``streams.json``), what speculators' trainer keeps (``hs_*.safetensors``), and
SpecForge's (``data_*.ckpt``, ``.ckpt.gz``). A folder becomes texts and a `RecordedTarget`, which answers as a
running target does.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from eagle3_interop.schemas.draft import Draft
from eagle3_interop.schemas.findings import Finding, Refused, Usage, finding
from eagle3_interop.schemas.streams import StreamsReport
from eagle3_interop.validators.network.reference import Features
from eagle3_interop.validators.network.weights import Tables, finite
from eagle3_interop.validators.target.recordings import Recorded, Recordings
from eagle3_interop.validators.target.tables import TargetTables
from eagle3_interop.validators.target.texts import Text

CHUNK = 512
"""Positions whose choice is computed at once."""


@dataclass(frozen=True)
class RecordedText(Text):
    """A text whose hidden states lie in a folder.

    Attributes:
        number: of the recording.
        runs: first of `starts`, and scored tokens, of each stretch that is the target's own choice; None where
            all of it is.
    """

    number: int = 0
    runs: tuple[tuple[int, int], ...] | None = None

    @property
    def walks(self) -> tuple[tuple[int, int], ...]:
        """The stretches that an engine would generate so."""
        return ((0, self.scored),) if self.runs is None else self.runs


@dataclass
class Recording:
    """A folder of recordings beside its target's tables: it answers as a running target does.

    Attributes:
        recordings: the folder.
        held: the target's tables.
    """

    recordings: Recordings
    held: TargetTables
    _choices: dict[int, Tensor] = field(default_factory=dict, repr=False)

    @property
    def config(self) -> Any:  # noqa: ANN401
        """The target's text config."""
        return self.held.config

    @property
    def device(self) -> torch.device:
        """Where features go."""
        return self.held.device

    @property
    def depth(self) -> int:
        """Decoder layers, L."""
        return self.held.depth

    @property
    def hidden_size(self) -> int:
        """Width of the residual stream."""
        return self.held.hidden_size

    @property
    def vocabulary_size(self) -> int:
        """Rows of the embedding table."""
        return self.held.vocabulary_size

    def tables(self) -> Tables:
        """The embedding and head tables as stored."""
        return self.held.tables()

    def logits(self, final: Tensor) -> Tensor:
        """The target's logits."""
        return self.held.logits(final)

    @cached_property
    def taps(self) -> tuple[int, ...]:
        """What can be fed: what was recorded, the embedding table's rows, and the end where it was kept."""
        found = set(self.recordings.taps)
        if not self.held.scales_embeddings:
            found.add(0)
        if self.recordings.last == "pre-norm":
            found.add(self.depth)
        return tuple(sorted(found))

    def features_of(
        self, texts: Sequence[Text], tokens: Tensor, taps: Sequence[int], *, final: bool = True
    ) -> Features:
        """The recorded streams of some texts' first positions; zeros where a text is shorter."""
        length, recordings = tokens.shape[1], self.recordings
        shape = (len(texts), length, self.hidden_size)
        caught = {tap: self._new(shape) for tap in taps}
        last = recordings.last != "absent" and final
        end = self._new(shape if last else (len(texts), length, 0))
        for row, text in enumerate(texts):
            assert isinstance(text, RecordedText)  # noqa: S101 - no other has hidden states here
            one = recordings.texts[text.number]
            count = min(length, one.count)
            for tap in taps:
                caught[tap][row, :count] = self.stream(one, tap, count)
            if last:
                end[row, :count] = self.final(one, count)
        return Features(caught, end)

    def _new(self, shape: tuple[int, ...]) -> Tensor:
        return torch.zeros(shape, device=self.device, dtype=self.held.dtype)

    def stream(self, one: Recorded, tap: int, count: int) -> Tensor:
        """The stream of a text at a tap, at its first positions.

        Raises:
            Refused: it was not recorded, or is not all numbers.
        """
        recordings = self.recordings
        if tap in recordings.taps:
            found = one.slices()[:count, recordings.taps.index(tap)]
        elif tap == self.depth and recordings.last == "pre-norm":
            found = one.last()[:count]
        elif tap == 0 and not self.held.scales_embeddings:
            return self.held.embedded(one.tokens[:count])
        else:
            raise Refused([self.not_recorded((tap,))])
        return self._sound(one, f"tap {tap}", found)

    def final(self, one: Recorded, count: int, first: int = 0) -> Tensor:
        """The last hidden state after the final norm, at positions `first` to `count`.

        Raises:
            Refused: it is not all numbers.
        """
        found = self._sound(one, "the last hidden state", one.last()[first:count])
        if self.recordings.last == "pre-norm":
            with torch.no_grad():
                found = self.held.final_norm[0](found)
        return found

    def _sound(self, one: Recorded, what: str, values: Tensor) -> Tensor:
        found = values.to(self.device, self.held.dtype)
        if not finite(found):
            where = f"{self.recordings.source}/{one.file}"
            raise Refused(
                [finding("streams-not-finite", where, f"{what} holds NaN or infinite values.")]
            )
        return found

    def choices(self, number: int) -> Tensor:
        """[tokens - 1], what the target itself would say after each position of a text.

        Recordings that the target wrote greedily are their own choice; of others the head says it, from the
        last hidden state.
        """
        one = self.recordings.texts[number]
        if self.recordings.greedy or self.recordings.last == "absent":
            return one.tokens[1:].to(self.device)
        if number not in self._choices:
            parts = [
                self.held.choices(self.final(one, min(first + CHUNK, one.count - 1), first))
                for first in range(0, one.count - 1, CHUNK)
            ]
            self._choices[number] = torch.cat(parts)
        return self._choices[number]

    def texts(
        self, new_tokens: int | None, depth: int, stop_ids: Sequence[int] = ()
    ) -> list[RecordedText]:
        """The texts, as far as drafts of `depth` tokens can be judged on them.

        Args:
            new_tokens: tokens of each to score; None for as many as were recorded.
            depth: longest draft.
            stop_ids: at which a text's scored part ends.

        Raises:
            Usage: longer or deeper than what was recorded.
        """
        recordings = self.recordings
        if recordings.manifest is None:
            if new_tokens is not None:
                raise Usage(
                    f"--max-new-tokens: the texts of {recordings.source} are as long as they are."
                )
            made = [
                self._in_runs(number, one, depth) for number, one in enumerate(recordings.texts)
            ]
            return [text for text in made if text is not None]
        wanted = new_tokens or recordings.manifest.new_tokens
        if wanted > recordings.manifest.new_tokens:
            raise Usage(
                f"--max-new-tokens {wanted}: {recordings.source} holds texts of "
                f"{recordings.manifest.new_tokens} new tokens; record longer ones."
            )
        self.check_depth(depth)
        return [
            _whole(number, one, wanted, stop_ids) for number, one in enumerate(recordings.texts)
        ]

    def check_depth(self, depth: int) -> None:
        """Whether drafts of so many tokens can be judged.

        Raises:
            Usage: they reach beyond what was recorded.
        """
        manifest = self.recordings.manifest
        if manifest is not None and depth > manifest.lookahead:
            raise Usage(
                f"{depth} draft tokens in a row (--num-draft-tokens, --tree, --sweep): {self.recordings.source} was "
                f"recorded to judge {manifest.lookahead}; record again with --lookahead {depth}."
            )

    def _in_runs(self, number: int, one: Recorded, depth: int) -> RecordedText | None:
        """A text that somebody else wrote: counted where its next tokens are the target's own choice."""
        first = one.first
        scored = one.count - first - depth + 1
        if scored < 2:
            return None
        choice = self.choices(number)[first - 1 : one.count - 1].cpu()
        follows = (choice == one.tokens[first : one.count]) & one.counted[first : one.count]
        runs = tuple(
            (begin, length - depth + 1)
            for begin, length in stretches(follows.tolist())
            if length - depth + 1 >= 2
        )
        tokens = one.tokens.tolist()
        return RecordedText(
            tuple(tokens[:first]),
            tuple(tokens[first : one.count]),
            scored,
            number=number,
            runs=runs,
        )

    def check_taps(self, drafts: Iterable[Draft]) -> None:
        """Refuse a draft that reads what was not recorded.

        Raises:
            Refused: with its taps and those of the recording.
        """
        for draft in drafts:
            wanted = set(draft.fed_taps(self.depth))
            if missing := sorted(wanted - set(self.taps)):
                raise Refused([self.not_recorded(missing)])
            if draft.fc is None and self.recordings.last == "absent":
                message = "the draft reads the target's last hidden state, which was not recorded."
                raise Refused([finding("taps-not-recorded", self.recordings.source, message)])

    def not_recorded(self, missing: Sequence[int]) -> Finding:
        """That the draft reads taps which are not there."""
        message = (
            f"the draft reads tap{'s' * (len(missing) > 1)} {', '.join(map(str, missing))}; recorded are "
            f"{', '.join(map(str, self.taps))}."
        )
        return finding("taps-not-recorded", self.recordings.source, message)

    def report(self) -> StreamsReport:
        """Where all this came from."""
        held = self.recordings
        return StreamsReport(
            source=held.source,
            by=held.by,
            target=held.manifest.target if held.manifest else None,
            dtype=held.dtype,
            taps=held.taps,
            last=held.last,
            basis=held.basis,
            final_norm=self.held.final_norm[1] if held.last == "pre-norm" else None,
            texts=len(held.texts),
            tokens=sum(one.count for one in held.texts),
        )


def stretches(follows: Sequence[bool]) -> list[tuple[int, int]]:
    """First place and length of every run of True."""
    found, begin = [], None
    for place, good in enumerate([*follows, False]):
        if good and begin is None:
            begin = place
        elif not good and begin is not None:
            found.append((begin, place - begin))
            begin = None
    return found


def _whole(number: int, one: Recorded, wanted: int, stop_ids: Sequence[int]) -> RecordedText:
    tokens = one.tokens.tolist()
    completion = tuple(tokens[one.first :])
    ends = (i + 1 for i, token in enumerate(completion[:wanted]) if token in stop_ids)
    return RecordedText(tuple(tokens[: one.first]), completion, next(ends, wanted), number=number)
