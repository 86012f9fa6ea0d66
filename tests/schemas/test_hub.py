"""Ids of the Hub: one form, told in one place."""

import re
from pathlib import Path

import pytest

from eagle3_interop.schemas.hub import is_hub_id, split_hub_id

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("text", ["org/name", "Qwen/Qwen3-8B", "a/b.c_d"])
def test_an_id_is_an_owner_and_a_name(text):
    assert is_hub_id(text)
    assert split_hub_id(text) == (text, None)
    assert split_hub_id(f"{text}@refs/pr/1") == (text, "refs/pr/1")


@pytest.mark.parametrize(
    "text", ["name", "./draft", "../draft", "/org/name", "a/b/c", "org/", "ö/x", "org/name\n", ""]
)
def test_a_path_is_none(text):
    assert not is_hub_id(text)
    assert split_hub_id(text) is None


def test_no_other_file_says_what_an_id_looks_like():
    """A pattern of a name, a slash and a name."""
    pattern = re.compile(r"\[\\w\.-\][*+]/")
    rooms = ("schemas", "convert", "validators", "recipes")
    said = [
        path
        for room in rooms
        for path in (ROOT / room).rglob("*.py")
        if pattern.search(path.read_text())
    ]
    assert [path.relative_to(ROOT).as_posix() for path in said] == ["schemas/hub.py"]
