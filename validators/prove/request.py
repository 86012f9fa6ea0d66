"""What a validation is asked, and what it runs on: what the command, the orchestration and an engine share."""

from dataclasses import dataclass
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from eagle3_interop.convert.decide.loaded import Loaded
from eagle3_interop.convert.read.folders import did_you_mean, hub_named, local_path
from eagle3_interop.schemas.findings import Finding, Usage
from eagle3_interop.schemas.report import Gate, Speed
from eagle3_interop.validators.accept.shape import Shape
from eagle3_interop.validators.target.device import device_parts
from eagle3_interop.validators.target.prompts import Prompt

if TYPE_CHECKING:
    from eagle3_interop.validators.accept.acceptance import Acceptance
    from eagle3_interop.validators.network.reference import Network
    from eagle3_interop.validators.target.source import Source
    from eagle3_interop.validators.target.texts import Text

MOST_NEW_TOKENS = 2**20
"""No target reaches further."""

MOST_AT_ONCE = 1024
"""Texts that are timed together, at most."""

NEW_TOKENS, DIAGNOSED = 128, 64
"""Tokens that the target writes after each prompt, unless told otherwise; for a diagnosis."""


@dataclass(frozen=True)
class Request:
    """Everything that the user can say about one validation.

    Attributes:
        checkpoint: folder or Hub id of the draft.
        target: folder or Hub id of the target.
        against: another draft that must be the same network.
        prompts: a file of prompts; the package's own without one.
        shape: what is drafted a step; None for as many tokens as the draft's config recommends, else 3.
        sweep: measure a grid of chains and trees as well.
        new_tokens: of each text; None for the usual number, or what was recorded.
        stop_at_eos: texts end at an end-of-sequence token.
        temperature: measure acceptance under sampling as well, if above 0.
        cost_ratio: time of one draft step over time of one target step.
        device: ``auto``, ``cpu``, ``cuda`` or ``cuda:N``.
        dtype: of target and draft.
        seed: of the sampling and the bootstrap.
        min_accept_length: a gate.
        max_logit_diff: a gate, in place of rounding.
        agreement: measure how often each depth is right, whatever came before it.
        trust_remote_code: run Python files that come with the target.
        streams: a folder of recorded hidden states in place of a running target.
        stream_taps: of recordings that do not name theirs.
        trainer: whose network is measured; without one a validation measures what engines compute, and a
            diagnosis starts from what a certain trainer trained.
        allow: codes of what was trained and no engine computes, whose loss is accepted.
        speed: of a real engine, measure how fast it serves with the draft and without.
        batches: texts at a time, at each of which that is measured.
    """

    checkpoint: str
    target: str
    against: str | None = None
    prompts: Path | None = None
    shape: Shape | None = None
    sweep: bool = False
    new_tokens: int | None = None
    stop_at_eos: bool = False
    temperature: float = 0.0
    cost_ratio: float | None = None
    device: str = "auto"
    dtype: str = "float32"
    seed: int = 0
    min_accept_length: float | None = None
    max_logit_diff: float | None = None
    agreement: bool = False
    trust_remote_code: bool = False
    streams: str | None = None
    stream_taps: tuple[int, ...] | None = None
    trainer: str | None = None
    allow: tuple[str, ...] = ()
    speed: bool = True
    batches: tuple[int, ...] = (1,)

    @property
    def written(self) -> int:
        """Tokens that a running target writes after each prompt."""
        return NEW_TOKENS if self.new_tokens is None else self.new_tokens

    def check(self) -> None:
        """Refuse what can never be measured; torch is not needed to know.

        Raises:
            Usage: a number is out of range, a gate lacks what it judges, or there is no such folder.
        """
        for name in ("checkpoint", "target", "against"):
            word = getattr(self, name)
            if word is not None and not word.strip():
                raise Usage(f"{name}: empty; was a variable of the shell not set?")
            if word is not None:
                hub_named(word)
        device_parts(self.device)
        if self.max_logit_diff is not None and self.against is None:
            raise Usage("--max-logit-diff compares with a source: give --against SOURCE too.")
        if self.shape is not None:
            self.shape.checked()
        if self.written < 2:
            raise Usage(
                "--max-new-tokens: at least 2; the prefill gives the first without a draft."
            )
        if self.written > MOST_NEW_TOKENS:
            raise Usage(f"--max-new-tokens: at most {MOST_NEW_TOKENS}; no target reaches further.")
        if not self.batches or not all(1 <= size <= MOST_AT_ONCE for size in self.batches):
            raise Usage(f"--batch: sizes from 1 to {MOST_AT_ONCE}, such as 1,4,16.")
        if not 0 <= self.seed < 2**63:
            raise Usage("--seed: a number from 0 to 2^63 - 1.")
        for name in ("temperature", "cost_ratio", "min_accept_length", "max_logit_diff"):
            if not isfinite(getattr(self, name) or 0.0):
                raise Usage(f"--{name.replace('_', '-')}: give a number that is finite.")
        if self.cost_ratio is not None and self.shape and not (self.shape.is_chain or self.sweep):
            raise Usage("--cost-ratio ranks several settings: give --sweep beside --tree.")
        if self.temperature < 0 or (self.cost_ratio or 0) < 0:
            raise Usage("--temperature and --cost-ratio cannot be negative.")
        if self.streams is not None and not local_path(self.streams).is_dir():
            raise Usage(f"--streams {self.streams}: no such folder{did_you_mean(self.streams)}")
        if self.stream_taps is not None and self.streams is None:
            raise Usage("--stream-taps says what recorded files hold: give --streams DIR too.")
        if self.streams is not None and self.prompts is not None:
            raise Usage("--prompts: with --streams the texts are the recorded ones; leave it out.")
        if self.streams is not None and self.temperature:
            raise Usage("--temperature needs texts that the target samples: leave --streams out.")


@dataclass(frozen=True)
class Session:
    """What one validation runs on.

    Attributes:
        request: the user's.
        loaded: the checkpoint, as its own framework reads it.
        network: its network.
        target: the target.
        texts: the target's own.
        shape: what is drafted a step.
        findings: what was said of checkpoint and texts.
    """

    request: Request
    loaded: Loaded
    network: "Network"
    target: "Source"
    texts: "tuple[Text, ...]"
    shape: Shape
    findings: tuple[Finding, ...]


@dataclass(frozen=True)
class Judgement:
    """What a real engine says of a checkpoint.

    Attributes:
        engine: for the report.
        gates: that it decided.
        findings: of it.
        speed: what it took, where that was asked.
    """

    engine: dict[str, Any]
    gates: tuple[Gate, ...] = ()
    findings: tuple[Finding, ...] = ()
    speed: Speed | None = None


class Judge(Protocol):
    """A real engine that serves the checkpoint on the same prompts, and counts for itself."""

    @property
    def shape(self) -> Shape | None:
        """What it drafts a step, where that is not ours to say."""

    def serve(self, request: Request, loaded: Loaded, prompts: list[Prompt], shape: Shape) -> None:
        """Let the engine generate, before the target takes its memory."""

    def __call__(self, session: Session, acceptance: "Acceptance") -> Judgement:
        """Judge the reference's counters by the engine's own."""
