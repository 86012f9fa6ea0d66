"""The tiny pair, recorded once for all tests of this folder, and small means to change what was recorded."""

import importlib.util
import json
import shutil
import sys
from pathlib import Path

import pytest
import torch

from eagle3_interop.validators.prove.request import Request
from eagle3_interop.validators.prove.validate import validate
from eagle3_interop.validators.record.library import Library
from eagle3_interop.validators.record.record import record
from eagle3_interop.validators.record.wish import Wish

sys.path.insert(0, str(Path(__file__).parent))

DATA = Path(__file__).resolve().parents[1] / "data"
TARGET = DATA / "target"
NEW_TOKENS = 48


@pytest.fixture(autouse=True, scope="session")
def _one_thread():
    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def drafts():
    """Random drafts."""
    path = Path(__file__).parents[1] / "validators" / "drafts.py"
    spec = importlib.util.spec_from_file_location("_random_drafts", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="session")
def prompts(tmp_path_factory):
    """Eight of the tiny pair's prompts."""
    path = tmp_path_factory.mktemp("prompts") / "prompts.jsonl"
    lines = (DATA / "prompts.jsonl").read_text().splitlines()[:8]
    path.write_text("\n".join(lines))
    return path


@pytest.fixture(scope="session")
def recorded(tmp_path_factory, prompts):
    """The tiny target, recorded in float32 by transformers."""
    out = tmp_path_factory.mktemp("recorded") / "streams"
    made(out, prompts)
    return out


def made(out, prompts, target=TARGET, **options):
    """A recording by transformers."""
    options = {"new_tokens": NEW_TOKENS, "device": "cpu", **options}
    wish = Wish(target=str(target), out=out, prompts=prompts, **options)
    return record(wish, Library(wish), say=lambda _: None)


@pytest.fixture
def copied(recorded, tmp_path):
    """The recording, to be changed."""
    return Path(shutil.copytree(recorded, tmp_path / "copy"))


@pytest.fixture
def manifest(copied):
    """Changes the copy's manifest."""

    def change(edit):
        path = copied / "streams.json"
        told = json.loads(path.read_text())
        edit(told)
        path.write_text(json.dumps(told))
        return copied

    return change


def draft(name):
    """A trained draft."""
    return str(DATA / "drafts" / name)


def measured(name, *, target=TARGET, **options):
    """A validation of a trained draft, float32 on the CPU."""
    request = Request(checkpoint=draft(name), target=str(target), device="cpu", **options)
    return validate(request)[0]


def counters(report):
    """Steps, accepted tokens, and these by position."""
    one = report.acceptance
    return one.drafts, one.accepted, one.per_position, one.tokens
