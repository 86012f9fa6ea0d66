"""Let the tests here import the rigs (``import run_engine``): they are scripts, no package."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture(scope="session")
def matrix() -> Iterator["object"]:
    """Where tests record their cells; written when all are done."""
    from matrix import Matrix

    found = Matrix()
    yield found
    found.save()
