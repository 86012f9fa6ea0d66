"""How fast an engine serves with a draft and without: what it is asked to time, and what follows from it.

Everything is the time of decoding: each group of prompts is run for one new token and for many, and the difference of
the two counts, so that neither reading prompts nor a cache of them does. A step that verifies w tokens of one text is
timed as a step of w texts that decode a token each, without a draft: the same multiplications, as long as texts are
short against the weights. Free of torch.
"""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import median

from eagle3_interop.schemas.report import Speed, SpeedAtBatch
from eagle3_interop.validators.accept.costs import between
from eagle3_interop.validators.accept.shape import Shape
from eagle3_interop.validators.engines.answers import Ran, Run

ROUNDS = 3
"""Timed rounds, after one that is not."""

PROMPTS = 8
"""Prompts that are timed, unless a batch needs more."""

LONGEST = 64
"""New tokens of a text, at most."""

STEPS = 16
"""Steps that the time of a target step is the mean of."""

WIDEST = 64
"""Tokens verified a step that a sweep asks for."""

Key = tuple[str, int, int, int]
"""Kind (``serve`` or ``step``), batch size, round and group."""


@dataclass(frozen=True)
class Plan:
    """What an engine is to run, in this order.

    Attributes:
        keys: of each timing.
        runs: two for each key: one new token, then many.
    """

    keys: tuple[Key, ...]
    runs: tuple[Run, ...]

    def timings(self, ran: Sequence[Ran]) -> dict[Key, tuple[Ran, Ran]]:
        """By key what the two runs took; the round that warms up is left out."""
        pairs = zip(ran[::2], ran[1::2], strict=True)
        return {key: pair for key, pair in zip(self.keys, pairs, strict=True) if key[2]}


def plan(
    prompts: Sequence[tuple[int, ...]],
    batches: Sequence[int],
    new_tokens: int,
    widths: Sequence[int] = (),
) -> Plan:
    """What is to be timed.

    Args:
        prompts: token ids.
        batches: texts at a time, each to be timed.
        new_tokens: of the validation's texts.
        widths: texts at a time whose single steps are timed.
    """
    many = min(new_tokens, LONGEST)
    keys, runs = [], []
    for number in range(ROUNDS + 1):
        work = [
            ("serve", size, i, group, many)
            for size in batches
            for i, group in enumerate(_groups(prompts, size))
        ]
        work += [
            ("step", size, 0, _group(prompts, size), min(STEPS + 1, new_tokens)) for size in widths
        ]
        for kind, size, i, group, tokens in work:
            keys.append((kind, size, number, i))
            runs += [Run(group, 1), Run(group, tokens)]
    return Plan(tuple(keys), tuple(runs))


def _groups(prompts: Sequence[tuple[int, ...]], size: int) -> list[tuple[tuple[int, ...], ...]]:
    """Whole groups of the first prompts; one group where there are too few, which takes some again."""
    some = prompts[:PROMPTS]
    if size > len(some):
        return [_group(prompts, size)]
    return [tuple(some[at : at + size]) for at in range(0, len(some) - size + 1, size)]


def _group(prompts: Sequence[tuple[int, ...]], size: int) -> tuple[tuple[int, ...], ...]:
    return tuple(prompts[i % len(prompts)] for i in range(size))


def widths(batch: int, shape: Shape, *, sweep: bool) -> tuple[int, ...]:
    """Numbers of tokens whose verification is timed: 1, 2, 4 and on, up to what is verified a step."""
    most = batch * max(shape.tokens, WIDEST if sweep else 1)
    found = [1]
    while found[-1] < most:
        found.append(min(2 * found[-1], most))
    return tuple(found)


def speed(
    drafting: tuple[Plan, Sequence[Ran]],
    bare: tuple[Plan, Sequence[Ran]] | None,
    shape: Shape,
    *,
    one_pass: bool,
) -> Speed:
    """The report's figures.

    Args:
        drafting: what the engine with the draft was asked, and what it took.
        bare: the same without the draft, where that was run.
        shape: what is drafted a step.
        one_pass: the draft proposes all tokens in one pass.
    """
    ours = drafting[0].timings(drafting[1])
    theirs = bare[0].timings(bare[1]) if bare else {}
    sizes = list(dict.fromkeys(size for kind, size, _, _ in ours if kind == "serve"))
    batches = [_at_batch(size, ours, theirs) for size in sizes]
    steps = sorted({size for kind, size, _, _ in theirs if kind == "step"})
    target_step = [(size, median(_step_times(theirs, size))) for size in steps] or None
    first = batches[0]
    draft_step = None
    if target_step and (whole := _whole_step(ours, first["batch"])) is not None:
        verified = between(target_step, first["batch"] * shape.tokens)
        if verified is not None:
            draft_step = max(0.0, whole - verified) / (1 if one_pass else shape.steps)
    timed = [pair[1] for key, pair in ours.items() if key[0] == "serve"]
    return {
        "batch": first["batch"],
        "with": first["with"],
        "without": first["without"],
        "ratio": first["ratio"],
        "target_step": target_step,
        "draft_step": draft_step,
        "batches": batches,
        "rounds": ROUNDS,
        "new_tokens": max((one.tokens // max(1, len(one.outputs)) for one in timed), default=0),
        "same_texts": _same_texts(ours, theirs),
    }


Timings = dict[Key, tuple[Ran, Ran]]


def _at_batch(size: int, ours: Timings, theirs: Timings) -> SpeedAtBatch:
    with_, without = _rates(ours, size), _rates(theirs, size)
    ratio = median(with_) / median(without) if without else None
    return {
        "batch": size,
        "with": median(with_),
        "without": median(without) if without else None,
        "ratio": ratio,
        "spread": (min(with_), max(with_)),
        "spread_without": (min(without), max(without)) if without else None,
    }


def _rates(timings: Timings, size: int) -> list[float]:
    """Tokens a second of each round."""
    seconds: dict[int, float] = defaultdict(float)
    tokens: dict[int, int] = defaultdict(int)
    for (kind, batch, number, _), (short, long) in timings.items():
        if kind == "serve" and batch == size:
            seconds[number] += long.seconds - short.seconds
            tokens[number] += long.tokens - short.tokens
    return [tokens[number] / max(seconds[number], 1e-9) for number in seconds]


def _step_times(timings: Timings, size: int) -> Iterator[float]:
    for (kind, batch, _, _), (short, long) in timings.items():
        if kind == "step" and batch == size:
            steps = (long.tokens - short.tokens) / size
            yield max(0.0, long.seconds - short.seconds) / max(1.0, steps)


def _whole_step(timings: Timings, size: int) -> float | None:
    """Seconds of a step that drafts and verifies; None where the engine does not count its steps."""
    rounds: dict[int, list[tuple[float, int]]] = defaultdict(list)
    for (kind, batch, number, _), (short, long) in timings.items():
        if kind == "serve" and batch == size:
            if long.steps is None:
                return None
            rounds[number].append((long.seconds - short.seconds, long.steps))
    if not rounds:
        return None
    return median(
        sum(s for s, _ in one) / max(1, sum(n for _, n in one)) for one in rounds.values()
    )


def _same_texts(ours: Timings, theirs: Timings) -> float | None:
    """Share of the timed texts that are the same with the draft and without."""
    found = [
        one == other
        for key, (_, long) in ours.items()
        if key in theirs
        for one, other in zip(long.outputs, theirs[key][1].outputs, strict=True)
    ]
    return sum(found) / len(found) if found else None
