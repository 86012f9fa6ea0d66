"""One diagnosis: load, let the target write, capture, search, judge, report. The command is a thin shell."""

import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from math import inf
from pathlib import Path
from typing import Any

import torch

from eagle3_interop.convert import api
from eagle3_interop.convert.decide.loaded import Loaded
from eagle3_interop.convert.read.folders import local_path
from eagle3_interop.convert.write.places import check_folder
from eagle3_interop.schemas.findings import Finding, Refused, Unavailable, Usage, finding
from eagle3_interop.validators.accept.shape import Shape
from eagle3_interop.validators.diagnose.rewire import Rewritten, write_wiring
from eagle3_interop.validators.diagnose.scoring import DEPTHS, Evaluator, order_texts
from eagle3_interop.validators.diagnose.suspect import subject_of
from eagle3_interop.validators.diagnose.verdict import (
    FEWEST,
    NO_MATCH,
    Diagnosis,
    diagnose,
    heat_map,
)
from eagle3_interop.validators.diagnose.wiring import Subject, Wiring, distance
from eagle3_interop.validators.memory import enough_memory
from eagle3_interop.validators.prove.request import Request
from eagle3_interop.validators.prove.streamed import open_streams, read_streams
from eagle3_interop.validators.prove.validate import Watch, load_target, unwatched
from eagle3_interop.validators.report import provenance
from eagle3_interop.validators.target.captured import MEMORY, capture
from eagle3_interop.validators.target.prompts import Prompt, bundled_prompts, read_prompts
from eagle3_interop.validators.target.recorded import RecordedText
from eagle3_interop.validators.target.replayed import as_many, replay, spans
from eagle3_interop.validators.target.running import DTYPES, Progress, Target, resolve_device
from eagle3_interop.validators.target.source import Source
from eagle3_interop.validators.target.texts import encode, load_tokenizer
from eagle3_interop.validators.target.writing import Texts, write_texts

NAMED = 8
"""Equivalent wirings that are named one by one, the nearest to the best first."""


@dataclass(frozen=True)
class Prepared:
    """Everything that a search needs.

    Attributes:
        loaded: the checkpoint.
        target: the target.
        prompts: that it continued.
        evaluator: of the checkpoint's weights.
        findings: said on the way.
        streams: where recorded hidden states came from; None where the target ran.
    """

    loaded: Loaded
    target: Source
    prompts: list[Prompt]
    evaluator: Evaluator
    findings: tuple[Finding, ...]
    streams: dict[str, Any] | None = None

    @property
    def subject(self) -> Subject:
        """The weights."""
        return self.evaluator.subject


@dataclass(frozen=True)
class Answer:
    """What the command shows.

    Attributes:
        diagnosis: the search's.
        report: its JSON.
        findings: everything said.
        heat: for the page, where it was asked for.
        failure: why the checkpoint that was asked for could not be written, if the disk failed.
    """

    diagnosis: Diagnosis
    report: dict[str, Any]
    findings: tuple[Finding, ...]
    heat: dict[tuple[int, str], list[float | None]]
    failure: str = ""


_NOT_WRITTEN = {
    "configured-is-best": "no other wiring fits better than the configured one.",
    "no-match": "no wiring that was tried fits these weights to this target.",
}
"""Why, by the verdict."""


def run(
    request: Request,
    *,
    budget: float | None = None,
    write: Path | None = None,
    heat: bool = False,
    watch: Watch = unwatched,
    searching: Callable[[], AbstractContextManager[Progress | None]] | None = None,
) -> Answer:
    """Diagnose a checkpoint.

    Args:
        request: checkpoint, target, prompts, device, dtype, seed.
        budget: seconds for all of it; loading and the target's pass are never cut short.
        write: a folder for the best wiring.
        heat: compute the heat map of the page as well.
        watch: shows progress over tokens.
        searching: shows progress over wirings.

    Raises:
        Refused: a folder holds what cannot be diagnosed, or the wrong pair.
        Usage: wrong options, prompts, device or place to write to, which is found before the search.
        Unavailable: disk, network or memory failed.
    """
    request.check()
    if budget is not None and not 0 <= budget < inf:
        raise Usage("--budget: give a number of seconds, or leave it out for no limit.")
    if write is not None:
        write = local_path(write)
        check_folder(write, (request.checkpoint, request.target, request.prompts))
    began = time.monotonic()
    with enough_memory("fewer prompts"):
        prepared = prepare(request, watch=watch)
        if isinstance(prepared.target, Target):
            prepared.target.release_layers()
        left = None if budget is None else max(0.0, budget - (time.monotonic() - began))
        with (searching or (lambda: unwatched("", 0)))() as progress:
            diagnosis = diagnose(
                prepared.evaluator,
                known=prepared.subject.known,
                budget=left,
                progress=progress,
            )
        limit = None if left is None else max(0.0, left - diagnosis.seconds)
        best = diagnosis.best.wiring
        heated = heat_map(prepared.evaluator, best, limit) if heat else {}
    prepared.evaluator.streams.close()
    done, failure = Rewritten(None, ()), ""
    if write is not None:
        if diagnosis.verdict != "better-wiring":
            why = _NOT_WRITTEN[diagnosis.verdict]
            said = finding("nothing-written", "--write", f"Nothing was written: {why}")
            done = Rewritten(None, (said,))
        elif reason := diagnosis.unsupported:
            said = finding("wiring-not-supported", "--write", f"Nothing was written: {reason}")
            done = Rewritten(None, (said,))
        else:
            done, failure = _written(request, prepared.subject, best, write)
    remarks = [*prepared.findings, *_said(diagnosis, write), *done.findings]
    everything = tuple(dict.fromkeys(remarks))
    report = _report(request, prepared, diagnosis, done.output, everything)
    return Answer(diagnosis, report, everything, heated, failure)


