"""Random drafts in the three draft classes: logits equal to float32 rounding, or refused with reason."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
import random_drafts
import run_engine
import trained
from matrix import EQUAL, REFUSED, Matrix
from random_drafts import GRID, Spec
from safetensors.numpy import load_file, save_file

from eagle3_interop.convert import api
from eagle3_interop.convert.decide import fitting
from eagle3_interop.schemas.findings import Refused, errors

pytestmark = pytest.mark.engine

STEPS, LENGTH = 4, 24
AS_SERVED = replace(trained.OPTIONS, trainer="none")
"""Nobody trained these drafts: what a class makes of them counts."""

DESTINATIONS = ("speculators", "sglang", "vllm", "universal")
RIGS = {
    "speculators": "speculators-class",
    "sglang": "sglang-draft-class",
    "vllm": "vllm-draft-class",
}
TOLERANCE = 2e-5
"""Of the largest logit: float32 rounding (2**-24) times the few hundred terms of a row, four steps deep."""


@dataclass
class Cell:
    """A conversion: its folder, and why it was refused where it was.

    Attributes:
        folder: what was written, by force where it was refused; None where nothing could be.
        codes: of the refusal.
        forced: what stopped the writing even by force.
    """

    folder: Path | None = None
    codes: tuple[str, ...] = ()
    forced: str = ""


@dataclass
class Grid:
    """Everything that was converted and run.

    Attributes:
        cells: (row, source layout, destination) to the conversion.
        sources: (row, source layout) to the folder.
        found: (engine, folder) to logits by target id and step, or the error.
        versions: of the engines.
    """

    cells: dict[tuple[str, str, str], Cell] = field(default_factory=dict)
    sources: dict[tuple[str, str], Path] = field(default_factory=dict)
    found: dict[tuple[str, Path], Any] = field(default_factory=dict)
    versions: dict[str, str] = field(default_factory=dict)


@contextmanager
def by_force() -> Iterator[None]:
    """Let the converter write what it refuses."""
    with (
        mock.patch.object(api, "errors", return_value=[]),
        mock.patch.object(fitting, "errors", return_value=[]),
        mock.patch.object(api, "_prove", return_value=None),
    ):
        yield


def convert(source: Path, layout: str, destination: str) -> Cell:
    output = source.parent / f"{source.name}-to-{destination}"

    def write() -> None:
        loaded = api.load(str(source), layout, AS_SERVED)
        api.write(api.convert(loaded, destination, trained.OPTIONS), output)

    try:
        write()
    except Refused as refused:
        codes = tuple(sorted({item.code for item in errors(refused.findings)}))
    else:
        return Cell(output)
    try:
        with by_force():
            write()
    except Exception as error:  # whatever stops it is the answer
        return Cell(None, codes, f"{type(error).__name__}: {error}")
    return Cell(output, codes)


def engines_of(destination: str) -> tuple[str, ...]:
    return tuple(RIGS) if destination == "universal" else (destination,)


@pytest.fixture(scope="session")
def grid(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Grid:
    """The selected drafts in every layout, converted everywhere, and each class on all its folders."""
    root, this = tmp_path_factory.mktemp("classes"), Grid()
    inputs = {}
    selected = {
        item.callspec.params.get("row")
        for item in request.session.items
        if hasattr(item, "callspec")
    }
    for row, spec in GRID.items():
        if row not in selected:
            continue
        inputs[row] = write_inputs(root / f"{len(inputs)}.inputs.safetensors", spec)
        for layout in spec.layouts:
            name = f"{len(this.sources)}-{layout}"
            source = random_drafts.write(spec, layout, root / name, trained.TARGET)
            this.sources[row, layout] = source
            for destination in DESTINATIONS:
                this.cells[row, layout, destination] = convert(source, layout, destination)
    jobs: dict[str, list[tuple[str, Path]]] = {engine: [] for engine in RIGS}
    for (row, layout), folder in this.sources.items():
        jobs[layout].append((row, folder))
    for (row, _, destination), cell in this.cells.items():
        if cell.folder is not None:
            for engine in engines_of(destination):
                jobs[engine].append((row, cell.folder))
    for engine, mine in jobs.items():
        run(engine, [(folder, inputs[row]) for row, folder in mine], this, root)
    return this


def write_inputs(path: Path, spec: Spec) -> Path:
    rng = np.random.default_rng(1)
    width = max(1, len(spec.taps)) * random_drafts.TARGET_WIDTH
    tensors = {
        "token_ids": rng.integers(0, random_drafts.V, LENGTH),
        "features": rng.standard_normal((LENGTH, width)).astype(np.float32),
    }
    save_file(tensors, path)
    return path


def run(engine: str, folders: list[tuple[Path, Path]], grid: Grid, root: Path) -> None:
    cases = [
        {"draft": str(folder), "inputs": str(inputs), "output": f"{folder}.{engine}.safetensors"}
        for folder, inputs in folders
    ]
    request = {"target": str(trained.TARGET), "steps": STEPS, "cases": cases}
    variables = trained.plugin_variables(root) if engine == "sglang" else None
    answer = run_engine.run_engine(RIGS[engine], request, variables=variables, timeout_s=1800)
    grid.versions[engine] = answer["version"]
    for (folder, _), case, said in zip(folders, cases, answer["cases"], strict=True):
        grid.found[engine, folder] = said.get("error") or logits_of(Path(case["output"]))


def logits_of(path: Path) -> np.ndarray[Any, Any]:
    """[steps, positions, draft vocabulary], columns ascending by target id; what means nothing is zero."""
    tensors = load_file(path)
    logits = tensors["logits"][:, :, np.argsort(tensors["target_ids"])].copy()
    for depth in range(STEPS):
        logits[depth, LENGTH - depth :] = 0
    return logits


def difference(found: Any, wanted: np.ndarray[Any, Any], depths: int) -> float:
    """The largest, relative to the largest logit; infinite for something else altogether."""
    if isinstance(found, str) or found.shape != wanted.shape or not np.isfinite(found).all():
        return float("inf")
    return float(np.abs(found[:depths] - wanted[:depths]).max() / np.abs(wanted).max())


@pytest.mark.parametrize("destination", DESTINATIONS)
@pytest.mark.parametrize(
    ("row", "layout"), [(row, layout) for row, spec in GRID.items() for layout in spec.layouts]
)
def test_equal_or_refused(
    row: str, layout: str, destination: str, grid: Grid, matrix: Matrix
) -> None:
    cell = grid.cells[row, layout, destination]
    wanted = grid.found[layout, grid.sources[row, layout]]
    assert not isinstance(wanted, str), wanted
    versions = {engine: grid.versions[engine] for engine in (layout, *engines_of(destination))}
    title = f"{row} ({layout})"
    if cell.folder is None:
        matrix.record("classes", title, destination, REFUSED, ", ".join(cell.codes), **versions)
        return
    apart = {}
    for engine in engines_of(destination):
        # speculators leaves the window where it was while draft steps go on.
        still = GRID[row].windowed and "speculators" in (engine, layout) and engine != layout
        found = grid.found[engine, cell.folder]
        apart[engine] = difference(found, wanted, 1 if still else STEPS)
    worst = max(apart.values())
    if cell.codes:
        figure = "fails" if worst == float("inf") else f"{worst:.1g}"
        detail = f"{', '.join(cell.codes)}: {figure}"
        deserved = worst > 1e-3
        matrix.claim("classes", title, destination, REFUSED, deserved, detail, **versions)
        return
    said = {e: grid.found[e, cell.folder] for e in apart if apart[e] == float("inf")}
    failures = " ".join(text for text in said.values() if isinstance(text, str))
    detail = f"{worst:.0e}{failures and ': '}{failures[:200]}"
    matrix.claim("classes", title, destination, EQUAL, worst < TOLERANCE, detail, **versions)
