"""Reports side by side, as ``eagle3-report --json`` writes them (``docs/reporting.md`` explains each key)."""

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict

from eagle3_interop.schemas.breakdown import CategoryRow


class _Part(BaseModel):
    """Frozen; a key that is not known here is an error."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class Difference(_Part):
    """An accept length against the first report's, prompt by prompt.

    Attributes:
        difference: of the accept lengths; above 0 this one is larger.
        interval: 95 % interval of it, of Student's, over prompts; None of fewer than two.
        p_value: how often prompts whose two results change places by chance give as large a difference.
        prompts: pairs.
    """

    difference: float
    interval: tuple[float, float] | None
    p_value: float
    prompts: int

    @property
    def certain(self) -> bool:
        """Whether the interval lies on one side of 0."""
        return self.interval is not None and not self.interval[0] <= 0 <= self.interval[1]


class Obstacle(_Part):
    """Why a report cannot be compared with the first.

    Attributes:
        what: is not the same.
        certain: accept lengths cannot be compared: it is another one. Where not, a report does not say, or speeds
            alone are of another machine.
        message: in a sentence.
    """

    what: Literal["texts", "target", "dtype", "speed"]
    certain: bool
    message: str


class ComparisonRow(_Part):
    """One setting of one report.

    Attributes:
        report: its number, from 0.
        file: that was read.
        draft: folder or Hub id, as it was given.
        target: the same of the target.
        dtype: in which both ran.
        setting: what was drafted a step, in words.
        num_draft_tokens: proposed tokens in a row (of a tree: its steps).
        tree: steps, top-k and draft tokens (the root included) of a tree; None for a chain.
        swept: it is a row of the report's sweep; its prompts were not kept, so that it has no difference.
        accept_length: None where the draft was refused.
        interval: 95 % bootstrap interval of it.
        speed: what the report measured.
        expected: tokens a second of a sweep's setting, by measured costs.
        verdict: ``pass``, ``fail``, ``measured`` where no gate ran, or ``refused``.
        refused: codes of the errors for which nothing was measured.
        difference: against the first report; None for itself, and where there is none.
        categories: accept length by kind of prompt.
    """

    report: int
    file: str
    draft: str
    target: str
    dtype: str
    setting: str
    num_draft_tokens: int | None
    tree: tuple[int, int, int] | None
    swept: bool = False
    accept_length: float | None
    interval: tuple[float, float] | None
    speed: dict[str, Any] | None = None
    expected: float | None = None
    verdict: Literal["pass", "fail", "measured", "refused"]
    refused: tuple[str, ...] = ()
    difference: Difference | None = None
    categories: tuple[CategoryRow, ...] = ()


class Comparison(_Part):
    """Reports side by side.

    Attributes:
        rows: settings, report by report.
        obstacles: by the number of a report, why it cannot be compared with the first, or not surely.
    """

    rows: tuple[ComparisonRow, ...]
    obstacles: dict[int, tuple[Obstacle, ...]]
