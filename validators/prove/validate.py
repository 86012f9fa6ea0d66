"""One validation: load, generate, measure, compare, judge. The command is a thin shell over this."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from eagle3_interop.convert import api
from eagle3_interop.convert.decide.dequantising import dequantised
from eagle3_interop.convert.decide.loaded import Loaded
from eagle3_interop.schemas.draft import Draft
from eagle3_interop.schemas.findings import Finding, Refused, Unavailable, Usage, finding
from eagle3_interop.schemas.report import (
    AcceptanceReport,
    AgainstReport,
    AsTrainedReport,
    Files,
    Gate,
    PromptRow,
    Report,
)
from eagle3_interop.validators.accept.acceptance import (
    Acceptance,
    Counter,
    batch_lengths,
    measure_sampled,
)
from eagle3_interop.validators.accept.drafting import CHUNK, batches, draft_steps
from eagle3_interop.validators.accept.shape import Shape
from eagle3_interop.validators.accept.sweep import grid, rows
from eagle3_interop.validators.memory import enough_memory
from eagle3_interop.validators.network.reference import Network
from eagle3_interop.validators.network.switched import Switched
from eagle3_interop.validators.network.weights import Weights
from eagle3_interop.validators.prove.agreement import (
    MIN_DEPTH,
    LogitComparison,
    against_report,
    comparison_gates,
    where_they_part,
)
from eagle3_interop.validators.prove.request import Judge, Request, Session
from eagle3_interop.validators.prove.streamed import Streamed, Teacher, open_streams, read_streams
from eagle3_interop.validators.report import provenance
from eagle3_interop.validators.target.prompts import Prompt, bundled_prompts, read_prompts
from eagle3_interop.validators.target.running import DTYPES, Progress, Target, resolve_device
from eagle3_interop.validators.target.source import Source
from eagle3_interop.validators.target.stops import stop_ids
from eagle3_interop.validators.target.texts import Text, encode, load_tokenizer, write_texts

Watch = Callable[[str, int], AbstractContextManager[Progress | None]]
"""Shows that something of so many tokens is being done."""


@dataclass
class Measured:
    """What was counted.

    Attributes:
        ours: counters of the checkpoint, by shape.
        theirs: of the source.
        logits: comparison of the two.
        trained: counters of the network as trained, and its logits compared, where it is another one.
        agreement: by depth, the share of starts at which the draft's token is the target's.
    """

    ours: dict[Shape, Acceptance] = field(default_factory=dict)
    theirs: dict[Shape, Acceptance] = field(default_factory=dict)
    logits: LogitComparison | None = None
    trained: tuple[Acceptance, LogitComparison] | None = None
    agreement: tuple[float, ...] = ()


@contextmanager
def unwatched(_title: str, _total: int) -> Iterator[None]:
    """Nobody watches."""
    yield None


def validate(
    request: Request, *, judge: Judge | None = None, watch: Watch = unwatched
) -> tuple[Report, Measured]:
    """Validate a checkpoint.

    Args:
        request: the user's.
        judge: a real engine.
        watch: shows progress.

    Returns:
        The report, and the counters that it was made of.

    Raises:
        Refused: a folder holds what cannot be validated, or the wrong pair.
        Usage: wrong options, prompts or device.
        Unavailable: disk, network or memory failed.
    """
    request.check()
    with enough_memory():
        return _validate(request, judge, watch)


def _validate(request: Request, judge: Judge | None, watch: Watch) -> tuple[Report, Measured]:
    device = resolve_device(request.device)
    if request.streams is not None and judge is not None:
        raise Usage("--engine and --server need the target itself: leave --streams out.")
    prompts = _prompts(request)
    options = api.Options(
        target=request.target,
        trainer=request.trainer,
        allow=request.allow,
        ranges=request.streams is not None,
    )
    # What an engine counts is measured, whoever trained the draft.
    loaded = api.load(request.checkpoint, "auto", options, served=True)
    source = api.load(request.against, "auto", options, served=True) if request.against else None
    files = provenance.digests(loaded.checkpoint)
    shape = request.shape or (judge.shape if judge else None)
    shape = shape or Shape.chain(loaded.reading.draft.speculative_tokens or 3)
    shape.checked().fits(loaded.reading.draft.vocabulary.draft_size)
    drafts = [one.reading.draft for one in (loaded, source) if one is not None]
    shapes = _shapes(request, shape, chains=any(one.parallel is not None for one in drafts))
    if judge:
        with watch("the engine starts and generates", len(prompts) * request.written):
            judge.serve(request, loaded, prompts, shape)
    target: Source
    texts: tuple[Text, ...]
    encoded: list[tuple[int, ...]] = []
    given = None
    if request.streams is not None:
        given = _recorded(request, device, drafts, shapes)
        target, texts, said = given.recording, given.texts, list(given.findings)
        prompts = [Prompt(token_ids=text.prompt) for text in texts]
    else:
        with watch("loading the target", 0):
            target = load_target(request, device)
        reach = loaded.target.max_position if loaded.target else None
        texts, said, encoded = _written(request, target, prompts, shapes, watch, reach)
    environment = provenance.environment(request, target, str(device), prompts, loaded)
    session = Session(
        request,
        loaded,
        _network(loaded, target, request, device),
        target,
        texts,
        shape,
        (*dequantised(loaded).reading.findings, *said),
    )
    other = _network(source, target, request, device) if source else None
    teacher = Teacher(given.recording, given.texts, shape.steps) if given else None
    measured = _measure(session, other, shapes, watch, teacher)
    sampling = _sampling(session, encoded, watch) if request.temperature else None
    judgement = judge(session, measured.ours[shape]) if judge else None
    against = _against(session, source, measured) if source else None
    gates = (*_gates(session, measured), *(judgement.gates if judgement else ()))
    _check_unchanged(files, loaded)
    report = Report(
        verdict="pass" if all(gate.passed for gate in gates) else "fail",
        gates=gates,
        findings=(*session.findings, *(judgement.findings if judgement else ())),
        acceptance=_summary(measured.ours[shape], request),
        prompts=tuple(PromptRow(**row) for row in measured.ours[shape].by_prompt()),
        as_trained=_as_trained(measured, request),
        against=against,
        sweep=_sweep(request, measured, shapes),
        sampling=sampling,
        engine=judgement.engine if judgement else None,
        streams=given.report(teacher) if given else None,
        checkpoint=Files(files=files),
        environment=environment,
    )
    return report, measured


def _prompts(request: Request) -> list[Prompt]:
    if request.streams is not None:
        return []
    return bundled_prompts() if request.prompts is None else read_prompts(request.prompts)


def _recorded(
    request: Request, device: torch.device, drafts: Sequence[Draft], shapes: Sequence[Shape]
) -> Streamed:
    """The recorded texts, if they hold what these drafts read, as deep as they are asked for."""
    recording = open_streams(request, device)
    recording.check_taps(drafts)
    deepest = max(one.steps for one in shapes)
    recording.check_depth(deepest)
    return read_streams(request, recording, max(deepest, MIN_DEPTH if len(drafts) > 1 else 1))


def _written(
    request: Request,
    target: Target,
    prompts: list[Prompt],
    shapes: Sequence[Shape],
    watch: Watch,
    positions: int | None,
) -> tuple[tuple[Text, ...], list[Finding], list[tuple[int, ...]]]:
    """Texts that the target writes now, what is to be said of them, and the prompts' token ids."""
    extra = max(MIN_DEPTH, *(one.steps for one in shapes))
    path = provenance.target_folder(request.target)
    tokenizer = load_tokenizer(path, trust_remote_code=request.trust_remote_code)
    encoded = encode(
        prompts,
        tokenizer,
        target.vocabulary_size,
        positions=positions,
        room=request.written + extra,
    )
    stops = _stops(request, target)
    with watch("generating", len(encoded) * (request.written + extra)) as progress:
        made = write_texts(
            target,
            encoded,
            request.written,
            extra,
            given=[prompt.completion for prompt in prompts],
            stop_ids=stops,
            progress=progress,
        )
    return made.texts, _disagreements(made.disagreements, made.given), encoded


