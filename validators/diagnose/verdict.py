"""From a search to an answer: the verdict, what cannot be told apart, and the JSON."""

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from eagle3_interop.validators.diagnose.scoring import Evaluator, Result
from eagle3_interop.validators.diagnose.search import COARSE, EQUAL, OutOfTime, Progress, Search
from eagle3_interop.validators.diagnose.wiring import STREAM, Wiring, cost

Verdict = Literal["configured-is-best", "better-wiring", "no-match"]

NO_MATCH = 1.1
"""Accept length up to which a draft drafts nothing."""

SHOWN = 10
"""Wirings that are scored on all texts, beside the configured one."""

WORK = 4e12
"""Multiplications that comparing wirings on all texts may take: of a large draft fewer are compared."""

ROUNDS = 3
"""Times that the best is chosen: with each, what may be equal to it is compared as well."""

CHANCE = 0.05
"""Probability that any of all the wirings that are compared seems better by chance alone."""

FEWEST = 6
"""Texts below which nothing is written: what all of them prefer, the next ones may not. All n texts lean to one side
by chance with probability 2 ^ (1 - n)."""

WEAK = 1.3
"""Accept length below which a draft is right so seldom that its loss alone is not believed."""

THIN = 0.1
"""Nats, over all depths, of a gain that is small, whatever its interval."""

ENOUGH = "More prompts, of the kind that the draft was trained on, settle it."

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
        idle: changes to it that make no difference at all.
        doubts: why the answer is to be believed less, in words, and what would settle it.
        uncompared: wirings that may be equal to the best as well, and were not scored on all texts.
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
    idle: tuple[Wiring, ...] = ()
    doubts: tuple[str, ...] = ()
    uncompared: int = 0

    @property
    def texts(self) -> int:
        """Texts that were scored."""
        return len(self.best.steps)

    @property
    def unsupported(self) -> str:
        """Why the texts do not support writing the best wiring, in words; empty where they do."""
        if self.texts < FEWEST:
            return f"{_counted(self.texts)} {'are' if self.texts > 1 else 'is'} too few to tell."
        if self.configured is not None and not _confirmed(self.best, self.configured):
            return "acceptance does not rise with it."
        return ""

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
            "idle": ["; ".join(one.changes(self.best.wiring)) for one in self.idle],
            "doubts": list(self.doubts),
            "uncompared": self.uncompared,
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
            entry["gain_interval"] = list(result.gain_interval(self.configured))
            entry["changes"] = result.wiring.changes(self.configured.wiring)
        return entry


def diagnose(
    evaluator: Evaluator,
    configured: Wiring | None = None,
    *,
    known: bool = True,
    budget: float | None = None,
    progress: Progress | None = None,
) -> Diagnosis:
    """Search, and judge what was found.

    Args:
        evaluator: of the weights.
        configured: where to start; the subject's own unless given.
        known: that wiring is what the config says, not a guess.
        budget: seconds.
        progress: told each evaluation.
    """
    began = time.monotonic()
    configured = configured or evaluator.subject.configured
    end = None if budget is None else began + budget
    deadline = None if budget is None else began + budget * (1 - RESERVE)
    search = Search(evaluator, configured, deadline, progress)
    ranked = search.run()
    wirings = [configured, *ranked[: SHOWN + 1]]
    usual = evaluator.subject.usual
    room, left = max(2 * (SHOWN + 2), int(WORK / evaluator.work)), 0
    for _ in range(ROUNDS):
        results = sorted(_results(evaluator, wirings, end), key=lambda one: one.score)
        mine = next(one for one in results if one.wiring == configured)
        best, equivalent = choose(results, mine, known, usual)
        near = [] if best.accept_length <= NO_MATCH else _alike(search, best.wiring)
        more = [one for one in near if one not in wirings]
        taken = more[: max(0, room - len(wirings))]
        left = len(more) - len(taken)
        if not taken:
            break
        wirings += taken
    constant = evaluator.constant_score()
    idle = _idle(search, best.wiring)
    return Diagnosis(
        _verdict(best, mine, known, constant),
        mine if known else None,
        best,
        tuple(one for one in equivalent if one.wiring not in idle),
        tuple(one for one in results if one is mine or one.wiring not in idle),
        len(search.trials | {one.wiring for one in results}),
        constant,
        time.monotonic() - began,
        search.finished,
        evaluator.streams.untried,
        tuple(idle),
        tuple(_doubts(best, mine if known else None, results)),
        left,
    )


