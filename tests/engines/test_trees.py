"""SGLang's trees against the reference's, to the last token."""

from pathlib import Path

import pytest
import trained
from matrix import EQUAL, Matrix

from eagle3_interop.validators.accept.shape import Shape

pytestmark = pytest.mark.engine

TREES = [Shape(3, 2, 6), Shape(3, 3, 8), Shape(5, 4, 16)]


@pytest.mark.parametrize(
    "shape",
    [
        pytest.param(shape, id="-".join(map(str, shape)), marks=mark)
        for shape, mark in zip(TREES, (pytest.mark.conformance,) * 2 + ((),), strict=True)
    ],
)
def test_counters_equal_the_references(shape: Shape, tmp_path: Path, matrix: Matrix) -> None:
    source = trained.source("plain")
    wanted = trained.expected(source, "speculators", shape)
    folder = trained.convert(source, "sglang", tmp_path)
    found = trained.generate(
        "sglang", folder, topk=shape.topk, steps=shape.steps, draft_tokens=shape.tokens
    )
    same = trained.wrote_the_targets_text(found) and trained.same(found, wanted)
    title = "{} steps, top-k {}, {} draft tokens".format(*shape)
    text = trained.figures(found)
    matrix.claim("trees", "plain", title, EQUAL, same, text, sglang=found["version"])