def _check_unchanged(files: Mapping[str, str], loaded: Loaded) -> None:
    """A report is about files that were the same before the networks were read and after."""
    now = provenance.digests(loaded.checkpoint)
    if changed := sorted(name for name in files if now[name] != files[name]):
        raise Unavailable(
            f"{loaded.checkpoint.path}: {', '.join(changed)} changed while it was validated; "
            "validate again, and leave the folder alone until that is done"
        )


def load_target(request: Request, device: torch.device) -> Target:
    """The target; what a local folder lacks is its own fault, not the outside world's."""
    path = provenance.target_folder(request.target)
    try:
        return Target.load(
            path,
            device=device,
            dtype=DTYPES[request.dtype],
            trust_remote_code=request.trust_remote_code,
        )
    except Unavailable as error:
        if not Path(path).is_dir():
            raise
        message = str(error).partition("\n")[0]
        raise Refused([finding("not-a-target", request.target, message)]) from error


def _network(loaded: Loaded, target: Source, request: Request, device: torch.device) -> Network:
    loaded = dequantised(loaded)
    weights = Weights.read(
        loaded.reading,
        loaded.checkpoint,
        device=device,
        dtype=DTYPES[request.dtype],
        tables=target.tables,
    )
    return Network(loaded.reading.draft, weights)


