"""The verdict of a real engine: does it run this draft as the reference does?"""

from dataclasses import dataclass, field, replace
from typing import Any

from transformers import GenerationConfig

from eagle3_interop.convert.decide.loaded import Loaded
from eagle3_interop.convert.decide.releases import verdict, why
from eagle3_interop.convert.serve.command import Engine, needs_plugin
from eagle3_interop.schemas.engines.releases import of_itself
from eagle3_interop.schemas.findings import Finding, Unavailable, finding
from eagle3_interop.schemas.report import Gate, Speed
from eagle3_interop.validators.accept.acceptance import Acceptance
from eagle3_interop.validators.accept.shape import Shape
from eagle3_interop.validators.engines.answers import TITLES, Generator, Served, Work
from eagle3_interop.validators.engines.miswirings import Cause, likeliest
from eagle3_interop.validators.engines.options import check_options
from eagle3_interop.validators.engines.prediction import Prediction, figures, predict, summary
from eagle3_interop.validators.engines.running import RunningServer
from eagle3_interop.validators.engines.speed import Plan, plan, speed, widths
from eagle3_interop.validators.prove.request import Judgement, Request, Session
from eagle3_interop.validators.report import provenance
from eagle3_interop.validators.target.prompts import Prompt
from eagle3_interop.validators.target.running import Target, load_config
from eagle3_interop.validators.target.stops import stop_ids
from eagle3_interop.validators.target.texts import Text, encode, load_tokenizer
from eagle3_interop.validators.target.writing import Texts, write_texts

GATE = "engine-counters"

MOSTLY = 0.5
"""Share of timed texts below which a server without the draft seems to serve something else: rounding parts some."""

FOREIGN = 0.05
"""Share of an engine's tokens beyond which its text is not this target's."""


@dataclass
class EngineJudge:
    """Lets an engine generate, and holds its counters against the reference's.

    Attributes:
        generator: the engine.
        work: what it was asked, once it was.
        served: what it answered.
        told: what there is to say of its release, and of its speed.
        speed: what it took, where that was asked.
    """

    generator: Generator
    work: Work | None = field(default=None, init=False)
    served: Served | None = field(default=None, init=False)
    told: list[Finding] = field(default_factory=list, init=False)
    speed: Speed | None = field(default=None, init=False)

    @property
    def shape(self) -> Shape | None:
        """What a running server drafts a step."""
        return self.generator.shape

    def serve(self, request: Request, loaded: Loaded, prompts: list[Prompt], shape: Shape) -> None:
        """Let the engine generate; its memory is free again before the reference takes its own.

        Raises:
            Usage: a prompt cannot be encoded, or the engine has no such shape.
            Refused: the engine is older than every release that is known.
            Unavailable: the engine failed.
        """
        version = self.generator.version
        if version is not None:
            of_itself(self.generator.engine, version)
        path = provenance.target_folder(request.target)
        tokenizer = load_tokenizer(path, trust_remote_code=request.trust_remote_code)
        size = loaded.reading.draft.vocabulary.target_size
        self.work = Work(
            target=path,
            draft=folder_of(loaded),
            plugin=needs_plugin(loaded.checkpoint.config),
            prompts=tuple(
                encode(
                    prompts,
                    tokenizer,
                    size,
                    positions=loaded.target.max_position if loaded.target else None,
                    room=request.written,
                )
            ),
            new_tokens=request.written,
            stop_ids=stops_of(path, request) if request.stop_at_eos else (),
            shape=shape,
            dtype=request.dtype,
            parallel=loaded.reading.draft.parallel is not None,
            latent=latent_of(path, loaded, request),
            trust_remote_code=request.trust_remote_code,
        )
        if not request.speed:
            self.served = self.generator.generate(self.work)
            self.told = _of_its_release(self.served, loaded)
            return
        drafting = plan(self.work.prompts, request.batches, request.written)
        self.served = self.generator.generate(replace(self.work, runs=drafting.runs))
        self.told = _of_its_release(self.served, loaded)
        self.speed = self._speed(request, drafting, self.served)

    def _speed(self, request: Request, drafting: Plan, served: Served) -> Speed:
        """The same runs without the draft, and what both took."""
        work = self.work
        assert work is not None  # noqa: S101
        verified = widths(request.batches[0], work.shape, sweep=request.sweep)
        without = plan(work.prompts, request.batches, request.written, verified)
        try:
            ran = self.generator.bare(replace(work, runs=without.runs))
        except Unavailable as failure:
            said = f"without the draft: {failure}"
            self.told.append(finding("speed-not-measured", TITLES[served.engine], said))
            ran = None
        bare = None if ran is None else (without, ran)
        found = speed((drafting, served.ran), bare, work.shape, one_pass=work.parallel)
        self.told += _of_the_baseline(self.generator, found)
        return found

    def __call__(self, session: Session, acceptance: Acceptance) -> Judgement:  # noqa: ARG002
        """Judge the engine on its own texts."""
        assert self.work is not None  # noqa: S101
        assert self.served is not None  # noqa: S101
        assert isinstance(session.target, Target)  # noqa: S101 - `validate` refuses recordings here
        work, served = self.work, self.served
        made = write_texts(
            session.target, work.prompts, work.new_tokens, work.shape.steps, given=served.outputs
        )
        dtypes = (session.request.dtype, served.dtype or session.request.dtype)
        predicted = predict(session.network, session.target, made.texts, work.shape, dtypes)
        passed = served.drafts > 0 and predicted.explains(served)
        causes, tried = ([], 0) if passed else _causes(session, made, work, served)
        engine = _report(session, predicted, made, served)
        engine |= {
            "runs_the_draft": passed,
            "sentence": _sentence(passed, served, predicted),
            "causes": [_cause(one) for one in causes],
            "causes_tried": tried,
        }
        gate = Gate(name=GATE, wanted=predicted.spoken, got=figures(served), passed=passed)
        findings = [*self.told, *_told(served), *_text_findings(made, served)]
        if not passed:
            findings.append(_differs(causes, tried, made, work, served))
        return Judgement(engine, (gate,), tuple(findings), self.speed)


