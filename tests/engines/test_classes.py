"""Random drafts in the three draft classes: logits equal to float32 rounding, or refused with reason."""

import functools
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
import random_drafts
import random_mla
import run_engine
import torch
import trained
from matrix import EQUAL, REFUSED, Matrix
from random_drafts import Spec
from safetensors.numpy import load_file, save_file
from safetensors.torch import load_file as torch_file

from eagle3_interop.convert import api
from eagle3_interop.convert.decide import fitting
from eagle3_interop.schemas.findings import Refused, errors
from eagle3_interop.validators.network.reference import Features, Network
from eagle3_interop.validators.network.weights import Tables, Weights

pytestmark = pytest.mark.engine

GRID = random_drafts.GRID | random_mla.GRID
FIXED = ("MLA, half-split rope", "MLA, yarn, mscale 1 and .5")
STEPS, LENGTH = 4, 24

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
        inputs: row to the file of its tokens and features.
        found: (engine, folder) to logits by target id and step, or the error.
        versions: of the engines.
    """

    cells: dict[tuple[str, str, str], Cell] = field(default_factory=dict)
    sources: dict[tuple[str, str], Path] = field(default_factory=dict)
    inputs: dict[str, Path] = field(default_factory=dict)
    found: dict[tuple[str, Path], Any] = field(default_factory=dict)
    versions: dict[str, str] = field(default_factory=dict)


def target_of(spec: Spec) -> Path:
    """The target that a draft is for."""
    return trained.MLA_TARGET if spec.latent else trained.TARGET


def options_of(spec: Spec) -> api.Options:
    return trained.options(target_of(spec))


@contextmanager
def by_force() -> Iterator[None]:
    """Let the converter write what it refuses."""
    with (
        mock.patch.object(api, "errors", return_value=[]),
        mock.patch.object(fitting, "errors", return_value=[]),
        mock.patch.object(api, "_prove", return_value=None),
    ):
        yield


def convert(source: Path, layout: str, destination: str, options: api.Options) -> Cell:
    output = source.parent / f"{source.name}-to-{destination}"

    def write() -> None:
        # Nobody trained these drafts: what a class makes of them counts.
        loaded = api.load(str(source), layout, replace(options, trainer="none"))
        api.write(api.convert(loaded, destination, options), output)

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


def engines_of(destination: str, spec: Spec) -> tuple[str, ...]:
    """Whose class shall compute a conversion; speculators has none for latent attention."""
    everywhere = random_mla.BOTH if spec.latent else tuple(RIGS)
    return everywhere if destination == "universal" else (destination,)


@pytest.fixture(scope="session")
def grid(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Grid:
    """The selected drafts in every layout, converted everywhere, and each class on all its folders."""
    root, this = tmp_path_factory.mktemp("classes"), Grid()
    inputs = this.inputs
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
            source = random_drafts.write(spec, layout, root / name, target_of(spec))
            this.sources[row, layout] = source
            for destination in DESTINATIONS:
                this.cells[row, layout, destination] = convert(
                    source, layout, destination, options_of(spec)
                )
    jobs: dict[str, list[tuple[str, Path]]] = {engine: [] for engine in RIGS}
    for (row, layout), folder in this.sources.items():
        jobs[layout].append((row, folder))
    for (row, layout, destination), cell in this.cells.items():
        for engine in engines_of(destination, GRID[row]):
            # Where nothing can be written, the class is given the source itself.
            jobs[engine].append((row, cell.folder or this.sources[row, layout]))
    for engine, mine in jobs.items():
        for target in (trained.TARGET, trained.MLA_TARGET):
            chosen = [(row, folder) for row, folder in mine if target_of(GRID[row]) == target]
            if chosen:
                run(engine, target, [(folder, inputs[row]) for row, folder in chosen], this, root)
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


def run(
    engine: str, target: Path, folders: list[tuple[Path, Path]], grid: Grid, root: Path
) -> None:
    cases = [
        {"draft": str(folder), "inputs": str(inputs), "output": f"{folder}.{engine}.safetensors"}
        for folder, inputs in folders
    ]
    request = {"target": str(target), "steps": STEPS, "cases": cases}
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


def rows(grid: dict[str, Spec]) -> list[Any]:
    """Each draft in each of its layouts; of those with latent attention a few are enough for every change."""
    return [
        pytest.param(
            row,
            layout,
            marks=pytest.mark.conformance if spec.latent and row not in FIXED else (),
        )
        for row, spec in grid.items()
        for layout in spec.layouts
    ]


@pytest.mark.parametrize("destination", DESTINATIONS)
@pytest.mark.parametrize(("row", "layout"), rows(GRID))
def test_equal_or_refused(
    row: str, layout: str, destination: str, grid: Grid, matrix: Matrix
) -> None:
    cell = grid.cells[row, layout, destination]
    wanted = grid.found[layout, grid.sources[row, layout]]
    assert not isinstance(wanted, str), wanted
    engines = engines_of(destination, GRID[row])
    versions = {engine: grid.versions[engine] for engine in (layout, *engines)}
    title, section = f"{row} ({layout})", "latent" if GRID[row].latent else "classes"
    apart, folder = {}, cell.folder or grid.sources[row, layout]
    for engine in engines:
        # speculators leaves the window where it was while draft steps go on.
        still = GRID[row].windowed and "speculators" in (engine, layout) and engine != layout
        found = grid.found[engine, folder]
        apart[engine] = difference(found, wanted, 1 if still else STEPS)
    worst = max(apart.values())
    if cell.codes:
        figure = "fails" if worst == float("inf") else f"{worst:.1g}"
        detail = f"{', '.join(cell.codes)}: {figure}"
        deserved = worst > 1e-3
        matrix.claim(section, title, destination, REFUSED, deserved, detail, **versions)
        return
    said = {e: grid.found[e, folder] for e in apart if apart[e] == float("inf")}
    failures = " ".join(text for text in said.values() if isinstance(text, str))
    detail = f"{worst:.0e}{failures and ': '}{failures[:200]}"
    matrix.claim(section, title, destination, EQUAL, worst < TOLERANCE, detail, **versions)


@pytest.mark.parametrize(("row", "layout"), rows(random_mla.GRID))
def test_the_reference_computes_latent_attention_as_the_class(
    row: str, layout: str, grid: Grid, matrix: Matrix
) -> None:
    wanted, folder = grid.found[layout, grid.sources[row, layout]], grid.sources[row, layout]
    assert not isinstance(wanted, str), wanted
    found = reference(folder, layout, options_of(GRID[row]), grid.inputs[row])
    apart, versions = difference(found, wanted, STEPS), {layout: grid.versions[layout]}
    title = f"{row} ({layout})"
    matrix.claim("latent", title, "reference", EQUAL, apart < TOLERANCE, f"{apart:.0e}", **versions)


@torch.no_grad()
def reference(
    folder: Path, layout: str, options: api.Options, inputs: Path
) -> np.ndarray[Any, Any]:
    """The reference's logits, as `logits_of` has them, of a folder as this engine's release reads it."""
    loaded = api.load(str(folder), layout, replace(options, trainer="none"))
    tables = tables_of(Path(str(options.target)))
    weights = Weights.read(loaded.reading, loaded.checkpoint, tables=lambda: tables)
    network = Network(loaded.reading.draft, weights)
    given = torch_file(inputs)
    tokens, features = given["token_ids"], given["features"][None]
    taps = loaded.reading.draft.taps or ()
    blocks = dict(zip(taps, features.chunk(max(1, len(taps)), dim=-1), strict=True))
    hidden = network.fuse(Features(blocks, features))
    ids = weights.target_ids
    order = slice(None) if ids is None else ids.argsort()
    cache, found = None, []
    for depth in range(STEPS):
        fed = torch.cat([tokens[depth:], tokens.new_zeros(depth)])[None]
        if cache is None:
            out, cache = network.begin(fed, hidden)
        else:
            out = network.step(fed, out.feedback, cache)
        logits = network.logits(out.normed)[0][:, order].numpy().copy()
        logits[LENGTH - depth :] = 0
        found.append(logits)
    return np.stack(found)


@functools.cache
def tables_of(target: Path) -> Tables:
    tensors = torch_file(target / "model.safetensors")
    return Tables(tensors["model.embed_tokens.weight"].float(), tensors["lm_head.weight"].float())
