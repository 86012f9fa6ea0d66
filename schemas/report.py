"""The report of eagle3-validate, as ``--json`` writes it (``docs/validating.md`` explains each key)."""

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict
from typing_extensions import TypedDict

from eagle3_interop.schemas.breakdown import Breakdown
from eagle3_interop.schemas.findings import Finding
from eagle3_interop.schemas.streams import StreamsReport


class _Part(BaseModel):
    """A frozen part of the report; a key that is not known here is an error."""

    model_config = ConfigDict(frozen=True, extra="forbid")


LOGIT_ROUNDING = {"float32": 5e-5, "float16": 2e-2, "bfloat16": 1e-1}
"""Logit differences that are rounding, relative to the largest logit.

Two readings of one network are computed by the same operations on the same numbers, and differ by exactly 0.
Only where a conversion permuted or merged blocks of fc do sums run in another order; on the tiny pair that is
9e-7 in float32. Against it, the last bit of one bfloat16 weight of the final norm is 3e-4 there, rope at
theta 12000 for 10000 is 5e-2, and a wrong residual or feedback is 0.8.
"""


class Gate(_Part):
    """A check that decides the verdict.

    Attributes:
        name: of the check, kebab-case.
        wanted: what passes.
        got: what was measured.
        passed: whether it did.
    """

    name: str
    wanted: Any
    got: Any
    passed: bool


class AcceptanceReport(_Part):
    """The counters of greedy drafting and verification, as engines count them.

    Attributes:
        accept_length: 1 + accepted / drafts.
        interval: 95 % bootstrap interval of it, over prompts.
        drafts: verification steps.
        accepted: draft tokens that were accepted.
        per_position: steps that accepted more than j tokens.
        num_draft_tokens: proposed tokens in a row (of a tree: its steps).
        tree: steps, top-k and draft tokens (the root included) of a tree; None for a chain.
        tokens: new tokens, over all texts.
    """

    accept_length: float
    interval: tuple[float, float]
    drafts: int
    accepted: int
    per_position: tuple[int, ...]
    num_draft_tokens: int
    tree: tuple[int, int, int] | None
    tokens: int

    @property
    def rates(self) -> tuple[float, ...]:
        """By position, the share of verification steps that accepted a token there; none without a step."""
        return tuple(count / self.drafts for count in self.per_position) if self.drafts else ()

    @property
    def varies(self) -> bool:
        """Whether the interval says anything: it does not over one prompt, or over prompts that are all alike."""
        low, high = self.interval
        return low < high


class PromptRow(_Part):
    """The counters of one text, in the order of the prompts.

    Attributes:
        steps: verification steps.
        accepted: draft tokens that were accepted.
        per_position: steps that accepted more than j tokens.
        category: of the prompt, where it names one.
        tokens: new tokens; None in reports that did not say.
        accept_length: 1 + accepted / steps.
        inexpressible: new tokens that the draft's vocabulary lacks.
    """

    steps: int
    accepted: int
    per_position: tuple[int, ...]
    category: str | None = None
    tokens: int | None = None
    accept_length: float | None = None
    inexpressible: int | None = None


class SweepRow(AcceptanceReport):
    """One setting of a sweep.

    Attributes:
        speedup: expected speed-up at the given cost ratio, None without one.
        tokens_per_second: expected by the measured costs; None without them, or where they do not reach so far.
        best: it has the largest of all: by measured costs where there are some.
    """

    speedup: float | None = None
    tokens_per_second: float | None = None
    best: bool = False


SpeedAtBatch = TypedDict(
    "SpeedAtBatch",
    {
        "batch": int,
        "with": float,
        "without": float | None,
        "ratio": float | None,
        "spread": tuple[float, float],
        "spread_without": tuple[float, float] | None,
    },
)
"""Tokens a second at one batch size: the median of the rounds with the draft and without it, and the slowest and fastest round."""

