"""What was measured of an engine's speed, in sentences."""

from collections.abc import Iterator

from eagle3_interop.schemas.report import Report, Speed, SpeedAtBatch

EVEN = 0.02
"""A ratio this near to 1 is neither faster nor slower."""


def speed_lines(report: Report) -> Iterator[str]:
    """With the draft and without, at each batch size; what a step costs; what to do where drafting makes it slower."""
    speed = report.speed
    if speed is None:
        return
    served = (report.engine or {}).get("how") == "server"
    who = "the server" if served else "the engine"
    several = len(speed["batches"]) > 1
    for row in speed["batches"]:
        yield _at(row, several) + compared(row, who)
    if (size := slower_from(speed)) is not None and several and size > speed["batches"][0]["batch"]:
        yield f"from batch size {size} on, drafting makes {who} slower"
    yield from _costs(speed)
    if (share := speed["same_texts"]) is not None and share < 1:
        yield f"{100 * share:.0f} % of the timed texts were the same with the draft and without"
    if served and speed["without"] is None:
        yield "--baseline-server URL, the same target served without the draft, would tell the speed-up"
    if (speed["ratio"] or 1) < 1 - EVEN:
        yield "what to do: ask the weights for their wiring (eagle3-diagnose), and rank fewer draft tokens by these costs (--sweep)"


def _at(row: SpeedAtBatch, several: bool) -> str:
    return f"at batch size {row['batch']}, " if several or row["batch"] > 1 else ""


def compared(row: SpeedAtBatch | Speed, who: str) -> str:
    """Tokens a second with the draft and without, and what drafting makes of it."""
    with_, without, ratio = row["with"], row["without"], row["ratio"]
    if without is None or ratio is None:
        return f"with the draft {with_:.1f} tokens a second"
    made = f"{ratio:.2f} times faster" if ratio > 1 else f"{1 / ratio:.2f} times slower"
    if abs(ratio - 1) <= EVEN:
        made = "neither faster nor slower"
    return f"with the draft {with_:.1f} tokens a second, without it {without:.1f}: drafting makes {who} {made}"


def slower_from(speed: Speed) -> int | None:
    """The batch size from which on every measured one is slower with the draft."""
    rows = sorted(speed["batches"], key=lambda row: row["batch"])
    found = None
    for row in reversed(rows):
        if row["ratio"] is None or row["ratio"] >= 1 - EVEN:
            break
        found = row["batch"]
    return found


def _costs(speed: Speed) -> Iterator[str]:
    if not speed["target_step"]:
        return
    steps = ", ".join(f"{tokens}: {1000 * s:.1f} ms" for tokens, s in speed["target_step"])
    yield f"a target step by tokens that it verifies: {steps}"
    if speed["draft_step"] is not None:
        yield f"a draft step: {1000 * speed['draft_step']:.1f} ms"