def _written(
    request: Request, subject: Subject, wiring: Wiring, output: Path
) -> tuple[Rewritten, str]:
    """What became of writing, and what failed: the answer of a long search outlives a full disk."""
    try:
        done = write_wiring(
            request.checkpoint,
            request.target,
            subject,
            wiring,
            output,
            trainer=request.trainer,
            allow=request.allow,
        )
    except (Refused, Unavailable, Usage) as error:
        said = finding("wiring-not-written", "--write", str(error))
        return Rewritten(None, (said,)), str(error)
    return done, ""


def _report(
    request: Request,
    prepared: Prepared,
    diagnosis: Diagnosis,
    written: Path | None,
    said: Sequence[Finding],
) -> dict[str, Any]:
    device = str(prepared.target.device)
    return {
        **diagnosis.report(request.seed),
        "written": None if written is None else str(written),
        "findings": [item.model_dump() for item in said],
        "streams": prepared.streams,
        "environment": provenance.environment(
            request, prepared.target, device, prepared.prompts, prepared.loaded
        ),
    }


def prepare(request: Request, *, watch: Watch = unwatched, memory: int = MEMORY) -> Prepared:
    """Load a pair, let the target write its texts, and capture its streams in one pass."""
    device = resolve_device(request.device)
    options = api.Options(
        target=request.target,
        trainer=request.trainer,
        allow=request.allow,
        ranges=request.streams is not None,
    )
    loaded = api.load(request.checkpoint, "auto", options, diagnosing=True)
    steps = Shape.chain(loaded.reading.draft.speculative_tokens or 3).checked().steps
    if request.streams is not None:
        return _replayed(request, loaded, device, steps)
    prompts = bundled_prompts() if request.prompts is None else read_prompts(request.prompts)
    with watch("loading the target", 0):
        target = load_target(request, device)
    reach = loaded.target.max_position if loaded.target else None
    made = generate(request, target, prompts, max(DEPTHS, steps), watch, reach)
    ordered, sieve = order_texts(made.texts)
    with watch("capturing", sum(map(len, ordered))) as progress:
        streams = capture(target, ordered, memory=memory, progress=progress)
    subject = subject_of(loaded, target, device=device, dtype=DTYPES[request.dtype])
    said = list(loaded.reading.findings)
    if made.disagreements:
        message = f"{made.disagreements} of {made.given} given tokens are not this target's own."
        said.append(finding("given-texts", "--prompts", message))
    if streams.on_disk:
        said.append(finding("streams-on-disk", "target", f"{streams.depth + 1} depths."))
    if not subject.known:
        message = f"the search began from {subject.configured.report()['taps']}."
        said.append(finding("wiring-not-configured", "config.json", message))
    evaluator = Evaluator(subject, target, streams, sieve, steps)
    return Prepared(loaded, target, prompts, evaluator, tuple(said))


def _replayed(request: Request, loaded: Loaded, device: torch.device, steps: int) -> Prepared:
    """The same from a folder of recordings: no target runs."""
    recording = open_streams(request, device)
    found = read_streams(request, recording, max(DEPTHS, steps))
    texts = as_many(found.texts, recording.hidden_size)
    ordered, sieve = order_texts(texts)
    streams = replay(recording, [text for text in ordered if isinstance(text, RecordedText)])
    subject = subject_of(
        loaded, recording, device=device, dtype=DTYPES[request.dtype], recorded=recording.taps
    )
    where = request.streams or ""
    said = [*loaded.reading.findings, *found.findings]
    if streams.untried:
        message = f"taps {spans(streams.untried)} were not recorded, nor what layers hand on without the residual."
        said.append(finding("layers-not-tried", where, message))
    if len(texts) < len(found.texts):
        message = f"{len(texts)} of {len(found.texts)} texts."
        said.append(finding("streams-in-part", where, message))
    if not subject.known:
        message = f"the search began from {subject.configured.report()['taps']}."
        said.append(finding("wiring-not-configured", "config.json", message))
    evaluator = Evaluator(subject, recording, streams, sieve, steps)
    prompts = [Prompt(token_ids=text.prompt) for text in texts]
    return Prepared(
        loaded,
        recording,
        prompts,
        evaluator,
        tuple(said),
        recording.report().model_dump(mode="json"),
    )


