"""The search alone, on made-up scores: any number of blocks, deep targets, the clock, the conventions."""

import time
from dataclasses import replace
from types import SimpleNamespace

import pytest

from eagle3_interop.validators.diagnose.search import Search
from eagle3_interop.validators.diagnose.wiring import (
    NORMED,
    STREAM,
    SUBLAYER,
    USUAL,
    Wiring,
    cost,
    distance,
)

OPTIONS = {
    "residual": ("raw", "normed"),
    "feedback": ("pre-norm", "post-norm"),
    "order": ("embedding-hidden", "hidden-embedding"),
    "rope": ("theta 10000", "theta 500000", "theta 1e+06"),
}
FLAGS = tuple((name, values[0]) for name, values in OPTIONS.items())


class Planted:
    """Scores like those that were measured: neighbouring layers are alike, distant and swapped ones are not.

    Residual and feedback show at depths > 0 only, as they do in trained drafts.
    """

    def __init__(self, truth: Wiring, depth: int) -> None:
        self.truth = truth
        self.streams = SimpleNamespace(depth=depth, reads=self._reads)
        self.subject = SimpleNamespace(options=OPTIONS, usual=USUAL)
        self.sieves: dict[Wiring, float] = {}
        self.deeps: dict[Wiring, float] = {}

    @staticmethod
    def _reads(tap):
        return [STREAM, *([SUBLAYER] if tap else []), NORMED]

    def sieve(self, wiring):
        depth = self.streams.depth
        far = sum(
            (i + 1) * (abs(a - b) / depth) ** 0.5
            for i, (a, b) in enumerate(zip(wiring.taps, self.truth.taps, strict=True))
        )
        odd = sum(a != b for a, b in zip(wiring.reads, self.truth.reads, strict=True))
        flags = sum(
            a != b
            for a, b in zip(wiring.flags, self.truth.flags, strict=True)
            if a[0] in ("order", "rope")
        )
        self.sieves[wiring] = 3 + far + odd + flags
        return self.sieves[wiring]

    def deep(self, wiring):
        flags = sum(a != b for a, b in zip(wiring.flags, self.truth.flags, strict=True))
        self.deeps[wiring] = 4 * self.sieve(wiring) + flags
        return self.deeps[wiring]

    def known_deep(self):
        return dict(self.deeps)


def wiring(taps, reads=None, **flags):
    found = Wiring(tuple(taps), tuple(reads or [STREAM] * len(taps)), FLAGS)
    for name, value in flags.items():
        found = found.with_flag(name, value)
    return found


@pytest.mark.parametrize(
    ("depth", "truth", "configured"),
    [
        (6, [0, 3, 5], [3, 5, 6]),
        (32, [2, 16, 29], [29, 16, 2]),
        (61, [0, 31, 60], [31, 60, 61]),
        (100, [7], [93]),
        (100, [2, 50, 97], [1, 49, 96]),
        (100, [3, 11, 24, 42, 57, 68, 81, 99], [4, 12, 25, 43, 58, 69, 82, 100]),
    ],
)
def test_taps_of_any_number_and_depth(depth, truth, configured):
    evaluator = Planted(wiring(truth), depth)
    search = Search(evaluator, wiring(configured))
    assert search.run()[0] == wiring(truth)
    assert search.finished
    everything = (depth + 1) ** len(truth)
    assert len(search.trials) < min(everything + 60, 100 + 350 * len(truth))


@pytest.mark.parametrize(
    "flags",
    [
        {"residual": "normed"},
        {"residual": "normed", "feedback": "post-norm"},
        {"order": "hidden-embedding", "rope": "theta 1e+06"},
        {name: values[-1] for name, values in OPTIONS.items()},
    ],
    ids=lambda flags: "+".join(flags),
)
def test_flags_and_taps_together(flags):
    evaluator = Planted(wiring([1, 3, 5], **flags), 6)
    assert Search(evaluator, wiring([5, 1, 3])).run()[0] == wiring([1, 3, 5], **flags)


def test_reads():
    truth = wiring([2, 4, 6], [SUBLAYER, SUBLAYER, NORMED])
    assert Search(Planted(truth, 6), wiring([1, 3, 5])).run()[0] == truth


