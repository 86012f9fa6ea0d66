"""Conversion as a library: what a user of it gets wrong is answered by name."""

from pathlib import Path

import drafts
import pytest

from eagle3_interop.convert import api
from eagle3_interop.schemas.findings import Usage


@pytest.fixture
def loaded(tmp_path):
    return api.load(str(drafts.sglang(tmp_path / "draft")))


def test_paths_may_be_given_as_text_or_as_paths(tmp_path, loaded):
    conversion = api.convert(loaded, "vllm")
    one, other = tmp_path / "one", tmp_path / "other"
    api.write(conversion, str(one))
    api.write(api.convert(api.load(Path(tmp_path / "draft")), "vllm"), other)
    names = sorted(path.name for path in one.iterdir())
    assert names == sorted(path.name for path in other.iterdir())
    assert all((one / name).read_bytes() == (other / name).read_bytes() for name in names)


def test_a_draft_is_described_as_it_was_loaded_or_by_its_description(loaded):
    assert api.describe(loaded) == api.describe(loaded.reading.draft)


@pytest.mark.parametrize(
    ("mistyped", "meant"),
    [
        ("sglnag", "sglang"),
        ("vLLM", "vllm"),
        ("speculator", "speculators"),
        ("univeral", "universal"),
    ],
)
def test_a_mistyped_layout_is_told_which_was_meant(tmp_path, loaded, mistyped, meant):
    with pytest.raises(Usage, match=f"'{mistyped}': did you mean '{meant}'"):
        api.convert(loaded, mistyped)
    with pytest.raises(Usage, match=f"'{mistyped}': did you mean '{meant}'"):
        api.load(str(tmp_path / "draft"), mistyped)


@pytest.mark.parametrize("name", ["", "x", None, 3])
def test_a_layout_like_no_other_is_told_which_there_are(loaded, name):
    with pytest.raises(Usage, match="speculators"):
        api.convert(loaded, name)


@pytest.mark.parametrize(
    ("call", "maker"),
    [
        (lambda _: api.convert("folder", "vllm"), "load"),
        (lambda loaded: api.convert(loaded.reading, "vllm"), "load"),
        (lambda loaded: api.write(loaded, "out"), "convert"),
        (lambda _: api.write("folder", "out"), "convert"),
        (lambda _: api.describe("folder"), "load"),
    ],
)
def test_what_a_function_does_not_take_is_told_which_one_gives_it(loaded, call, maker):
    with pytest.raises(Usage, match=rf"{maker}\("):
        call(loaded)