def folder_of(loaded: Loaded) -> str:
    """The checkpoint as a folder that an engine can load; of the Hub's, all its files are there then."""
    checkpoint = loaded.checkpoint
    names = {"config.json", *(path.name for path in checkpoint.files)}
    names |= {path.name for path in checkpoint.sides}
    paths = [checkpoint.folder.path(name) for name in sorted(names)]
    return str(paths[0].parent.absolute())


def latent_of(path: str, loaded: Loaded, request: Request) -> frozenset[str]:
    """Which of target and draft have latent attention (MLA)."""
    config = load_config(path, request.trust_remote_code)
    theirs = getattr(config.get_text_config(decoder=True), "kv_lora_rank", None) is not None
    ours = loaded.reading.draft.layers.attention.kind == "mla"
    return frozenset(name for name, is_so in (("target", theirs), ("draft", ours)) if is_so)


def stops_of(path: str, request: Request) -> tuple[int, ...]:
    """End-of-sequence ids of the target.

    Raises:
        Usage: it names none.
    """
    try:
        found = GenerationConfig.from_pretrained(path).eos_token_id
    except OSError:
        found = None
    config = load_config(path, request.trust_remote_code)
    return stop_ids(found, getattr(config.get_text_config(decoder=True), "eos_token_id", None))


def _causes(session: Session, made: Texts, work: Work, served: Served) -> tuple[list[Cause], int]:
    """Mistakes in the wiring; a question only where the engine drafts on this target's text at all."""
    same_shape = len(served.per_position) == work.shape.steps
    if not served.drafts or not same_shape or _foreign(made):
        return [], 0
    texts: tuple[Text, ...] = made.texts
    return likeliest(session.network, session.target, texts, work.shape, served)


def _foreign(made: Texts) -> bool:
    return made.disagreements > FOREIGN * max(made.given, 1)


def _report(session: Session, predicted: Prediction, made: Texts, served: Served) -> dict[str, Any]:
    expected = predicted.exact
    differing = None
    if served.prompts is not None:
        pairs = zip(served.prompts, expected.prompts, strict=True)
        differing = sum(got != wanted for got, wanted in pairs)
    return {
        "engine": served.engine,
        "version": served.version,
        "how": served.how,
        "dtype": served.dtype,
        "expected": summary(expected),
        "allowed": predicted.allowed,
        "got": summary(served),
        "num_draft_tokens": expected.shape.steps,
        "tree": None if expected.shape.is_chain else list(expected.shape),
        "tokens": expected.tokens,
        "prompts_that_differ": differing,
        "open_starts": predicted.open_starts,
        "starts": predicted.starts,
        "not_the_targets_choice": made.disagreements,
        "aux_layers": None if served.aux_layers is None else list(served.aux_layers),
        "taps": list(session.network.draft.fed_taps(session.target.depth)),
        "seconds": served.seconds,
    }


