"""One validation: load, generate, measure, compare, judge. The command is a thin shell over this."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from eagle3_interop.convert import api
from eagle3_interop.convert.decide.dequantising import dequantised
from eagle3_interop.convert.decide.loaded import Loaded
from eagle3_interop.convert.read.folders import local_folder
from eagle3_interop.convert.read.tokenizers import compared as compared_tokenizers
from eagle3_interop.schemas.draft import Draft
from eagle3_interop.schemas.engines.releases import newest
from eagle3_interop.schemas.findings import Finding, Refused, Unavailable, Usage, finding
from eagle3_interop.schemas.report import (
    AcceptanceReport,
    AgainstReport,
    AsTrainedReport,
    Files,
    Gate,
    Report,
    SweepRow,
)
from eagle3_interop.validators.accept.acceptance import (
    Acceptance,
    Counter,
    batch_lengths,
    measure_sampled,
)
from eagle3_interop.validators.accept.breakdown import Parts
from eagle3_interop.validators.accept.drafting import CHUNK, draft_steps
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
from eagle3_interop.validators.prove.material import Known, Material, Writing
from eagle3_interop.validators.prove.request import Judge, Judgement, Request, Session
from eagle3_interop.validators.prove.streamed import Streamed, Teacher, open_streams, read_streams
from eagle3_interop.validators.report import provenance
from eagle3_interop.validators.target.prompts import Prompt, bundled_prompts, read_prompts
from eagle3_interop.validators.target.running import DTYPES, Progress, Target, resolve_device
from eagle3_interop.validators.target.source import Source
from eagle3_interop.validators.target.stops import stop_ids
from eagle3_interop.validators.target.texts import decoder, encode, load_tokenizer
from eagle3_interop.validators.target.writing import Order, Texts

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


@dataclass(frozen=True)
class Networks:
    """What is measured on the same features.

    Attributes:
        checkpoint: the draft, as engines compute it.
        source: the one that it should equal.
        trained: the draft as its trainer computed it, where that is another network.
    """

    checkpoint: Network
    source: Network | None = None
    trained: Network | None = None

    @property
    def others(self) -> tuple[Network, ...]:
        """All but the checkpoint's."""
        return tuple(one for one in (self.source, self.trained) if one is not None)


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
    tokenizer = _tokenizer(request)
    shape = request.shape or (judge.shape if judge else None)
    shape = shape or Shape.chain(loaded.reading.draft.speculative_tokens or 3)
    shape.checked().fits(loaded.reading.draft.vocabulary.draft_size)
    drafts = [one.reading.draft for one in (loaded, source) if one is not None]
    shapes = _shapes(request, shape, chains=any(one.parallel is not None for one in drafts))
    if judge:
        with watch("the engine starts and generates", len(prompts) * request.written):
            judge.serve(request, loaded, prompts, shape)
    target: Source
    material: Material
    given = order = None
    made = Texts()
    if request.streams is not None:
        given = _recorded(request, device, drafts, shapes)
        target, material = given.recording, Known(given.recording, given.texts)
        prompts = given.prompts
    else:
        with watch("loading the target", 0):
            target = running = load_target(request, device)
        reach = loaded.target.max_position if loaded.target else None
        order = _order(request, running, prompts, shapes, (tokenizer, reach))
        material = Writing(running, order, made)
    environment = provenance.environment(request, target, str(device), prompts, loaded)
    network = _network(loaded, target, request, device)
    other = None if source is None else _network(source, target, request, device)
    networks = Networks(network, other, _trained(network, loaded))
    teacher = Teacher(given.recording, given.texts, shape.steps) if given else None
    measured = _measure(request, networks, material, shapes, watch, teacher)
    said = [*(given.findings if given else _disagreements(made)), *_tokenizers(loaded)]
    session = Session(
        request,
        loaded,
        network,
        target,
        material.texts,
        shape,
        (*dequantised(loaded).reading.findings, *said),
    )
    sampling = _sampling(session, order, watch) if order and request.temperature else None
    judgement = judge(session, measured.ours[shape]) if judge else None
    against = _against(session, source, measured) if source else None
    gates = (*_gates(session, measured), *(judgement.gates if judgement else ()))
    _check_unchanged(files, loaded)
    parts = Parts(
        measured.ours[shape],
        material.texts,
        [prompt.category for prompt in prompts],
        network.expressible,
        target.vocabulary_size,
    )
    report = Report(
        verdict="pass" if all(gate.passed for gate in gates) else "fail",
        gates=gates,
        findings=(*session.findings, *(judgement.findings if judgement else ())),
        acceptance=_summary(measured.ours[shape], request),
        prompts=parts.rows(),
        breakdown=parts.breakdown(decoder(tokenizer), request.seed),
        as_trained=_as_trained(measured, request),
        against=against,
        sweep=_sweep(request, measured, shapes, judgement),
        sampling=sampling,
        engine=judgement.engine if judgement else None,
        speed=judgement.speed if judgement else None,
        streams=given.report(teacher) if given else None,
        checkpoint=Files(files=files),
        environment={**environment, "texts": provenance.texts_digest(material.texts)},
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


def _order(
    request: Request,
    target: Target,
    prompts: list[Prompt],
    shapes: Sequence[Shape],
    reads: tuple[Any, int | None],
) -> Order:
    """What the target shall write: enough to judge drafts past the end of the scored tokens.

    Args:
        request: the user's.
        target: that writes.
        prompts: as they were given.
        shapes: what is drafted.
        reads: the target's tokenizer, and how many positions it reaches.
    """
    extra = max(MIN_DEPTH, *(one.steps for one in shapes))
    tokenizer, positions = reads
    encoded = encode(
        prompts,
        tokenizer,
        target.vocabulary_size,
        positions=positions,
        room=request.written,
        beyond=extra,
    )
    given = [prompt.completion for prompt in prompts]
    return Order(encoded, request.written, extra, given, _stops(request, target))


def _tokenizer(request: Request) -> Any:  # noqa: ANN401
    """The target's; beside recordings, which are token ids, none is fetched from the Hub only to show texts."""
    if request.streams is not None and local_folder(request.target) is None:
        return None
    path = provenance.target_folder(request.target)
    return load_tokenizer(path, trust_remote_code=request.trust_remote_code)


def _tokenizers(loaded: Loaded) -> list[Finding]:
    """What the tokenizers beside draft and target do differently."""
    if loaded.target is None:
        return []
    return list(compared_tokenizers(loaded.checkpoint.folder, loaded.target.folder, fetch=True))


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


def _trained(network: Network, loaded: Loaded) -> Network | None:
    """The network that the trainer's own code computed, where that is another one."""
    trainer = loaded.trainer
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


def _disagreements(made: Texts) -> list[Finding]:
    if not made.disagreements:
        return []
    message = f"{made.disagreements} of {made.given} given tokens are not this target's own greedy choice."
    return [finding("given-texts", "--prompts", message)]


def _measure(
    request: Request,
    networks: Networks,
    material: Material,
    shapes: Sequence[Shape],
    watch: Watch,
    teacher: Teacher | None = None,
) -> Measured:
    """Everything that one pass of the target over its texts tells.

    Args:
        request: the user's.
        networks: what is measured.
        material: texts and features.
        shapes: what is counted; the first is the one that was asked for.
        watch: shows progress.
        teacher: of recordings.
    """
    network, others = networks.checkpoint, networks.others
    shape = shapes[0]
    # Recorded texts go on as far as was asked: beyond the draft only where there is a source to compare.
    further = networks.source is not None or teacher is None
    depth = max(MIN_DEPTH, shape.steps) if further else shape.steps
    compared = [LogitComparison(network, one, depth) for one in others]
    final = any(one.draft.fc is None for one in (network, *others))
    counters = [
        {one: Counter(one, steps=one is shape) for one in shapes},
        *({shape: Counter(shape)} for _ in others),
    ]
    right = torch.zeros(shape.steps, 2)
    with watch(material.title, material.tokens) as progress:
        taps = _taps((network, *others))
        for batch in material.batches(taps, final=final, progress=progress):
            for one, counted in zip((network, *others), counters, strict=True):
                for drafted, lengths in batch_lengths(one, batch, list(counted)).items():
                    counted[drafted].add(batch, lengths)
            for logits in compared:
                logits.add(batch)
            if teacher is not None:
                teacher.add(network, batch)
            if request.agreement:
                right += _right(network, batch, shape.steps)
    texts = material.texts
    ours, *rest = [{one: count.result(texts) for one, count in x.items()} for x in counters]
    share = (right[:, 0] / right[:, 1].clamp(min=1)).tolist() if request.agreement else []
    return Measured(
        ours,
        rest[0] if networks.source else {},
        compared[0] if networks.source else None,
        (rest[-1][shape], compared[-1]) if networks.trained else None,
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


def _sampling(session: Session, order: Order, watch: Watch) -> dict[str, Any]:
    """Acceptance along texts that the target samples."""
    request, depth = session.request, session.shape.steps
    assert isinstance(session.target, Target)  # noqa: S101 - `Request.check` refuses recordings here
    wanted = replace(
        order, extra=depth, given=None, temperature=request.temperature, seed=request.seed
    )
    sampled = Writing(session.target, wanted, reach=depth)
    taps = session.network.draft.fed_taps(session.target.depth)
    with watch("sampling", sampled.tokens) as progress:
        found = measure_sampled(
            session.network,
            session.target,
            sampled.batches(taps, final=True, progress=progress),
            depth,
            request.temperature,
        )
    return found.summary(request.seed)


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


def _sweep(
    request: Request, measured: Measured, shapes: Sequence[Shape], judgement: Judgement | None
) -> tuple[SweepRow, ...] | None:
    if len(shapes) == 1:
        return None
    found = [measured.ours[shape] for shape in shapes]
    speed = judgement.speed if judgement else None
    trees = judgement is None or newest(judgement.engine["engine"]).trees
    return rows(found, request.cost_ratio, request.seed, speed, trees=trees)
