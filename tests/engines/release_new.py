"""What a release that came out does otherwise than the newest known one."""

from collections.abc import Iterable, Mapping, Sequence

import release_seen
from release_grid import Grid
from release_page import TITLES, WORDS
from release_seen import SAME, Cell

from eagle3_interop.schemas.engines.release import Release, computing
from eagle3_interop.schemas.engines.versions import before


def new(
    engine: str, version: str, grid: Grid, known: Sequence[Release], *, kept: bool = False
) -> list[str]:
    """What a release that came out does otherwise than the newest known, and the value to add.

    Args:
        engine: a key of ``VERSIONS``.
        version: of the release.
        grid: the folders.
        known: the releases that are known; the last is the one before.
        kept: take what an earlier run left.

    Returns:
        Lines for people.
    """
    last, title = known[-1], f"{TITLES[engine]} {version}"
    seen = release_seen.see(engine, version, grid, kept=kept)
    if isinstance(seen, str):
        return [f"{title} did not run: the stand-ins do not carry it. It says:", seen]
    changed = [cell for cell in release_seen.judge(engine, last, seen, grid) if not cell.agrees]
    if not changed:
        return [
            f"{title} did with all {len(seen)} folders what the rules of {last.name} say.",
            f"Nothing to add but until={version!r} of {last.name}, and {version!r} in VERSIONS of "
            "tests/engines/release_rows.py.",
        ]

    def left_by(powers: Mapping[str, bool]) -> list[Cell]:
        value = computing(last, since=version, until=version, **powers)
        return [cell for cell in release_seen.judge(engine, value, seen, grid) if not cell.agrees]

    powers, left = {}, changed
    for power, now in powers_of(changed).items():
        tried = left_by({**powers, power: now})
        if len(tried) <= len(left):  # else its row changed for another reason
            powers, left = {**powers, power: now}, tried
    name = "_".join((engine.upper(), *version.split(".")))
    old = "_".join((engine.upper(), *last.since.split(".")))
    ends = before(version.removesuffix(".0"))
    given = "".join(f", {power}={now}" for power, now in powers.items())
    return [
        f"{title} did otherwise with {len(changed)} of {len(seen)} folders than {last.name}:",
        *_told(changed, title),
        f"The value to add to schemas/engines, at the end of RELEASES[{engine!r}], and the end of the one before:",
        f"    {name} = computing({old}, since={version!r}, until={version!r}{given})",
        f"    {old}: until={ends!r}",
        *(["It explains all of them."] if not left else []),
        *(
            [f"It leaves {len(left)} open, by another rule; look in the release's code:"]
            if left
            else []
        ),
        *_told(left, title),
    ]


def _told(cells: Iterable[Cell], title: str) -> list[str]:
    return [
        f"    {cell.case.name}: {WORDS[cell.predicted.verdict]} by the rules ({cell.predicted.detail}); "
        f"{title}: {WORDS[cell.seen.verdict]} ({cell.seen.detail[:160]})"
        for cell in cells
    ]


def powers_of(cells: Iterable[Cell]) -> dict[str, bool]:
    """What the classes compute now, or no longer, by the rows that changed."""
    found = {}
    for cell in cells:
        for power in POWERS.get(cell.case.row, ()):
            found[power] = cell.seen.verdict == SAME
    return found


POWERS: dict[str, tuple[str, ...]] = {
    "two layers": ("later_layers",),
    "norm_before_residual": ("residual_normed",),
    "norm_before_fc": ("input_norm",),
    "fc_norm": ("block_norms",),
    "norm_output": ("post_norm",),
    "two taps": ("other_blocks",),
    "four taps": ("other_blocks",),
    "own embeddings": ("own_embeddings",),
    "full vocabulary": ("own_whole_head",),
    "full vocabulary and its d2t": ("full_map",),
    "no fc": ("no_fc",),
    "llama, MLP biases": ("mlp_bias",),
    "fc bias": ("fc_bias",),
    "llama, sliding window": ("windows",),
    "gelu": ("any_activation",),
    "logit_scale": ("logit_scale",),
}
"""By row, the fields of `Powers` that are its feature."""
