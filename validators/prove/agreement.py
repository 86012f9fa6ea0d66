"""Two checkpoints, each as its own framework reads it, on the same features of the same texts."""

import math
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from eagle3_interop.convert.decide import inspection
from eagle3_interop.convert.decide.loaded import Loaded
from eagle3_interop.schemas.report import (
    LOGIT_ROUNDING,
    AcceptanceReport,
    AgainstReport,
    FirstDifference,
    Gate,
    LogitsReport,
)
from eagle3_interop.validators.accept.acceptance import Acceptance
from eagle3_interop.validators.accept.drafting import Batch, batches, draft_steps
from eagle3_interop.validators.network.reference import Network
from eagle3_interop.validators.prove.stages import first_parting
from eagle3_interop.validators.target.source import Source
from eagle3_interop.validators.target.texts import Text

MIN_DEPTH = 3
"""Steps that are compared at least, so that the feedback between steps shows."""

_CHUNK = 256


class LogitComparison:
    """Logits of two networks, met token by token of the target's vocabulary, a batch at a time."""

    def __init__(self, ours: Network, theirs: Network, depth: int) -> None:
        """Align the two draft vocabularies.

        Args:
            ours: the checkpoint's network.
            theirs: the network that it should equal.
            depth: steps to compare.
        """
        self.ours, self.theirs, self.depth = ours, theirs, depth
        self.rows, self.common, self.missing = _align(ours, theirs)
        self.largest = self.max_abs_diff = 0.0
        self.worst_text = 0
        self._sum = self._values = self._agreed = self._starts = 0.0
        self._kl = [0.0] * depth

    @property
    def taps(self) -> list[int]:
        """Taps of either network."""
        found = {
            tap for network in (self.ours, self.theirs) for tap in network.draft.network.taps or ()
        }
        return sorted(found)

    @torch.no_grad()
    def add(self, batch: Batch) -> None:
        """Compare every start of a batch at every depth."""
        owners = torch.tensor(batch.indices, device=batch.valid.device)[:, None]
        owners = owners.expand_as(batch.valid)[batch.valid]
        self._starts += len(owners)
        both = zip(
            draft_steps(self.ours, batch, self.depth),
            draft_steps(self.theirs, batch, self.depth),
            strict=True,
        )
        for step, (ours, theirs) in enumerate(both):
            chunks = (
                torch.split(x, _CHUNK)
                for x in (ours.normed[batch.valid], theirs.normed[batch.valid], owners)
            )
            for one, other, texts in zip(*chunks, strict=True):
                self._chunk(step, one, other, texts)

    def _chunk(self, step: int, one: Tensor, other: Tensor, texts: Tensor) -> None:
        left, right = self.ours.logits(one).float(), self.theirs.logits(other).float()
        best = (
            network.to_target(logits.argmax(dim=-1))
            for network, logits in ((self.ours, left), (self.theirs, right))
        )
        self._agreed += int((next(best) == next(best)).sum())
        if self.rows is not None:
            left, right = left[:, self.rows[0]], right[:, self.rows[1]]
        if not left.shape[1]:
            return
        differences = (left - right).abs()
        worst, at = differences.max(dim=1).values.max(dim=0)
        # A comparison that NaN fails: whatever is not a number is the worst.
        if not float(worst) <= self.max_abs_diff:
            self.max_abs_diff, self.worst_text = float(worst), int(texts[at])
        self.largest = max(self.largest, float(right.abs().max()))
        self._sum += float(differences.sum(dtype=torch.float64))
        self._values += differences.numel()
        p, q = right.log_softmax(dim=-1), left.log_softmax(dim=-1)
        self._kl[step] += float((p.exp() * (p - q)).sum(dtype=torch.float64))

    @property
    def limit(self) -> float:
        """The largest difference that is rounding."""
        return LOGIT_ROUNDING[str(self.ours.weights.dtype).removeprefix("torch.")] * self.largest

    def result(self) -> LogitsReport:
        """The figures, once all batches were added."""
        starts = max(self._starts, 1)
        return LogitsReport(
            max_abs_diff=finite(self.max_abs_diff),
            mean_abs_diff=finite(self._sum / max(self._values, 1)),
            top1_agreement=self._agreed / (starts * self.depth),
            kl=tuple(finite(max(total / starts, 0.0)) for total in self._kl),
            positions=int(self._starts),
            largest=finite(self.largest),
        )


