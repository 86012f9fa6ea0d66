"""Drafts with their target: validate, diagnose, record, report. Torch is imported when one of the first three is called."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

from eagle3_interop import words
from eagle3_interop.convert.write.places import check_apart, check_folder
from eagle3_interop.schemas.comparison import Comparison
from eagle3_interop.schemas.findings import Unavailable, Usage
from eagle3_interop.schemas.report import Report
from eagle3_interop.schemas.streams import StreamsManifest
from eagle3_interop.validators.accept.shape import Shape
from eagle3_interop.validators.asking import check_alone, check_request, require_extra
from eagle3_interop.validators.engines.options import check_options, check_timing
from eagle3_interop.validators.prove.request import DIAGNOSED, Request
from eagle3_interop.validators.record.wish import Wish
from eagle3_interop.words import Dtype, Name

Engine = Literal["vllm", "sglang"]


@words.checked
def validate(
    checkpoint: Name,
    target: Name,
    *,
    against: Name | None = None,
    prompts: str | Path | None = None,
    num_draft_tokens: int | None = None,
    tree: tuple[int, int, int] | None = None,
    sweep: bool = False,
    max_new_tokens: int | None = None,
    stop_at_eos: bool = False,
    temperature: float = 0.0,
    cost_ratio: float | None = None,
    streams: str | Path | None = None,
    stream_taps: Sequence[int] | None = None,
    trainer: str | None = None,
    allow: Sequence[str] = (),
    device: str = "auto",
    dtype: Dtype = "float32",
    seed: int = 0,
    engine: Engine | None = None,
    engine_python: str | Path | None = None,
    engine_args: Sequence[str] = (),
    server: str | None = None,
    baseline_server: str | None = None,
    batches: Sequence[int] | None = None,
    speed: bool | None = None,
    min_accept_length: float | None = None,
    max_logit_diff: float | None = None,
    trust_remote_code: bool = False,
) -> Report:
    """How many tokens of a draft its target accepts: ``eagle3-validate``.

    Args:
        checkpoint: folder or Hub id of the draft.
        target: folder or Hub id of the target.
        against: a gate: a draft, in any layout, that must be the same network.
        prompts: a file; the package's own, unless given.
        num_draft_tokens: K, proposed a step; what the draft recommends, else 3, unless given.
        tree: steps, top-k and tokens of a draft tree, its root included.
        sweep: also measure a grid of chains and trees.
        max_new_tokens: that the target writes after each prompt; 128, unless given.
        stop_at_eos: end each text at its end-of-sequence token.
        temperature: also measure acceptance on texts sampled at it, if above 0.
        cost_ratio: time of a draft step divided by that of a target step.
        streams: a folder of recorded hidden states, in place of a running target.
        stream_taps: taps of recordings that do not name theirs.
        trainer: whose network is measured (``--trainer``).
        allow: codes of what may be lost (``--allow``).
        device: ``auto``, ``cpu``, ``cuda`` or ``cuda:N``.
        dtype: in which target and draft run.
        seed: of sampling and intervals.
        engine: a gate: start this engine, and require the same counters.
        engine_python: its Python.
        engine_args: its own arguments, each as ``name=value``.
        server: a gate: the same, by a running server.
        baseline_server: the same server without the draft, for the speed-up.
        batches: texts at a time at which the engine is timed; 1, unless given.
        speed: time the engine, which starts once more, without the draft; yes, unless given.
        min_accept_length: a gate.
        max_logit_diff: a gate, in place of rounding; needs ``against``.
        trust_remote_code: run Python files that come with the target.

    Returns:
        The report; its ``verdict`` is ``fail`` where a gate failed.

    Raises:
        Refused: a folder cannot be understood exactly, or the two are no pair.
        Usage: options that do not fit.
        Unavailable: disk, network, memory or engine failed, or the extra is not installed.
    """
    if tree is not None and num_draft_tokens is not None:
        raise Usage("give num_draft_tokens for a chain or tree, not both.")
    if num_draft_tokens is not None and num_draft_tokens < 1:
        raise Usage("num_draft_tokens: at least 1.")
    shape = None if num_draft_tokens is None else Shape.chain(num_draft_tokens)
    shape = shape if tree is None else Shape(*tree).checked()
    request = Request(
        checkpoint=words.model(checkpoint),
        target=words.model(target),
        against=words.model(against),
        prompts=words.path(prompts),
        shape=shape,
        sweep=sweep,
        new_tokens=max_new_tokens,
        stop_at_eos=stop_at_eos,
        temperature=temperature,
        cost_ratio=cost_ratio,
        device=device,
        dtype=words.dtype(dtype),
        seed=seed,
        min_accept_length=min_accept_length,
        max_logit_diff=max_logit_diff,
        trust_remote_code=trust_remote_code,
        streams=words.text(streams),
        stream_taps=None if stream_taps is None else tuple(stream_taps),
        trainer=trainer,
        allow=tuple(allow),
        speed=speed is not False,
        batches=(1,) if batches is None else tuple(batches),
    )
    check_request(request)
    check_timing(speed, batches is not None, engine or server)
    asked = (
        engine,
        words.text(engine_python),
        list(engine_args),
        server,
        shape,
        baseline_server,
    )
    check_options(*asked)
    check_alone(request.streams, engine or server)
    require_extra()
    from eagle3_interop.validators.engines.judge import judge_of
    from eagle3_interop.validators.prove import validate as proving

    return proving.validate(request, judge=judge_of(*asked))[0]


@words.checked
def diagnose(
    checkpoint: Name,
    target: Name,
    *,
    prompts: str | Path | None = None,
    max_new_tokens: int | None = None,
    streams: str | Path | None = None,
    stream_taps: Sequence[int] | None = None,
    trainer: str | None = None,
    allow: Sequence[str] = (),
    budget: float | None = None,
    write: str | Path | None = None,
    device: str = "auto",
    dtype: Dtype = "float32",
    seed: int = 0,
    trust_remote_code: bool = False,
) -> dict[str, Any]:
    """Which wiring these weights were trained for: ``eagle3-diagnose``.

    Args:
        checkpoint: folder or Hub id of the draft.
        target: folder or Hub id of the target.
        prompts: a file; the package's own, unless given.
        max_new_tokens: that the target writes after each prompt; 64, unless given.
        streams: a folder of recorded hidden states, in place of a running target.
        stream_taps: taps of recordings that do not name theirs.
        trainer: whose network the search starts from (``--trainer``).
        allow: codes of what ``write`` may lose (``--allow``).
        budget: seconds for all of it.
        write: a folder for the better wiring, if one is found.
        device: ``auto``, ``cpu``, ``cuda`` or ``cuda:N``.
        dtype: in which target and draft run.
        seed: of the intervals.
        trust_remote_code: run Python files that come with the target.

    Returns:
        The JSON of a diagnosis.

    Raises:
        Refused: a folder cannot be diagnosed, or the two are no pair.
        Usage: options that do not fit.
        Unavailable: disk, network or memory failed, or the extra is not installed.
    """
    request = Request(
        checkpoint=words.model(checkpoint),
        target=words.model(target),
        prompts=words.path(prompts),
        new_tokens=max_new_tokens if max_new_tokens or streams else DIAGNOSED,
        device=device,
        dtype=words.dtype(dtype),
        seed=seed,
        trust_remote_code=trust_remote_code,
        streams=words.text(streams),
        stream_taps=None if stream_taps is None else tuple(stream_taps),
        trainer=trainer,
        allow=tuple(allow),
    )
    place = words.path(write)
    if place is not None:
        reads = (request.checkpoint, request.target, request.prompts, request.streams)
        check_folder(place, reads)
    check_request(request)
    require_extra()
    from eagle3_interop.validators.diagnose.run import run

    answer = run(request, budget=budget, write=place)
    if answer.failure:
        raise Unavailable(answer.failure)
    return answer.report


@words.checked
def record(
    target: Name,
    out: str | Path,
    *,
    prompts: str | Path | None = None,
    max_new_tokens: int = 128,
    lookahead: int = 16,
    taps: Sequence[int] | Literal["all"] | None = None,
    device: str = "auto",
    dtype: Dtype = "float32",
    seed: int = 0,
    engine: Engine | None = None,
    engine_python: str | Path | None = None,
    engine_args: Sequence[str] = (),
    server: str | None = None,
    last_state: bool = True,
    trust_remote_code: bool = False,
) -> StreamsManifest:
    """Record a target's hidden states once: ``eagle3-record``.

    Args:
        target: folder or Hub id.
        out: the folder to fill.
        prompts: a file; the package's own, unless given.
        max_new_tokens: N, tokens of each text that count.
        lookahead: M, further tokens of each text: the longest draft that can be measured.
        taps: to record; ``all``, or the default triple and its neighbours, unless given.
        device: of a target that transformers runs.
        dtype: of the target and of the recordings.
        seed: greedy texts do not depend on it.
        engine: that records, in its own environment; transformers here, unless given.
        engine_python: its Python.
        engine_args: its own arguments, each as ``name=value``.
        server: a running SGLang server that was started for it.
        last_state: of SGLang: start twice, to record the last hidden state too.
        trust_remote_code: run Python files that come with the target.

    Returns:
        The manifest, as ``streams.json`` holds it.

    Raises:
        Refused: the target lacks what recordings are measured with.
        Usage: options that do not fit, or a place that is taken.
        Unavailable: disk, network, memory or engine failed, or the extra is not installed.
    """
    from eagle3_interop.validators.record.asking import check_engine, recorder_of, tapped

    folder = Path(out)
    check_apart(folder, (target, prompts, engine_python))
    named = words.model(target)
    wish = Wish(
        target=named,
        out=folder,
        prompts=words.path(prompts),
        new_tokens=max_new_tokens,
        lookahead=lookahead,
        taps=tapped(named) if taps == "all" else None if taps is None else tuple(map(int, taps)),
        device=device,
        dtype=words.dtype(dtype),
        seed=seed,
        trust_remote_code=trust_remote_code,
    )
    check_request(wish)
    asked = (engine, words.text(engine_python), list(engine_args), server)
    check_engine(*asked, last_state=last_state)
    require_extra()
    from eagle3_interop.validators.record import record as recording

    recorder = recorder_of(wish, *asked, last_state=last_state)
    return recording.record(wish, recorder, say=lambda _text: None)


@words.checked
def report(*reports: Report | str | Path) -> Comparison:
    """Reports side by side, each against the first: ``eagle3-report``.

    Args:
        reports: of `validate`, or files that ``eagle3-validate --json`` wrote; at least one.

    Returns:
        The comparison, as ``eagle3-report --json`` writes it; a report that is no file is named by its number.

    Raises:
        Refused: a file is no report.
        Usage: there is no such file, or none was given.
        Unavailable: a file cannot be read.
    """
    from eagle3_interop.validators.report.comparing import compare, read_report

    if not reports:
        raise Usage("give at least one report.")
    return compare(
        [
            (str(one), read_report(Path(one))) if isinstance(one, str | Path) else (f"[{i}]", one)
            for i, one in enumerate(reports)
        ]
    )