def _sentence(passed: bool, served: Served, predicted: Prediction) -> str:
    got, wanted = served.accept_length, predicted.exact.accept_length
    if not passed:
        return (
            f"{served.name} does not run this draft as the reference does: expected an accept "
            f"length of {wanted:.2f}, got {got:.2f}"
        )
    counted = f"{served.drafts} steps, {served.accepted} accepted, accept length {got:.2f}"
    if figures(served) == figures(predicted.exact):
        return f"{served.name} runs this draft as the reference does: {counted}"
    low, high = predicted.allowed["accepted"]
    return (
        f"{served.name} runs this draft as the reference does, within rounding: {counted} "
        f"(expected {predicted.exact.accepted} accepted, {low} to {high})"
    )


def _of_the_baseline(generator: Generator, found: Speed) -> list[Finding]:
    """Whether the server without the draft serves the same target, by its name and its texts."""
    if not isinstance(generator, RunningServer) or (baseline := generator.baseline) is None:
        return []
    said = []
    if baseline.model != generator.model:
        said.append(f"it serves {baseline.model}, and --server {generator.model}.")
    if found["same_texts"] is not None and found["same_texts"] < MOSTLY:
        said.append(f"{100 * found['same_texts']:.0f} % of its texts are those of --server.")
    return [finding("baseline-differs", "--baseline-server", " ".join(said))] if said else []


def _of_its_release(served: Served, loaded: Loaded) -> list[Finding]:
    """What there is to say of the release that an engine says it is.

    Raises:
        Refused: it is older than every release that is known.
    """
    release = of_itself(served.engine, served.version)
    found = list(release.remarks)
    state = verdict(loaded, release.release)
    if state.as_is != "same":
        message = f"by its rules {release.name} does otherwise: {why(state, release.release)}"
        found.append(finding("release-differs", release.word, message))
    return found


def _told(served: Served) -> list[Finding]:
    if not served.told:
        return []
    message = f"{served.name} computes on a CPU here. It was started with {', '.join(served.told)}."
    return [finding("engine-on-a-cpu", served.engine, message)]


def _text_findings(made: Texts, served: Served) -> list[Finding]:
    if not made.disagreements:
        return []
    message = (
        f"{made.disagreements} of {made.given} tokens that {served.name} wrote are not the "
        "reference target's own greedy choice."
    )
    return [finding("engine-text", served.engine, message)]


def _differs(causes: list[Cause], tried: int, made: Texts, work: Work, served: Served) -> Finding:
    return finding(
        "engine-differs",
        served.engine,
        _because(causes, tried, made, work, served) + _layers(served),
    )


def _because(causes: list[Cause], tried: int, made: Texts, work: Work, served: Served) -> str:
    """The likeliest cause, in a sentence."""
    if not served.drafts:
        return "it drafted nothing: speculative decoding is off."
    if len(served.per_position) != work.shape.steps:
        return (
            f"it drafts {len(served.per_position)} tokens a step, and {work.shape.steps} were "
            "expected."
        )
    if _foreign(made):
        return "its text is not what this target generates: it serves another model, or other weights, dtype or quantisation."
    if not causes:
        return f"none of {tried} known mistakes counts like it."
    messages = " or ".join(one.miswiring.message for one in causes)
    if causes[0].exact:
        return f"it counts, to the last token, as an engine that {messages}."
    length = causes[0].counted.accept_length
    return f"the nearest of {tried} known mistakes (accept length {length:.2f}): it {messages}."


def _layers(served: Served) -> str:
    if served.aux_layers is None:
        return ""
    return f" It says that it took the inputs of layers {list(served.aux_layers)}."


def _cause(cause: Cause) -> dict[str, Any]:
    return {
        "name": cause.miswiring.name,
        "message": cause.miswiring.message,
        "exact": cause.exact,
        **summary(cause.counted),
    }


def judge_of(
    engine: Engine | None,
    python: str | None,
    arguments: list[str],
    server: str | None,
    shape: Shape | None,
    baseline: str | None = None,
) -> EngineJudge | None:
    """The judge that the command line asks for.

    Args:
        engine: ``--engine``.
        python: ``--engine-python``.
        arguments: ``--engine-arg``, each.
        server: ``--server``.
        shape: what the user wants to be drafted a step.
        baseline: ``--baseline-server``.

    Raises:
        Usage: options that do not go together.
        Unavailable: the server does not answer.
    """
    from eagle3_interop.validators.engines.started import StartedEngine

    check_options(engine, python, arguments, server, shape, baseline)
    if server is not None:
        return EngineJudge(RunningServer.found(server, shape, baseline))
    return None if engine is None else EngineJudge(StartedEngine.found(engine, python, arguments))
