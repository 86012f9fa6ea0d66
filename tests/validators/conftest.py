"""Helpers shared by the tests of this folder."""

import importlib.util
from pathlib import Path

import pytest
import torch


@pytest.fixture(autouse=True, scope="session")
def _one_thread():
    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def drafts():
    """The module drafts.py beside this file (tests are not a package)."""
    spec = importlib.util.spec_from_file_location("_drafts", Path(__file__).with_name("drafts.py"))
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
