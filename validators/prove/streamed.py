"""A validation on recorded hidden states: the texts and the target come from a folder."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from eagle3_interop.convert.read.strict_json import loads
from eagle3_interop.schemas.findings import Finding, Refused, Usage, finding
from eagle3_interop.schemas.streams import StreamsReport, TeacherForced
from eagle3_interop.validators.accept.drafting import CHUNK, Batch, draft_steps
from eagle3_interop.validators.network.reference import Network
from eagle3_interop.validators.prove.request import Request
from eagle3_interop.validators.target.prompts import Prompt
from eagle3_interop.validators.target.recorded import RecordedText, Recording
from eagle3_interop.validators.target.recordings import open_recordings
from eagle3_interop.validators.target.running import DTYPES
from eagle3_interop.validators.target.stops import stop_ids
from eagle3_interop.validators.target.tables import TargetTables


@dataclass
class Teacher:
    """Counts, step by step, how often the draft's token is the target's choice, whatever the text says.

    Attributes:
        recording: knows the choices.
        texts: that are counted.
        depth: steps.
    """

    recording: Recording
    texts: Sequence[RecordedText]
    depth: int
    _counts: Tensor = field(init=False, repr=False)

    def __post_init__(self) -> None:
        """Begin at zero: by step, positions, right ones, right among the draft's tokens, right all along."""
        self._counts = torch.zeros(self.depth, 4, dtype=torch.float64)

    @torch.no_grad()
    def add(self, network: Network, batch: Batch) -> None:
        """Count every start of a batch at every step."""
        chosen = self._choices(batch)
        counted = self._counted(batch)
        ids = network.weights.target_ids
        known = None if ids is None else _members(ids, network.draft.vocabulary.target_size)
        along = torch.ones_like(batch.valid)
        for step, out in enumerate(draft_steps(network, batch, self.depth)):
            at = batch.starts + 1 + step
            use = batch.valid & counted.gather(1, at)
            proposed = torch.full_like(batch.starts, -1)
            proposed[batch.valid] = network.propose(out.normed[batch.valid], CHUNK)
            choice = chosen.gather(1, at)
            right = proposed == choice
            along &= right
            within = right
            if known is not None and ids is not None and self._distribution:
                within = right | (proposed == self._within(batch, at, use & ~known[choice], ids))
            self._counts[step] += torch.tensor(
                [float((x & use).sum()) for x in (use, right, within, along)], dtype=torch.float64
            )

    @property
    def _distribution(self) -> bool:
        return self.recording.recordings.last != "absent"

    def _choices(self, batch: Batch) -> Tensor:
        """[B, L], the target's choice after each position; -1 beyond a text's end."""
        found = torch.full_like(batch.tokens, -1)
        for row, index in enumerate(batch.indices):
            choice = self.recording.choices(self.texts[index].number)[: found.shape[1]]
            found[row, : len(choice)] = choice
        return found

    def _counted(self, batch: Batch) -> Tensor:
        found = torch.zeros_like(batch.tokens, dtype=torch.bool)
        for row, index in enumerate(batch.indices):
            one = self.recording.recordings.texts[self.texts[index].number]
            mask = one.counted[: found.shape[1]].to(found.device)
            found[row, : len(mask)] = mask
        return found

    def _within(self, batch: Batch, at: Tensor, where: Tensor, ids: Tensor) -> Tensor:
        """The target's choice among the draft's tokens, where it is asked for; else -1."""
        found = torch.full_like(batch.starts, -1)
        for row, index in enumerate(batch.indices):
            if not bool(where[row].any()):
                continue
            one = self.recording.recordings.texts[self.texts[index].number]
            places = at[row][where[row]]
            final = self.recording.final(one, int(places.max()) + 1)[places]
            found[row, where[row]] = self.recording.held.choices(final, ids)
        return found

    def result(self) -> TeacherForced:
        """The shares."""
        positions, *right = self._counts.t().tolist()
        shares = [
            tuple(got / max(n, 1) for got, n in zip(x, positions, strict=True)) for x in right
        ]
        return TeacherForced(
            positions=tuple(map(int, positions)),
            accuracy=shares[0],
            in_draft_vocabulary=shares[1] if self._distribution else None,
            chained=shares[2],
            choice="distribution" if self._distribution else "text",
        )


def _members(ids: Tensor, size: int) -> Tensor:
    found = torch.zeros(size, dtype=torch.bool, device=ids.device)
    found[ids] = True
    return found


@dataclass
class Streamed:
    """What a validation takes from a folder of recordings.

    Attributes:
        recording: in the target's place.
        texts: that are measured on.
        findings: said while reading.
    """

    recording: Recording
    texts: tuple[RecordedText, ...]
    findings: tuple[Finding, ...]

    @property
    def prompts(self) -> list[Prompt]:
        """What was continued, with the category that was recorded."""
        held = self.recording.recordings.texts
        return [
            Prompt(token_ids=text.prompt, category=held[text.number].category)
            for text in self.texts
        ]

    @property
    def starts(self) -> tuple[int, int]:
        """Start positions that count as an engine would count them, and all."""
        counted = sum(scored - 1 for text in self.texts for _, scored in text.walks)
        return counted, sum(len(text.starts) for text in self.texts)

    def report(self, teacher: Teacher | None) -> StreamsReport:
        """Where it came from, and the teacher-forced figures."""
        counted, starts = self.starts
        found = {"counted_starts": counted, "starts": starts}
        forced = None if teacher is None else teacher.result()
        return self.recording.report().model_copy(update={**found, "teacher_forced": forced})


def open_streams(request: Request, device: torch.device) -> Recording:
    """The recordings that a request names, beside its target's tables.

    Raises:
        Usage: no recordings there, or of unknown layers.
        Refused: damaged, or of another target.
        Unavailable: the disk or the Hub failed.
    """
    assert request.streams is not None  # noqa: S101
    held = TargetTables.open(
        request.target,
        device=device,
        dtype=DTYPES[request.dtype],
        trust_remote_code=request.trust_remote_code,
    )
    recordings = open_recordings(request.streams, held, request.stream_taps)
    if wrong := [tap for tap in recordings.taps if not 0 <= tap <= held.depth]:
        raise Usage(f"--stream-taps: tap {wrong[0]}; this target has taps 0 to {held.depth}.")
    return Recording(recordings, held)


def read_streams(request: Request, recording: Recording, depth: int) -> Streamed:
    """The texts of a folder, as far as drafts of `depth` tokens can be judged on them.

    Raises:
        Usage: deeper or longer than what was recorded.
        Refused: nothing in it can be counted.
    """
    stops = _stops(recording.held) if request.stop_at_eos else ()
    texts = tuple(recording.texts(request.new_tokens, depth, stops))
    found = Streamed(recording, texts, recording.recordings.findings)
    counted, starts = found.starts
    if counted < 1:
        message = f"no {depth} tokens in a row are the target's own choice in any of its texts."
        raise Refused([finding("streams-not-greedy", request.streams or "", message)])
    if counted < starts:
        share = f"{counted} of {starts} start positions ({100 * counted / starts:.1f} %) count."
        said = finding("not-all-greedy", request.streams or "", share)
        found.findings = (*found.findings, said)
    return found


def _stops(held: TargetTables) -> tuple[int, ...]:
    """End-of-sequence ids of the target.

    Raises:
        Usage: it names none.
    """
    folder = held.checkpoint.folder
    found = None
    if "generation_config.json" in folder.sizes:
        text = folder.path("generation_config.json").read_text(encoding="utf-8")
        found = loads(text).get("eos_token_id")
    return stop_ids(found, getattr(held.config, "eos_token_id", None))
