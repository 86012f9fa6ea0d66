"""Let the tests here import the rigs (``import run_engine``): they are scripts, no package."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Engines take minutes: they run where they are asked for by their marker."""
    if "engine" in config.option.markexpr or "conformance" in config.option.markexpr:
        return
    skip = pytest.mark.skip(reason="starts real engines: make engines")
    for item in items:
        if item.get_closest_marker("engine"):
            item.add_marker(skip)


@pytest.fixture(scope="session")
def matrix() -> Iterator["object"]:
    """Where tests record their cells; written when all are done."""
    from matrix import Matrix

    found = Matrix()
    yield found
    found.save()
