"""The same code on a CUDA device: `make gpu`, which fails where there is none."""

from pathlib import Path

import pytest

from eagle3_interop.validators.accept.shape import Shape
from eagle3_interop.validators.prove.request import Request
from eagle3_interop.validators.prove.validate import validate

DATA = Path(__file__).resolve().parents[1] / "data"

pytestmark = pytest.mark.gpu


def measured(device, dtype="float32", shape=None):
    request = Request(
        checkpoint=str(DATA / "drafts" / "plain"),
        target=str(DATA / "target"),
        prompts=DATA / "prompts.jsonl",
        shape=shape or Shape.chain(4),
        new_tokens=96,
        device=device,
        dtype=dtype,
    )
    return validate(request)[0].acceptance


def test_a_chain_is_counted_as_on_a_cpu():
    assert measured("cuda").per_position == (560, 408, 289, 175)


def test_a_tree_is_counted_as_on_a_cpu():
    counted = measured("cuda", shape=Shape(3, 3, 8))
    assert (counted.drafts, counted.accepted) == (812, 1489)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_half_precision_accepts_about_as_much(dtype):
    low, high = measured("cuda").interval
    assert low < measured("cuda", dtype).accept_length < high
