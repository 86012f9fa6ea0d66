"""Variants of trained drafts, each with one thing more that SGLang's stock class leaves out.

The counters of both engines on one universal folder are the reference's; the stock class, forced,
gives those of the network without it.
"""

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import trained
from matrix import DIFFERS, EQUAL, Matrix
from test_trained import flip, record_references

from eagle3_interop.convert import api

pytestmark = [pytest.mark.engine]

WINDOW = 12


def perturb_embeddings(tensors: trained.Tensors) -> None:
    table = tensors["embed_tokens.weight"]
    scale = 0.5 * float(table.astype("float32").std())
    tensors["embed_tokens.weight"] = (
        table.astype("float32") + trained.noise(table.shape, scale).astype("float32")
    ).astype(table.dtype)


def add_biases(tensors: trained.Tensors, parts: str = "qkvo") -> None:
    for seed, part in enumerate(parts):
        weight = tensors[f"layers.0.self_attn.{part}_proj.weight"]
        bias = trained.noise(weight.shape[:1], 0.3, seed)
        tensors[f"layers.0.self_attn.{part}_proj.bias"] = bias


def in_decoder(**keys: Any) -> Callable[[dict[str, Any]], None]:
    return lambda config: config["transformer_layer_config"].update(keys)


SLIDING = {
    "layer_types": ["sliding_attention"],
    "sliding_window": WINDOW,
    "use_sliding_window": True,
    "max_window_layers": 0,
}
NOTHING: Callable[[Any], None] = lambda _: None  # noqa: E731

VARIANTS: dict[str, tuple[str, Callable[..., None], Callable[..., None], Callable[[Any], Any]]] = {
    "plain with embeddings of its own": (
        "plain",
        NOTHING,
        perturb_embeddings,
        flip(vocabulary__embeddings="target"),
    ),
    "plain with q/k/v/o biases": (
        "plain",
        in_decoder(attention_bias=True),
        add_biases,
        flip(layers__attention__qkv_bias=False),
    ),
    f"plain with a window of {WINDOW}": (
        "plain",
        in_decoder(**SLIDING),
        NOTHING,
        flip(layers__windows=(None,)),
    ),
    "qwen3 with q/k/v biases": (
        "qwen3",
        in_decoder(attention_bias=True),
        lambda tensors: add_biases(tensors, "qkv"),
        flip(layers__attention__qkv_bias=False),
    ),
    f"qwen3 with a window of {WINDOW}": (
        "qwen3",
        in_decoder(**SLIDING),
        NOTHING,
        flip(layers__windows=(None,)),
    ),
}
"""Row: the trained draft, changes of its config and tensors, and the network without the feature."""

FIXED = {("plain with embeddings of its own", "sglang")}


@pytest.fixture(scope="session")
def scratch(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("variants")


def folder_of(row: str, scratch: Path) -> Path:
    """The variant as speculators would have written it (qwen3's o_proj bias is zero, as vLLM's)."""
    name, config, tensors, _ = VARIANTS[row]
    folder = scratch / row.replace(" ", "-").replace("/", "")
    return (
        folder
        if folder.exists()
        else trained.changed(trained.source(name), folder, config, tensors)
    )


def cells(fixed: set[tuple[str, str]], engines: tuple[str, ...]) -> list[Any]:
    return [
        pytest.param(
            row,
            engine,
            id=f"{row}-{engine}".replace(" ", "-"),
            marks=() if (row, engine) in fixed else pytest.mark.conformance,
        )
        for row in VARIANTS
        if VARIANTS[row][0] in trained.names()
        for engine in engines
    ]


@pytest.mark.parametrize(("row", "engine"), cells(FIXED, ("vllm", "sglang", "stock")))
def test_counters(row: str, engine: str, scratch: Path, matrix: Matrix) -> None:
    source = folder_of(row, scratch)
    layout = "vllm" if row.startswith("qwen3 with q/k/v") else "speculators"
    wanted = trained.expected(source, layout)
    without = trained.expected(source, layout, change=VARIANTS[row][3])
    record_references(matrix, row, wanted, without)
    destination = "universal"
    if layout == "vllm":  # o_proj has a bias in speculators' qwen3 layer alone: no folder for all
        destination = "vllm" if engine == "vllm" else "sglang"
    folder = trained.convert(source, destination, scratch)
    if engine == "stock":
        folder = trained.as_stock(folder, scratch / f"{source.name}-stock")
    found = trained.generate("sglang" if engine == "stock" else engine, folder)
    assert trained.wrote_the_targets_text(found)
    text, versions = trained.figures(found), {found["engine"]: found["version"]}
    if engine == "stock":
        detail, lost = f"{text} for {trained.figures(wanted)}", not trained.same(found, wanted)
        matrix.claim("stock", row, "SGLang stock", DIFFERS, lost, detail, **versions)
        return
    title = f"{'vLLM' if engine == 'vllm' else 'SGLang'}: {destination}"
    matrix.claim("trained", row, title, EQUAL, trained.same(found, wanted), text, **versions)


@pytest.mark.conformance
@pytest.mark.parametrize("engine", ["vllm", "sglang"])
def test_taps_that_were_trained_in_another_order(
    engine: str, scratch: Path, matrix: Matrix
) -> None:
    """fc's blocks out of order, and the user's word for it: the converter permutes them back."""

    def permute(tensors: trained.Tensors) -> None:
        low, middle, high = np.split(tensors["fc.weight"], 3, axis=1)
        tensors["fc.weight"] = np.concatenate([high, low, middle], axis=1)

    source = scratch / f"permuted-{engine}"
    trained.changed(trained.source("plain"), source, tensors=permute)
    wanted = trained.expected(trained.source("plain"), "speculators")
    row = "plain, fc over taps 5, 1, 3"
    record_references(matrix, row, wanted, trained.expected(source, "speculators"))
    options = dataclasses.replace(trained.OPTIONS, taps=(5, 1, 3))
    folder = scratch / f"permuted-{engine}-universal"
    conversion = api.convert(api.load(str(source), "auto", options), "universal", options)
    api.write(conversion, folder)
    found = trained.generate(engine, folder)
    title = f"{'vLLM' if engine == 'vllm' else 'SGLang'}: universal"
    text, versions = trained.figures(found), {engine: found["version"]}
    matrix.claim("trained", row, title, EQUAL, trained.same(found, wanted), text, **versions)