def finite(value: float) -> float | None:
    """A number that JSON has, or None."""
    return value if math.isfinite(value) else None


def _align(ours: Network, theirs: Network) -> tuple[tuple[Tensor, Tensor] | None, int, int]:
    """Rows of each head that stand for the tokens of both, how many those are, and how many only one has.

    None for the rows where the two heads stand in the same order already.
    """
    left, right = _ids(ours), _ids(theirs)
    if torch.equal(left, right):
        return None, len(left), 0
    shared = left[torch.isin(left, right)].sort().values
    rows = tuple(ids.argsort()[torch.isin(ids.sort().values, shared)] for ids in (left, right))
    return (rows[0], rows[1]), len(shared), len(left) + len(right) - 2 * len(shared)


def _ids(network: Network) -> Tensor:
    ids = network.weights.target_ids
    if ids is None:
        return torch.arange(network.draft.vocabulary.draft_size, device=network.weights.device)
    return ids


def where_they_part(
    comparison: LogitComparison, target: Source, texts: Sequence[Text]
) -> FirstDifference | None:
    """Trace both networks on the text on which they differ most."""
    prompt = comparison.worst_text
    batch = next(batches(target, [texts[prompt]], comparison.taps), None)
    if batch is None:
        return None
    parting = first_parting(comparison.ours, comparison.theirs, batch, comparison.depth)
    if parting is None:
        return None
    return FirstDifference(
        stage=parting.stage,
        step=parting.step,
        max_abs_diff=parting.max_abs_diff,
        largest=parting.largest,
        prompt=prompt,
        meaning=parting.meaning,
    )


def against_report(
    loaded: tuple[Loaded, Loaded],
    comparison: LogitComparison,
    acceptance: AcceptanceReport,
    first_difference: FirstDifference | None,
) -> AgainstReport:
    """Everything about the comparison.

    Args:
        loaded: the checkpoint and the source.
        comparison: of their logits.
        acceptance: of the source.
        first_difference: where they part.
    """
    stored = inspection.compare(*loaded)
    sides = {"only in A": "only in checkpoint", "only in B": "only in source"}
    return AgainstReport(
        source=loaded[1].checkpoint.path,
        layout=loaded[1].layout,
        acceptance=acceptance,
        logits=comparison.result(),
        first_difference=first_difference,
        differences=stored["differences"],
        tensors={name: sides.get(state, state) for name, state in stored["tensors"].items()},
    )


def comparison_gates(
    comparison: LogitComparison,
    ours: Acceptance,
    theirs: Acceptance,
    max_logit_diff: float | None,
) -> Iterator[Gate]:
    """A conversion passes if both draft from the same tokens, with the same logits and counters.

    Args:
        comparison: of the logits.
        ours: the checkpoint's counters.
        theirs: the source's.
        max_logit_diff: the user's limit in place of rounding.
    """
    yield Gate(
        name="draft-vocabulary",
        wanted=0,
        got=comparison.missing,
        passed=comparison.missing == 0,
    )
    limit = comparison.limit if max_logit_diff is None else max_logit_diff
    yield Gate(
        name="logits-agree" if max_logit_diff is None else "max-logit-diff",
        wanted=limit,
        got=finite(comparison.max_abs_diff),
        passed=comparison.max_abs_diff <= limit,
    )
    counters = [(one.drafts, one.accepted, list(one.per_position)) for one in (theirs, ours)]
    keys = ("drafts", "accepted", "per_position")
    wanted, got = (dict(zip(keys, values, strict=True)) for values in counters)
    yield Gate(name="counters-equal", wanted=wanted, got=got, passed=theirs.prompts == ours.prompts)
