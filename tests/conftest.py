"""Keep the checkout off sys.path: its folders share names with PyPI packages. Note every code that is raised."""

import sys
from typing import Any

import pytest

from eagle3_interop.schemas.findings import Finding

RAISED: set[str] = set()
"""Codes of the findings that were made in this run, whoever made them."""

_init = Finding.__init__


def _noting(self: Finding, **fields: Any) -> None:
    _init(self, **fields)
    RAISED.add(self.code)


Finding.__init__ = _noting  # type: ignore[method-assign]


@pytest.fixture
def raised() -> set[str]:
    """Every code that a test of this run has provoked so far."""
    return RAISED


def pytest_configure(config: pytest.Config) -> None:
    root = str(config.rootpath)
    sys.path[:] = [entry for entry in sys.path if entry not in ("", root)]


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """What is asked of a whole run comes last, and only where everything runs."""
    last = [item for item in items if item.get_closest_marker("whole_run")]
    rest = [item for item in items if item not in last]
    whole = config.args == config.getini("testpaths") and not config.option.keyword
    items[:] = [*rest, *last] if whole else rest
    if last and not whole:
        config.hook.pytest_deselected(items=last)
