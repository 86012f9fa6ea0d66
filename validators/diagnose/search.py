"""The search: among all the ways to feed these weights, the one that they fit best.

Taps are sought by coordinate ascent on the cheap score (depth 0): one block over all depths, then the next,
until nothing improves, from several starts; then all orders of the blocks (swaps, where there are many).
Flags are sought on the full score: one at a time from the best wirings so far, then pairs of the least bad.
The two alternate until neither improves.
"""

import itertools
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace

from eagle3_interop.schemas.draft import default_taps
from eagle3_interop.validators.diagnose.scoring import Evaluator
from eagle3_interop.validators.diagnose.wiring import STREAM, Wiring, cost, distance

COARSE = 24
"""Depths that a block's search visits one by one; deeper targets are visited in strides first."""

STARTS = 3
"""Starts, of all conventions, that taps are sought from."""

PAIRED = 6
"""Flag changes, the least bad ones, that are also tried two at a time."""

TINY = 0.002
"""Nats that a change must gain to be followed."""

NEAR = 0.5
"""Nats at depth 0 within which another read is worth a whole search of its taps."""

NEARLY, SIMPLEST = 0.05, 8
"""Nats of the best within which the simplest few are always compared on all texts."""

EQUAL = 0.01
"""Nats, over all depths, below which a difference is none."""

ALIKE, IDLE, TOGETHER = 0.02, 12, 48
"""Nats, over all depths, that a change may cost to hardly matter; how many of such changes are also made at
once, two and three of them; and how many of those wirings, the simplest, are scored."""

NOTHING = 1e-3
"""Nats, over all depths, below which a change makes no difference at all."""

Progress = Callable[[int], None]


class OutOfTime(Exception):  # noqa: N818
    """The budget is spent; what was found so far counts."""


