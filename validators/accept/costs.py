"""What a setting makes a second, by costs that an engine was measured with. Free of torch."""

from collections.abc import Sequence
from itertools import pairwise

from eagle3_interop.schemas.report import Speed
from eagle3_interop.validators.accept.shape import Shape


def between(target_step: Sequence[tuple[int, float]], tokens: int) -> float | None:
    """Seconds of a target step that verifies so many tokens, between those that were timed; None beyond them."""
    for (low, before), (high, after) in pairwise([target_step[0], *target_step]):
        if low <= tokens <= high:
            share = (tokens - low) / max(1, high - low)
            return before + share * (after - before)
    return None


def expected(found: Speed, shape: Shape, accept_length: float, *, one_pass: bool) -> float | None:
    """Tokens a second that a setting makes by the measured costs; None where they do not reach so far.

    Args:
        found: the costs, and the batch size that they are for.
        shape: the setting.
        accept_length: of it.
        one_pass: the draft proposes all tokens in one pass.
    """
    if found["target_step"] is None or found["draft_step"] is None:
        return None
    verified = between(found["target_step"], found["batch"] * shape.tokens)
    if verified is None:
        return None
    whole = verified + found["draft_step"] * (1 if one_pass else shape.steps)
    return found["batch"] * accept_length / whole if whole > 0 else None