def _trained(session: Session) -> Network | None:
    """The network that the trainer's own code computed, where that is another one."""
    network, trainer = session.network, session.loaded.trainer
    if trainer is None:
        return None
    draft = trainer.draft(network.draft)
    if draft.network == network.draft.network and not trainer.switches:
        return None
    return Switched(draft, network.weights, trainer.switches)


def _as_trained(measured: Measured, request: Request) -> AsTrainedReport | None:
    if measured.trained is None:
        return None
    acceptance, logits = measured.trained
    return AsTrainedReport(acceptance=_summary(acceptance, request), logits=logits.result())


def _shapes(request: Request, shape: Shape, *, chains: bool) -> list[Shape]:
    """What is measured: the one asked for, and what a sweep or a cost ratio adds.

    Args:
        request: what was asked.
        shape: of the report's own figures.
        chains: a draft proposes all tokens in one pass, of which no engine makes a tree.

    Raises:
        Usage: a tree was asked for, and cannot be.
    """
    if chains and not shape.is_chain:
        message = "this draft proposes all tokens in one pass (P-EAGLE), and no engine makes a tree of them"
        raise Usage(f"--tree: {message}. Give --num-draft-tokens.")
    shapes = [shape]
    if request.sweep:
        shapes += [one for one in grid(shape) if one.is_chain or not chains]
    elif request.cost_ratio is not None and shape.is_chain:
        shapes += [Shape.chain(steps) for steps in range(1, shape.steps)]
    return list(dict.fromkeys(shapes))


def _stops(request: Request, target: Target) -> list[int]:
    if not request.stop_at_eos:
        return []
    generation = getattr(target.model, "generation_config", None)
    named = (getattr(one, "eos_token_id", None) for one in (generation, target.config))
    return list(stop_ids(*named))


def _disagreements(count: int, given: int) -> list[Finding]:
    if not count:
        return []
    message = f"{count} of {given} given tokens are not this target's own greedy choice."
    return [finding("given-texts", "--prompts", message)]


