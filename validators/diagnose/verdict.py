"""From a search to an answer: the verdict, what cannot be told apart, and the JSON."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from eagle3_interop.validators.diagnose.scoring import Evaluator, Result
from eagle3_interop.validators.diagnose.search import COARSE, EQUAL, OutOfTime, Progress, Search
from eagle3_interop.validators.diagnose.wiring import STREAM, Wiring, cost

Verdict = Literal["configured-is-best", "better-wiring", "no-match"]

NO_MATCH = 1.1
"""Accept length up to which a draft drafts nothing."""

SHOWN = 16
"""Wirings that are scored on all texts, beside the configured one."""

ROUNDS = 3
"""Times that the best is chosen: with each, what may be equal to it is compared as well."""

RESERVE = 0.2
"""Share of a budget that is kept for scoring the best on all texts."""


@dataclass(frozen=True)
class Diagnosis:
    """The answer.

    Attributes:
        verdict: of the three.
        configured: as the config says; None where it says nothing that can be run.
        best: the wiring that fits best; of equals, the simplest.
        equivalent: others that the texts cannot tell from it.
        candidates: all that were scored on all texts, the best first.
        tried: wirings scored at any level.
        constant: cross-entropy of the best draft that ignores its input, at depth 0.
        seconds: of the search.
        finished: the search ended before its budget did.
        untried: taps of the target that were not recorded, so that nothing is known of them.
    """

    verdict: Verdict
    configured: Result | None
    best: Result
    equivalent: tuple[Result, ...]
    candidates: tuple[Result, ...]
    tried: int
    constant: float
    seconds: float
    finished: bool
    untried: tuple[int, ...] = ()

    def report(self, seed: int = 0) -> dict[str, Any]:
        """The JSON object."""
        best = {
            **self._entry(self.best, seed),
            "equivalent": [self._entry(one, seed) for one in self.equivalent],
        }
        return {
            "verdict": self.verdict,
            "configured": self.configured and self._entry(self.configured, seed),
            "best": best,
            "tried": self.tried,
            "candidates": [self._entry(one, seed) for one in self.candidates],
            "constant_score": self.constant,
            "seconds": round(self.seconds, 1),
            "finished": self.finished,
            "untried": list(self.untried),
        }

    def _entry(self, result: Result, seed: int) -> dict[str, Any]:
        entry = {
            **result.wiring.report(),
            "score": result.score,
            "accept_length": result.accept_length,
            "interval": list(result.interval(seed)),
            "by_depth": result.by_depth,
        }
        if self.configured is not None:
            entry["gain"] = result.gain(self.configured)
            entry["gain_interval"] = list(result.gain_interval(self.configured, seed))
            entry["changes"] = result.wiring.changes(self.configured.wiring)
        return entry


def diagnose(
    evaluator: Evaluator,
    configured: Wiring | None = None,
    *,
    known: bool = True,
    budget: float | None = None,
    progress: Progress | None = None,
    seed: int = 0,
) -> Diagnosis:
    """Search, and judge what was found.

    Args:
        evaluator: of the weights.
        configured: where to start; the subject's own unless given.
        known: that wiring is what the config says, not a guess.
        budget: seconds.
        progress: told each evaluation.
        seed: of the intervals.
    """
    began = time.monotonic()
    configured = configured or evaluator.subject.configured
    end = None if budget is None else began + budget
    deadline = None if budget is None else began + budget * (1 - RESERVE)
    search = Search(evaluator, configured, deadline, progress)
    ranked = search.run()
    wirings = [configured, *ranked[: SHOWN + 1]]
    usual = evaluator.subject.usual
    for _ in range(ROUNDS):
        results = sorted(_results(evaluator, wirings, end), key=lambda one: one.score)
        mine = next(one for one in results if one.wiring == configured)
        best, equivalent = _choose(results, mine, known, usual, seed)
        more = [] if best.accept_length <= NO_MATCH else _alike(search, best.wiring)
        if set(more) <= set(wirings):
            break
        wirings += more
    constant = evaluator.constant_score()
    return Diagnosis(
        _verdict(best, mine, known, constant),
        mine if known else None,
        best,
        tuple(equivalent),
        tuple(results),
        len(search.trials | {one.wiring for one in results}),
        constant,
        time.monotonic() - began,
        search.finished,
        evaluator.streams.untried,
    )


def _alike(search: Search, best: Wiring) -> list[Wiring]:
    """What may not be told from the best, as far as there is time to look."""
    try:
        return search.alike(best)
    except OutOfTime:
        search.finished = False
        return []


def _results(evaluator: Evaluator, wirings: Sequence[Wiring], end: float | None) -> list[Result]:
    """The first two always; the rest while there is time."""
    found: list[Result] = []
    for wiring in dict.fromkeys(wirings):
        if len(found) >= 2 and end is not None and time.monotonic() > end:
            break
        found.append(evaluator.result(wiring))
    return found


def _choose(
    results: Sequence[Result],
    configured: Result,
    known: bool,
    usual: Mapping[str, str],
    seed: int,
) -> tuple[Result, list[Result]]:
    """The best wiring, and those that cannot be told from it.

    Of equals the configured one is best, else the one with the fewest changes and oddities, and of those the
    one with the fewest oddities.
    """
    lowest = results[0]
    equals = [one for one in results if indistinguishable(one, lowest, seed)]
    if known and configured in equals:
        best = configured
    else:
        best = min(equals, key=lambda one: _asks(one.wiring, configured.wiring, usual, one.score))
    others = [one for one in results if one is not best and indistinguishable(one, best, seed)]
    return best, others


def _asks(
    wiring: Wiring, configured: Wiring, usual: Mapping[str, str], score: float
) -> tuple[int, int, float]:
    """How much a wiring asks to be believed, and of that by what is odd in itself."""
    return cost(wiring, configured, usual), cost(wiring, wiring, usual), score


def indistinguishable(one: Result, other: Result, seed: int = 0) -> bool:
    """Whether two scores differ by next to nothing, or by no more than chance over prompts."""
    if one is other or abs(one.gain(other)) < EQUAL:
        return True
    low, high = one.gain_interval(other, seed)
    return low <= 0 <= high


def _verdict(best: Result, configured: Result, known: bool, constant: float) -> Verdict:
    if best.accept_length <= NO_MATCH or best.by_depth[0] >= constant:
        return "no-match"
    return "configured-is-best" if known and best is configured else "better-wiring"


def heat_map(
    evaluator: Evaluator, best: Wiring, seconds: float | None = None
) -> dict[tuple[int, str], list[float | None]]:
    """The best wiring with one block moved: the sieve's score by block, read and depth.

    Of deep targets all depths of the stream, and else what the search computed anyway; None is what was not
    tried or cannot be read.

    Args:
        evaluator: of the weights.
        best: the wiring.
        seconds: after which nothing more is computed.
    """
    streams = evaluator.streams
    end = None if seconds is None else time.monotonic() + seconds
    kinds = dict.fromkeys(r for tap in range(streams.depth + 1) for r in streams.reads(tap))
    heat: dict[tuple[int, str], list[float | None]] = {}
    for block in range(len(best.taps)):
        for read in kinds:
            row: list[float | None] = []
            for tap in range(streams.depth + 1):
                moved = best.with_block(block, tap, read)
                deep = streams.depth > COARSE and read != STREAM
                if read not in streams.reads(tap):
                    row.append(None)
                elif deep or (end is not None and time.monotonic() > end):
                    row.append(evaluator.sieved(moved))
                else:
                    row.append(evaluator.sieve(moved))
            heat[block, read] = row
    return heat
