"""Trained drafts in whole engines: counters equal to the reference's, to the last token."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import run_engine
import trained
from matrix import DIFFERS, EQUAL, FAILS, Matrix

from eagle3_interop.convert import api
from eagle3_interop.convert.decide import inspection

pytestmark = pytest.mark.engine


def flip(**changes: Any) -> Callable[[Any], Any]:
    """A change of the description, by dotted paths with ``__`` for the dot."""

    def change(draft: Any) -> Any:
        values = draft.model_dump()
        for path, value in changes.items():
            *parents, last = path.split("__")
            place = values
            for name in parents:
                place = place[name]
            place[last] = value
        return type(draft).model_validate(values)

    return change


FLIPS: dict[str, Callable[[Any], Any]] = {
    "plain": flip(taps=(2, 4, 6)),
    "norm_before_residual": flip(residual="raw"),
    "embed_tap": flip(taps=(1, 3, 5)),
    "qwen3": flip(layers__attention__qk_norm=False),
    "fc_norm": flip(feedback="pre-norm"),
    "two_layers": flip(layers__count=1, layers__windows=(None,)),
    "four_taps": flip(taps=(0, 1, 3, 4)),
    "library_defaults": flip(residual="raw"),
    "sliding": flip(layers__windows=(None,)),
}

EVERYWHERE = ("plain", "norm_before_residual")
COLUMNS = ("vllm source", "vllm vllm", "vllm universal", "sglang sglang", "sglang universal")
FIXED = {
    *((name, column) for name in EVERYWHERE for column in COLUMNS),
    *((name, f"{engine} universal") for name in FLIPS for engine in ("vllm", "sglang")),
} - {
    ("plain", "vllm vllm"),
    ("norm_before_residual", "vllm vllm"),
    ("norm_before_residual", "sglang sglang"),
    ("norm_before_residual", "vllm source"),
    ("plain", "sglang sglang"),  # test_journey.py's
    *((name, "vllm universal") for name in ("library_defaults", "four_taps", "two_layers")),
}
"""With those of the other files 25 starts of an engine, when all nine drafts are there."""


def cells() -> list[Any]:
    return [
        pytest.param(
            name,
            column,
            marks=() if (name, column) in FIXED else pytest.mark.conformance,
            id=f"{name}-{column.replace(' ', '-')}",
        )
        for name in trained.names()
        for column in COLUMNS
    ]


@pytest.fixture(scope="session")
def scratch(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("trained")


@pytest.mark.parametrize(("name", "column"), cells())
def test_counters_equal_the_references(
    name: str, column: str, scratch: Path, matrix: Matrix
) -> None:
    engine, layout = column.split()
    source = trained.source(name)
    wanted = trained.expected(source, "speculators")
    flipped = trained.expected(source, "speculators", change=FLIPS[name])
    record_references(matrix, name, wanted, flipped)
    title = f"{'vLLM' if engine == 'vllm' else 'SGLang'}: {layout}"
    folder = source if layout == "source" else trained.convert(source, layout, scratch)
    said = inspection.engines(api.load(str(folder)))[engine]
    if layout == "source" and said["as_is"] == "does-not-load":
        codes = {item["code"] for item in said["findings"]} & {"fc-blocks", "foreign-name"}
        with pytest.raises(run_engine.EngineError, match="load_weights"):
            trained.generate(engine, folder)
        matrix.claim("trained", name, title, FAILS, bool(codes), ", ".join(sorted(codes)))
        return
    assert said["as_is"] == "same"
    found = trained.generate(engine, folder)
    same = trained.wrote_the_targets_text(found) and trained.same(found, wanted)
    text, versions = trained.figures(found), {engine: found["version"]}
    matrix.claim("trained", name, title, EQUAL, same, text, **versions)


def record_references(matrix: Matrix, row: str, wanted: Any, flipped: Any) -> None:
    """The reference's counters, and that a framework without the feature would count others."""
    matrix.record("trained", row, "reference", EQUAL, trained.figures(wanted))
    differs = not trained.same(flipped, wanted)
    matrix.claim("trained", row, "flipped", DIFFERS, differs, trained.figures(flipped))


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=() if name == "norm_before_residual" else pytest.mark.conformance)
        for name in ("norm_before_residual", "qwen3", "library_defaults", "sliding")
        if name in trained.names()
    ],
)
def test_the_stock_class_computes_another_network(name: str, scratch: Path, matrix: Matrix) -> None:
    source = trained.source(name)
    folder = trained.convert(source, "sglang", scratch)
    forced = trained.as_stock(folder, scratch / f"{name}-stock")
    wanted = trained.expected(source, "speculators")
    without = trained.expected(source, "speculators", change=FLIPS[name])
    found = trained.generate("sglang", forced)
    lost = trained.same(found, without) and not trained.same(found, wanted)
    detail = f"{trained.figures(found)} for {trained.figures(wanted)}"
    matrix.claim("stock", name, "SGLang stock", DIFFERS, lost, detail, sglang=found["version"])