def _idle(search: Search, best: Wiring) -> list[Wiring]:
    """Changes that make no difference, as far as there is time to look."""
    try:
        return search.idle(best)
    except OutOfTime:
        return []


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


def choose(
    results: Sequence[Result], configured: Result, known: bool, usual: Mapping[str, str]
) -> tuple[Result, list[Result]]:
    """The best wiring, and those that cannot be told from it.

    Of equals the configured one is best, else the one with the fewest changes and oddities, and of those the
    one with the fewest oddities. Where a weak draft's acceptance falls with it, the configured one stays: on texts
    unlike those of the training, other layers can lower the loss of what it never gets right.
    """
    level = 1 - CHANCE / len(results)
    lowest = results[0]
    equals = [one for one in results if indistinguishable(one, lowest, level)]
    if known and configured in equals:
        best = configured
    else:
        best = min(equals, key=lambda one: _asks(one.wiring, configured.wiring, usual, one.score))
    if known and best.accept_length < WEAK and not _confirmed(best, configured):
        best = configured  # said among the doubts
    others = [one for one in results if one is not best and indistinguishable(one, best, level)]
    return best, others


def _confirmed(best: Result, configured: Result) -> bool:
    """Whether acceptance, which is coarser, at least does not speak against it."""
    return best is configured or best.accept_length >= configured.accept_length


def _doubts(best: Result, configured: Result | None, results: Sequence[Result]) -> Iterator[str]:
    """Why the answer is to be believed less, and what would settle it."""
    texts = len(best.steps)
    if texts < FEWEST:
        yield (
            f"{_counted(texts)} cannot show what the next ones prefer. Give {FEWEST} prompts or more, better 40, "
            "of the kind that the draft was trained on."
        )
    if configured is None:
        return
    if best is configured:
        yield from _passed_over(configured, results)
        return
    gain, (low, high) = best.gain(configured), best.gain_interval(configured)
    if not _confirmed(best, configured):
        yield (
            f"Cross-entropy prefers the best wiring by {gain:.2f} nats, acceptance does not: "
            f"{best.accept_length:.2f} tokens a step against {configured.accept_length:.2f} as configured. {ENOUGH}"
        )
    elif best.lengthening(configured)[0] <= 0:
        yield (
            f"Acceptance cannot tell the two apart: {best.accept_length:.2f} tokens a step against "
            f"{configured.accept_length:.2f} as configured. {ENOUGH}"
        )
    if gain < THIN or low <= 0:
        yield f"The gain is small: {gain:.2f} nats ({low:.2f} to {high:.2f}). {ENOUGH}"


def _passed_over(configured: Result, results: Sequence[Result]) -> Iterator[str]:
    """A wiring that seems better by its loss, and why it was not taken."""
    lowest = results[0]
    gain, (low, high) = lowest.gain(configured), lowest.gain_interval(configured)
    if lowest is configured or gain < EQUAL or low <= 0:
        return
    changes = "; ".join(lowest.wiring.changes(configured.wiring))
    better = f"{changes}: better by {gain:.2f} nats ({low:.2f} to {high:.2f})"
    if indistinguishable(lowest, configured, 1 - CHANCE / len(results)):
        yield f"{better}, as the luckiest of {len(results)} wirings may seem by chance. {ENOUGH}"
    else:
        yield (
            f"{better}, but acceptance falls with it: {lowest.accept_length:.2f} tokens a step against "
            f"{configured.accept_length:.2f} as configured. {ENOUGH}"
        )


def _counted(texts: int) -> str:
    return f"{texts} text" if texts == 1 else f"{texts} texts"


def _asks(
    wiring: Wiring, configured: Wiring, usual: Mapping[str, str], score: float
) -> tuple[int, int, float]:
    """How much a wiring asks to be believed, and of that by what is odd in itself."""
    return cost(wiring, configured, usual), cost(wiring, wiring, usual), score


def indistinguishable(one: Result, other: Result, level: float = 1 - CHANCE) -> bool:
    """Whether two scores differ by next to nothing, or by no more than chance over texts."""
    if one is other or abs(one.gain(other)) < EQUAL:
        return True
    low, high = one.gain_interval(other, level)
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