def test_a_draft_without_fc_has_flags_only():
    truth = wiring([], residual="normed")
    assert Search(Planted(truth, 6), wiring([])).run()[0] == truth


def test_a_convention_alone_is_found_at_once():
    """All ids one too low, on a target too deep to visit: the first trials include the truth."""
    evaluator = Planted(wiring([2, 50, 97]), 100)
    search = Search(evaluator, wiring([1, 49, 96]))
    search._taps_from_conventions()
    assert list(evaluator.sieves)[:12].count(wiring([2, 50, 97])) == 1


def test_the_clock_ends_a_search_with_what_it_has():
    evaluator = Planted(wiring([0, 3, 5]), 6)
    search = Search(evaluator, wiring([3, 5, 6]), deadline=time.monotonic() - 1)
    assert search.run() == [wiring([3, 5, 6])]
    assert not search.finished


def test_of_equals_the_simplest():
    """An oddity that changes nothing is not part of the answer."""

    class Blind(Planted):
        def sieve(self, one):
            plain = one.with_flag("order", OPTIONS["order"][0])
            self.sieves[one] = super().sieve(plain) - 1e-4 * (plain != one)
            return self.sieves[one]

        def deep(self, one):
            self.deeps[one] = 4 * self.sieve(one)
            return self.deeps[one]

    truth = wiring([1, 3, 5])
    found = Search(Blind(truth, 6), wiring([3, 1, 5])).run()
    assert found[0] == truth
    assert truth.with_flag("order", "hidden-embedding") in found[1:8]


class Dull(Planted):
    """Blocks 0 and 2 hear little of where they stand, and residual and feedback matter only apart."""

    def sieve(self, one):
        near = {0: (0, 1, 2), 2: (5, 6)}
        moved = [
            self.truth.taps[i] if tap in near.get(i, ()) else tap for i, tap in enumerate(one.taps)
        ]
        dull = sum(a != b for a, b in zip(moved, one.taps, strict=True))
        self.sieves[one] = super().sieve(replace(one, taps=tuple(moved))) + 1e-3 * dull
        return self.sieves[one]

    def deep(self, one):
        both = [one.flag(name) != self.truth.flag(name) for name in ("residual", "feedback")]
        odd = both[0] != both[1]
        plain = one.with_flag("residual", "raw").with_flag("feedback", "pre-norm")
        self.deeps[one] = 4 * self.sieve(plain) + odd + 1e-3 * sum(both)
        return self.deeps[one]


def test_alike_are_changes_that_hardly_matter_alone_and_together():
    truth = wiring([1, 3, 5])
    search = Search(Dull(truth, 6), wiring([1, 3, 5]))
    alike = search.alike(wiring([2, 3, 6]))
    assert wiring([1, 3, 6]) in alike
    assert wiring([2, 3, 5]) in alike
    assert truth in alike
    assert wiring([2, 4, 6]) not in alike


def test_residual_and_feedback_are_also_changed_together():
    search = Search(Dull(wiring([1, 3, 5]), 6), wiring([1, 3, 5]))
    other = wiring([1, 3, 5], residual="normed", feedback="post-norm")
    assert other in search.alike(wiring([1, 3, 5]))
    assert wiring([1, 3, 5], residual="normed") not in search.alike(wiring([1, 3, 5]))


def test_progress_counts_wirings_once():
    counted = []
    evaluator = Planted(wiring([1, 3, 5]), 6)
    search = Search(evaluator, wiring([1, 3, 5]), progress=counted.append)
    search.run()
    assert sum(counted) == len(search.trials) == len(evaluator.sieves)


def test_cost_counts_changes_and_oddities():
    one, other = wiring([1, 3, 5]), wiring([1, 3, 6], [STREAM, STREAM, NORMED], residual="normed")
    assert distance(one, other) == 2
    assert cost(other, one) == 4
    assert cost(one, other) == 3
    assert cost(wiring([2, 4, 6]), one) == cost(wiring([1, 3, 6]), one) == 1
    assert other.changes(one) == [
        "taps [1, 3, 6] instead of [1, 3, 5]",
        "reads ['stream', 'stream', 'normed'] instead of ['stream', 'stream', 'stream']",
        "residual normed instead of raw",
    ]
