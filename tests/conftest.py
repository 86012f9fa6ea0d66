"""Keep the checkout off sys.path: its folders share names with PyPI packages."""

import sys

import pytest


def pytest_configure(config: pytest.Config) -> None:
    root = str(config.rootpath)
    sys.path[:] = [entry for entry in sys.path if entry not in ("", root)]