@dataclass
class Search:
    """One search.

    Attributes:
        evaluator: scores wirings.
        configured: where it starts.
        deadline: `time.monotonic` at which it ends.
        progress: told each evaluation.
        finished: it ended by itself.
        trials: wirings that this search looked at (an evaluator may serve several).
    """

    evaluator: Evaluator
    configured: Wiring
    deadline: float | None = None
    progress: Progress | None = None
    finished: bool = False
    trials: set[Wiring] = field(default_factory=set)

    def run(self) -> list[Wiring]:
        """The wiring that fits best, then what is worth comparing with it."""
        try:
            self._run()
            self.finished = True
        except OutOfTime:
            pass
        return self.ranked()

    def ranked(self) -> list[Wiring]:
        """What was scored over all depths so far, by this search.

        The best first, in its simplest form; then what fits nearly as well, the simplest few; then what differs
        from the best in one point, then the rest, each by its score.
        """
        known = self._scored()
        if not known:
            return [self.configured]
        best = self._simplest(min(known, key=known.__getitem__), known)
        near = [one for one, score in known.items() if score <= known[best] + NEARLY]
        near = sorted(near, key=lambda one: (self._cost(one), known[one]))[:SIMPLEST]
        rest = sorted(known, key=lambda one: (min(distance(one, best), 2), known[one]))
        return list(dict.fromkeys([best, *near, *rest]))

    def _cost(self, wiring: Wiring) -> int:
        return cost(wiring, self.configured, self.evaluator.subject.usual)

    def _scored(self) -> dict[Wiring, float]:
        found = self.evaluator.known_deep()
        return {wiring: found[wiring] for wiring in self.trials if wiring in found}

    def _simplest(self, best: Wiring, known: dict[Wiring, float]) -> Wiring:
        """Of all that fit as well, the one with the fewest changes and oddities."""
        limit = known[best] + EQUAL / 2
        fitting = [wiring for wiring, score in known.items() if score <= limit]
        return min(fitting, key=lambda one: (self._cost(one), known[one]))

    def _run(self) -> None:
        self.deep(self.configured)
        best = self._flags([self._taps_from_conventions(), self.configured])
        for _ in range(4):
            moved = self._reads(self._taps(best))
            improved = self._neighbours(self._flags([self._better(best, [moved], self.deep)]))
            if self.deep(improved) > self.deep(best) - TINY:
                break
            best = improved
        best = self._simplify(min([best, *self._plain(best)], key=self.deep))
        for wiring in self._singles(best):
            self.deep(wiring)
        self._neighbours(best)

    def _plain(self, best: Wiring) -> list[Wiring]:
        """The streams themselves, at the best taps and at the configured ones, under flags as plain as can be."""
        subject = self.evaluator.subject
        usual = self.configured
        for name, value in subject.usual.items():
            if value in subject.options.get(name, ()):
                usual = usual.with_flag(name, value)
        streams = (STREAM,) * len(best.taps)
        return [
            replace(one, taps=taps, reads=streams)
            for one in (self.configured, usual)
            for taps in (best.taps, self.configured.taps)
        ]

    def _simplify(self, best: Wiring) -> Wiring:
        """Take back, one by one, what does not make the fit better."""
        limit = self.deep(best) + EQUAL / 2
        while True:
            simpler = [
                wiring
                for wiring in self._undone(best)
                if self._cost(wiring) < self._cost(best) and self.deep(wiring) <= limit
            ]
            if not simpler:
                return best
            best = min(simpler, key=lambda one: (self._cost(one), self.deep(one)))

    def _undone(self, wiring: Wiring) -> Iterator[Wiring]:
        """The wiring with one change taken back, or one oddity made usual."""
        subject = self.evaluator.subject
        for name, value in self.configured.flags:
            for other in {value, subject.usual.get(name, value)} - {wiring.flag(name)}:
                if other in subject.options.get(name, ()):
                    yield wiring.with_flag(name, other)
        places = list(zip(self.configured.taps, self.configured.reads, strict=True))
        for block, place in enumerate(places):
            yield wiring.with_block(block, *place)
            yield wiring.with_block(block, wiring.taps[block], STREAM)
        yield replace(wiring, reads=(STREAM,) * len(places))

    @staticmethod
    def _better(best: Wiring, others: Iterable[Wiring], score: Callable[[Wiring], float]) -> Wiring:
        """The best of the others if it is clearly better."""
        found = min(others, key=score, default=best)
        return found if score(found) < score(best) - TINY else best

    def alike(self, best: Wiring) -> list[Wiring]:
        """What may not be told from a wiring: simpler ones, changes that hardly matter, several of them at once.

        Changes that make no difference at all are looked for by `idle`: they would double all others. Simpler ones
        stand first, then changes, the least felt first.
        """
        limit, nothing = self.deep(best) + ALIKE, set(self.idle(best))
        simpler = [one for one in self._undone(best) if self._cost(one) < self._cost(best)]
        felt = [one for one in self._moves(best) if one not in nothing and self.deep(one) <= limit]
        felt.sort(key=self.deep)
        some = felt[:IDLE]
        groups = (group for size in (2, 3) for group in itertools.combinations(some, size))
        merged = [one for one in (_merged(best, group) for group in groups) if one is not None]
        merged.sort(key=self._cost)
        several = list(dict.fromkeys(merged))[:TOGETHER]
        near = [one for one in several if self.deep(one) <= limit]
        return [one for one in dict.fromkeys([*simpler, *felt, *near]) if one not in nothing]

    def idle(self, best: Wiring) -> list[Wiring]:
        """Changes of one flag that make no difference at all."""
        score = self.deep(best)
        return [one for one in self._singles(best) if abs(self.deep(one) - score) < NOTHING]

    def _moves(self, best: Wiring) -> Iterator[Wiring]:
        """Each flag's other values; each block elsewhere, or reading otherwise, where the sieve sees little of it."""
        yield from self._singles(best)
        both = [one for one in self._singles(best) if one.flag("residual") != best.flag("residual")]
        for one in both:  # a normed residual hides what the feedback is
            yield from (
                x for x in self._singles(one) if x.flag("feedback") != best.flag("feedback")
            )
        streams, limit = self.evaluator.streams, self.sieve(best) + ALIKE
        for block, (own, read) in enumerate(zip(best.taps, best.reads, strict=True)):
            places = [(tap, read) for tap in self._readable(range(streams.depth + 1), read)]
            places += [(own, other) for other in streams.reads(own)]
            for place in places:
                moved = best.with_block(block, *place)
                near = streams.depth <= COARSE or abs(place[0] - own) <= 1
                score = self.sieve(moved) if near else self.evaluator.sieved(moved)
                if moved != best and score is not None and score <= limit:
                    yield moved

    # Scores, watched by the clock.

    def sieve(self, wiring: Wiring) -> float:
        """The cheap score."""
        self._note(wiring)
        return self.evaluator.sieve(wiring)

    def deep(self, wiring: Wiring) -> float:
        """The full score, on the sieve's texts."""
        self._note(wiring)
        return self.evaluator.deep(wiring)

    def _note(self, wiring: Wiring) -> None:
        if self.deadline is not None and time.monotonic() > self.deadline:
            raise OutOfTime
        if wiring not in self.trials:
            self.trials.add(wiring)
            if self.progress is not None:
                self.progress(1)

    # Taps.

    def _taps_from_conventions(self) -> Wiring:
        starts = [self._on(taps) for taps in self._conventions()]
        starts = sorted(starts, key=self.sieve)[:STARTS] or [self.configured]
        return min((self._taps(start) for start in starts), key=self.deep)

    def _on(self, taps: tuple[int, ...]) -> Wiring:
        """The configured wiring on other taps, read as before where that can be read there."""
        streams, reads = self.evaluator.streams, self.configured.reads
        pairs = zip(taps, reads, strict=True)
        fitting = tuple(read if read in streams.reads(tap) else STREAM for tap, read in pairs)
        return replace(self.configured, taps=taps, reads=fitting)

    def _conventions(self) -> list[tuple[int, ...]]:
        """Taps that configs say where they mean others: all that people are known to have mixed up."""
        taps, depth = self.configured.taps, self.evaluator.streams.depth
        if not taps:
            return []
        found = [taps, tuple(t + 1 for t in taps), tuple(t - 1 for t in taps), taps[::-1]]
        found += [(0, *taps[:-1]), (*taps[1:], depth), tuple(t + 2 for t in taps)]
        triple = default_taps(depth)
        if triple is not None and len(taps) == len(triple):
            found += [triple, tuple(t - 1 for t in triple), tuple(t + 1 for t in triple)]
        even = [round(i * depth / max(1, len(taps) - 1)) for i in range(len(taps))]
        found.append(tuple(even))
        inside = [one for one in found if len(self._readable(one, STREAM)) == len(one)]
        return list(dict.fromkeys(inside))

    def _taps(self, start: Wiring) -> Wiring:
        """Block by block, then all orders, until neither improves."""
        best = start
        while True:
            before = best
            for block in range(len(best.taps)):
                best = self._block(best, block)
            best = min([best, *self._orders(best)], key=self.sieve)
            if self.sieve(best) >= self.sieve(before):
                return before

    def _block(self, wiring: Wiring, block: int) -> Wiring:
        """The best depth for one block."""
        depth, read = self.evaluator.streams.depth, wiring.reads[block]

        def at(tap: int) -> Wiring:
            return wiring.with_block(block, tap, read)

        def score(tap: int) -> float:
            return self.sieve(at(tap))

        taps = self._readable(range(depth + 1), read)
        stride = max(1, depth // COARSE) if len(taps) > COARSE else 1
        taps = [tap for tap in taps if tap % stride == 0]
        found = sorted({*taps, wiring.taps[block]}, key=score)
        while stride > 1:
            stride = max(1, stride // 2)
            near = {tap + step for tap in found[:3] for step in (-stride, stride)}
            found = sorted({*found, *self._readable(near, read)}, key=score)
        return at(found[0])

    def _readable(self, taps: Iterable[int], read: str) -> list[int]:
        streams = self.evaluator.streams
        return [tap for tap in taps if 0 <= tap <= streams.depth and read in streams.reads(tap)]

    def _orders(self, wiring: Wiring) -> Iterator[Wiring]:
        """The same streams given to the blocks in another order: all orders, of many blocks all swaps."""
        count = len(wiring.taps)
        if count <= 4:
            yield from (wiring.permuted(order) for order in itertools.permutations(range(count)))
            return
        for one, other in itertools.combinations(range(count), 2):
            order = list(range(count))
            order[one], order[other] = order[other], order[one]
            yield wiring.permuted(tuple(order))

    def _reads(self, wiring: Wiring) -> Wiring:
        """What each block reads: all alike, then block by block at its depth and the ones beside it."""
        best, streams = wiring, self.evaluator.streams
        kinds = dict.fromkeys(
            read for tap in range(streams.depth + 1) for read in streams.reads(tap)
        )
        for read in kinds:
            fitting = [read if read in streams.reads(tap) else STREAM for tap in wiring.taps]
            alike = replace(wiring, reads=tuple(fitting))
            if alike == wiring:
                continue
            for block in range(len(alike.taps)):
                alike = self._block(alike, block)
            if self.sieve(alike) < self.sieve(best) + NEAR:
                alike = self._taps(alike)
            best = self._better(best, [alike], self.sieve)
        for block in range(len(best.taps)):
            tap = best.taps[block]
            moves = [
                best.with_block(block, near, read)
                for near in (tap - 1, tap, tap + 1)
                if 0 <= near <= streams.depth
                for read in streams.reads(near)
            ]
            best = self._better(best, moves, self.sieve)
        return best

    def _neighbours(self, wiring: Wiring) -> Wiring:
        """The depths beside each block's, by the full score."""
        best = wiring
        for block in range(len(wiring.taps)):
            read = best.reads[block]
            near = {best.taps[block] - 1, best.taps[block] + 1}
            moves = [best.with_block(block, tap, read) for tap in self._readable(near, read)]
            best = min([best, *moves], key=self.deep)
        return best

    # Flags.

    def _flags(self, bases: list[Wiring]) -> Wiring:
        """One flag at a time from each base, then pairs of the least bad; repeated while it helps."""
        best = min(bases, key=self.deep)
        for base in bases:
            singles = sorted(self._singles(base), key=self.deep)
            felt = [one for one in singles if abs(self.deep(one) - self.deep(base)) > TINY]
            pairs = self._pairs(base, felt[:PAIRED])
            best = self._better(best, [*singles, *pairs], self.deep)
        while True:
            better = self._better(best, self._singles(best), self.deep)
            if better == best:
                return best
            best = better

    def _singles(self, base: Wiring) -> Iterator[Wiring]:
        for name, values in self.evaluator.subject.options.items():
            yield from (base.with_flag(name, v) for v in values if v != base.flag(name))

    def _pairs(self, base: Wiring, singles: list[Wiring]) -> Iterator[Wiring]:
        merged = (_merged(base, pair) for pair in itertools.combinations(singles, 2))
        yield from (one for one in merged if one is not None)


def _merged(base: Wiring, changed: Iterable[Wiring]) -> Wiring | None:
    """The changes of several wirings at once; None where two of them change the same thing."""
    merged = base
    for one in changed:
        for name, value in one.flags:
            if value == base.flag(name):
                continue
            if merged.flag(name) != base.flag(name):
                return None
            merged = merged.with_flag(name, value)
        for block, place in enumerate(zip(one.taps, one.reads, strict=True)):
            before = (base.taps[block], base.reads[block])
            if place == before:
                continue
            if (merged.taps[block], merged.reads[block]) != before:
                return None
            merged = merged.with_block(block, *place)
    return merged