Speed = TypedDict(
    "Speed",
    {
        "batch": int,
        "with": float,
        "without": float | None,
        "ratio": float | None,
        "target_step": list[tuple[int, float]] | None,
        "draft_step": float | None,
        "batches": list[SpeedAtBatch],
        "rounds": int,
        "new_tokens": int,
        "same_texts": float | None,
    },
)
"""What an engine or a server took, at the first batch size, and at all of them.

``with`` and ``without`` the draft in tokens a second, of decoding alone; ``ratio`` is their quotient. ``target_step``:
seconds of a target step by the number of tokens that it verifies; ``draft_step``: seconds of one pass of the draft.
None is what was not measured. ``same_texts``: share of the timed texts that were equal with the draft and without.
"""


class LogitsReport(_Part):
    """Logits of two checkpoints on the same features, token by token of the target's vocabulary.

    Attributes:
        max_abs_diff: largest difference; None where a logit is not a number.
        mean_abs_diff: mean difference.
        top1_agreement: share of proposals that are equal.
        kl: by depth, the mean divergence of the checkpoint from the source.
        positions: start positions; each was run to every depth.
        largest: largest logit of the source, to which rounding is relative; None where it is not a number.
    """

    max_abs_diff: float | None
    mean_abs_diff: float | None
    top1_agreement: float
    kl: tuple[float | None, ...]
    positions: int
    largest: float | None = None


class FirstDifference(_Part):
    """Where two networks part, on the text on which they differ most.

    Attributes:
        stage: what it is, with the step (counted from 1) beyond the first.
        step: the draft step, counted from 1.
        max_abs_diff: largest difference there; None where the two have other shapes, or nothing there.
        largest: largest value there, in the source.
        prompt: number of the text, counted from 0.
        meaning: what usually makes networks part there.
    """

    stage: str
    step: int
    max_abs_diff: float | None
    largest: float | None
    prompt: int
    meaning: str


class AgainstReport(_Part):
    """A comparison with another checkpoint, each read as its own framework reads it.

    Attributes:
        source: the other checkpoint, as it was given.
        layout: what it was read as.
        acceptance: of the other checkpoint.
        logits: compared on the same features.
        first_difference: where the networks part; None where they don't.
        differences: dotted path of the description to (checkpoint's value, source's value).
        tensors: by canonical name ``different``, ``only in checkpoint`` or ``only in source``; all
            others are equal bit for bit.
    """

    source: str
    layout: str
    acceptance: AcceptanceReport
    logits: LogitsReport
    first_difference: FirstDifference | None
    differences: dict[str, tuple[Any, Any]]
    tensors: dict[str, str]


class AsTrainedReport(_Part):
    """The network that the trainer's own code computed, where that is not the one that engines compute.

    Attributes:
        acceptance: of the network as trained.
        logits: of the checkpoint as engines compute it, compared with the network as trained.
    """

    acceptance: AcceptanceReport
    logits: LogitsReport


class Files(_Part):
    """What was validated.

    Attributes:
        files: name to sha256 of every file that belongs to the checkpoint.
    """

    files: dict[str, str]


class Report(_Part):
    """Everything that a validation found.

    Attributes:
        verdict: ``fail`` if a gate failed or the checkpoint was refused.
        gates: checks that ran.
        findings: remarks on the checkpoint.
        acceptance: of the checkpoint; None only where it was refused.
        prompts: the same counters, text by text: the interval can be computed from them again.
        breakdown: the same counters by category, context and token.
        as_trained: what engines lose, where a trainer is known to have computed otherwise; no gate judges it.
        against: comparison with ``--against``.
        sweep: other chains and trees on the same texts.
        sampling: acceptance at a temperature.
        engine: what a real engine counted.
        speed: what it took, with the draft and without.
        streams: where recorded hidden states came from; None where the target ran.
        checkpoint: digests of its files.
        environment: date, command line, versions, device, dtype, seed, target and its digests, texts.
    """

    verdict: Literal["pass", "fail"]
    gates: tuple[Gate, ...] = ()
    findings: tuple[Finding, ...] = ()
    acceptance: AcceptanceReport | None = None
    prompts: tuple[PromptRow, ...] | None = None
    breakdown: Breakdown | None = None
    as_trained: AsTrainedReport | None = None
    against: AgainstReport | None = None
    sweep: tuple[SweepRow, ...] | None = None
    sampling: dict[str, Any] | None = None
    engine: dict[str, Any] | None = None
    speed: Speed | None = None
    streams: StreamsReport | None = None
    checkpoint: Files = Files(files={})
    environment: dict[str, Any] = {}