def _measure(
    session: Session,
    other: Network | None,
    shapes: Sequence[Shape],
    watch: Watch,
    teacher: Teacher | None = None,
) -> Measured:
    """Everything that one teacher-forced pass of the target tells."""
    texts, shape = session.texts, session.shape
    trained = _trained(session)
    others = [one for one in (other, trained) if one is not None]
    networks = [session.network, *others]
    depth = max(MIN_DEPTH, shape.steps)
    compared = [LogitComparison(session.network, one, depth) for one in others]
    taps = _taps(networks)
    final = any(network.draft.fc is None for network in networks)
    counters = [{one: Counter(one, texts) for one in shapes}]
    counters += [{shape: Counter(shape, texts)} for _ in others]
    right = torch.zeros(shape.steps, 2)
    with watch("measuring", sum(text.starts[-1] + 1 for text in texts if text.starts)) as progress:
        for batch in batches(session.target, texts, taps, final=final, progress=progress):
            for network, counted in zip(networks, counters, strict=True):
                for one, lengths in batch_lengths(network, batch, list(counted)).items():
                    counted[one].add(batch, lengths)
            for logits in compared:
                logits.add(batch)
            if teacher is not None:
                teacher.add(session.network, batch)
            if session.request.agreement:
                right += _right(session.network, batch, shape.steps)
    ours, *rest = [{one: count.result() for one, count in x.items()} for x in counters]
    share = (right[:, 0] / right[:, 1].clamp(min=1)).tolist() if session.request.agreement else []
    return Measured(
        ours,
        rest[0] if other else {},
        compared[0] if other else None,
        (rest[-1][shape], compared[-1]) if trained else None,
        tuple(share),
    )


def _taps(networks: Sequence[Network]) -> list[int]:
    return sorted({tap for one in networks for tap in one.draft.network.taps or ()})


@torch.no_grad()
def _right(network: Network, batch: Any, depth: int) -> torch.Tensor:  # noqa: ANN401
    """[depth, 2]: starts at which a depth's token is the text's, and all starts."""
    counts = torch.zeros(depth, 2)
    for step, out in enumerate(draft_steps(network, batch, depth)):
        proposed = network.propose(out.normed[batch.valid], CHUNK)
        hits = proposed == batch.text(2 + step)[batch.valid]
        counts[step] = torch.tensor([float(hits.sum()), float(hits.numel())])
    return counts


def _sampling(session: Session, encoded: Sequence[tuple[int, ...]], watch: Watch) -> dict[str, Any]:
    """Acceptance along texts that the target samples."""
    request, depth = session.request, session.shape.steps
    assert isinstance(session.target, Target)  # noqa: S101 - `Request.check` refuses recordings here
    with watch("sampling", len(encoded) * (request.written + depth)) as progress:
        texts = write_texts(
            session.target,
            encoded,
            request.written,
            depth,
            temperature=request.temperature,
            seed=request.seed,
            stop_ids=_stops(request, session.target),
            progress=progress,
        ).texts
    sampled = measure_sampled(session.network, session.target, texts, depth, request.temperature)
    return sampled.summary(request.seed)


def _against(session: Session, source: Loaded, measured: Measured) -> AgainstReport:
    assert measured.logits is not None  # noqa: S101
    gates = comparison_gates(
        measured.logits, measured.ours[session.shape], measured.theirs[session.shape], None
    )
    same = all(gate.passed for gate in gates)
    parting = None if same else where_they_part(measured.logits, session.target, session.texts)
    return against_report(
        (session.loaded, source),
        measured.logits,
        _summary(measured.theirs[session.shape], session.request),
        parting,
    )


def _gates(session: Session, measured: Measured) -> Iterator[Gate]:
    request, acceptance = session.request, measured.ours[session.shape]
    if measured.logits is not None:
        theirs = measured.theirs[session.shape]
        yield from comparison_gates(measured.logits, acceptance, theirs, request.max_logit_diff)
    if request.min_accept_length is not None:
        wanted, got = request.min_accept_length, acceptance.accept_length
        yield Gate(name="min-accept-length", wanted=wanted, got=got, passed=got >= wanted)


def _summary(acceptance: Acceptance, request: Request) -> AcceptanceReport:
    return AcceptanceReport(**acceptance.summary(request.seed))


def _sweep(request: Request, measured: Measured, shapes: Sequence[Shape]) -> Any:  # noqa: ANN401
    if len(shapes) == 1:
        return None
    return rows([measured.ours[shape] for shape in shapes], request.cost_ratio, request.seed)
