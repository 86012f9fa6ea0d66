"""Helpers shared by the tests of this folder."""

import importlib.util
from html.parser import HTMLParser
from pathlib import Path

import pytest
import torch


@pytest.fixture(autouse=True, scope="session")
def _one_thread():
    torch.set_num_threads(1)


def load(name):
    """A module beside this file (tests are not a package)."""
    spec = importlib.util.spec_from_file_location(
        f"_{name}", Path(__file__).with_name(f"{name}.py")
    )
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="session")
def drafts():
    """Random drafts."""
    return load("drafts")


@pytest.fixture(scope="session")
def serial():
    """A second implementation of the draft, and engines that run it token by token."""
    return load("serial")


class Balanced(HTMLParser):
    """Fails on a tag that is closed twice or never."""

    VOID = frozenset({"meta", "br", "line", "rect", "circle", "polyline"})

    def __init__(self):
        super().__init__()
        self.open = []

    def handle_starttag(self, tag, _attributes):
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, _attributes):
        assert tag in self.VOID

    def handle_endtag(self, tag):
        if tag not in self.VOID:
            assert self.open.pop() == tag


@pytest.fixture
def whole():
    """Asserts that a page closes every tag that it opens."""

    def check(content):
        parser = Balanced()
        parser.feed(content)
        assert parser.open == []

    return check
