"""Helpers shared by the tests of this folder."""

import importlib.util
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