def generate(
    request: Request,
    target: Target,
    prompts: list[Prompt],
    extra: int,
    watch: Watch,
    positions: int | None = None,
) -> Texts:
    """The target's own continuations."""
    path = provenance.target_folder(request.target)
    tokenizer = load_tokenizer(path, trust_remote_code=request.trust_remote_code)
    encoded = encode(
        prompts,
        tokenizer,
        target.vocabulary_size,
        positions=positions,
        room=request.written,
        beyond=extra,
    )
    with watch("generating", len(encoded) * (request.written + extra)) as progress:
        return write_texts(
            target,
            encoded,
            request.written,
            extra,
            given=[prompt.completion for prompt in prompts],
            progress=progress,
        )


def _said(diagnosis: Diagnosis, write: Path | None = None) -> list[Finding]:
    """The findings of a diagnosis; who has asked for a better checkpoint needs no advice to do so."""
    said = []
    if diagnosis.verdict == "better-wiring":
        fix = None if write is None else ""
        said.append(finding("wiring-differs", "config.json", changed(diagnosis), fix=fix))
    if diagnosis.texts < FEWEST:
        texts = f"{diagnosis.texts} {'text' if diagnosis.texts == 1 else 'texts'}."
        said.append(finding("few-texts", "prompts", texts))
    said += [finding("wiring-doubted", "verdict", doubt) for doubt in diagnosis.doubts]
    if diagnosis.verdict == "no-match":
        said.append(finding("wiring-none", "weights", answer(diagnosis)))
    if diagnosis.equivalent:
        said.append(finding("wiring-equivalent", "wiring", _equivalents(diagnosis)))
    if not diagnosis.finished:
        said.append(finding("search-cut-short", "--budget", f"{diagnosis.tried} wirings tried."))
    return said


def _equivalents(diagnosis: Diagnosis) -> str:
    """The wirings that cannot be told from the best, the nearest by name."""
    best = diagnosis.best.wiring
    nearest = sorted(diagnosis.equivalent, key=lambda one: distance(one.wiring, best))
    named = [", ".join(one.wiring.changes(best)) for one in nearest[:NAMED]]
    more = len(nearest) - len(named)
    rest = f"; and {more} more, most of them several of these at once" if more else ""
    return f"{'; '.join(named)}{rest}: all are in the JSON."


def changed(diagnosis: Diagnosis) -> str:
    """What the best wiring changes, in words."""
    if diagnosis.configured is None:
        return f"taps {list(diagnosis.best.wiring.taps)}."
    return "; ".join(diagnosis.best.wiring.changes(diagnosis.configured.wiring)) + "."


def answer(diagnosis: Diagnosis, seed: int = 0) -> str:
    """The diagnosis in a sentence or two."""
    best, tried = diagnosis.best, diagnosis.tried
    if diagnosis.verdict == "no-match":
        if best.accept_length <= NO_MATCH:
            why = f"no wiring of {tried} tried gives more than {NO_MATCH} tokens a step"
        else:
            why = (
                f"no wiring of {tried} tried fits better than a draft that ignores its input "
                f"({best.by_depth[0]:.2f} against {diagnosis.constant:.2f} nats)"
            )
        if diagnosis.untried:
            return (
                f"{why}: these weights do not belong to this target, or read taps that were not recorded "
                f"({spans(diagnosis.untried)})."
            )
        return f"{why}: these weights do not belong to this target."
    doubts = "".join(f" {doubt}" for doubt in diagnosis.doubts)
    if diagnosis.verdict == "configured-is-best":
        return f"the configured wiring is the best of {tried} tried: {_length(best, seed)}.{doubts}"
    before = (
        ""
        if diagnosis.configured is None
        else f"as configured: {_length(diagnosis.configured, seed)}. "
    )
    return (
        f"{before}Best of {tried} tried: {changed(diagnosis)[:-1]}: {_length(best, seed)}.{doubts}"
    )


def _length(result: Any, seed: int) -> str:  # noqa: ANN401
    low, high = result.interval(seed)
    if low == high:
        return f"{result.accept_length:.2f}"
    return f"{result.accept_length:.2f} ± {(high - low) / 2:.2f}"
