"""A Hub on loopback for every test that asks for one, and a checkpoint with a report that passes."""

import hashlib
import importlib.util
import json
import threading
import types
from pathlib import Path

import huggingface_hub
import pytest
from huggingface_hub import constants
from huggingface_hub.utils import _http
from typer.testing import CliRunner

from eagle3_interop.convert import api
from eagle3_interop.recipes.publish.push_cli import app
from eagle3_interop.schemas.intervals import accept_length_interval

HERE = Path(__file__).parent


def load(path):
    """A module beside these tests (tests are not a package)."""
    spec = importlib.util.spec_from_file_location(f"_recipes_{path.stem}", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


drafts = load(HERE.parent / "drafts.py")
hub_server = load(HERE / "hub_server.py")


@pytest.fixture(scope="session")
def server():
    with hub_server.Server() as running:
        thread = threading.Thread(target=running.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        yield running
        running.shutdown()
        thread.join()


@pytest.fixture
def hub(server, monkeypatch, tmp_path):
    """An empty Hub, the client pointed at it and logged in, and retries that don't wait."""
    server.hub = hub_server.Hub(server.url)
    home = tmp_path / "hf-home"
    template = server.url + "/{repo_id}/resolve/{revision}/{filename}"
    monkeypatch.setenv("HF_TOKEN", hub_server.TOKEN)
    monkeypatch.setattr(constants, "ENDPOINT", server.url)
    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
    monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", True)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(home / "hub"))
    monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(home / "token"))
    monkeypatch.setattr(constants, "AGENT_HARNESSES_PATH", str(home / "harnesses"), raising=False)
    server.hub.waits = []
    clock = types.SimpleNamespace(sleep=server.hub.waits.append)
    monkeypatch.setattr(_http, "time", clock)
    huggingface_hub.HfFileSystem.clear_instance_cache()
    yield server.hub
    huggingface_hub.HfFileSystem.clear_instance_cache()
    _http.close_session()


@pytest.fixture(scope="session")
def converted(tmp_path_factory):
    """A draft converted from speculators' layout to vLLM's."""
    folder = tmp_path_factory.mktemp("converted")
    source = drafts.speculators(folder / "source")
    license_of_source = "---\nlicense: llama3.1\nlanguage: en\n---\n# The source\n"
    (source / "README.md").write_text(license_of_source)
    (source / "LICENSE").write_text("The licence of the source.\n")
    target = drafts.target(folder / "target")
    options = api.Options(target=str(target), target_name="org/target")
    conversion = api.convert(api.load(str(source), "auto", options), "vllm", options)
    api.write(conversion, folder / "draft")
    return folder / "draft"


@pytest.fixture
def checkpoint(converted, tmp_path):
    """A copy of it that a test may change."""
    copy = tmp_path / "draft"
    copy.mkdir()
    for file in converted.iterdir():
        (copy / file.name).write_bytes(file.read_bytes())
    return copy


def digests(folder):
    files = [path for path in folder.iterdir() if path.is_file() and path.name != "README.md"]
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in sorted(files)}


PROMPTS = 40


def counted(drafts, per_position, tokens=2304, tree=None):
    """Counters as a report has them, and their rows: shared out over the prompts as evenly as can be."""

    def share(total, index):
        return total // PROMPTS + (index < total % PROMPTS)

    rows = []
    for index in range(PROMPTS):
        positions = [share(count, index) for count in per_position]
        row = {"steps": share(drafts, index), "accepted": sum(positions), "per_position": positions}
        rows.append(row)
    accepted = sum(per_position)
    acceptance = {
        "accept_length": 1 + accepted / drafts,
        "interval": list(accept_length_interval([(r["steps"], r["accepted"]) for r in rows], 0)),
        "drafts": drafts,
        "accepted": accepted,
        "per_position": per_position,
        "num_draft_tokens": len(per_position),
        "tree": tree,
        "tokens": tokens,
    }
    return acceptance, rows


def compared(acceptance):
    """The gate that holds a checkpoint's counters against its source's."""
    counters = {key: acceptance[key] for key in ("drafts", "accepted", "per_position")}
    return {"name": "counters-equal", "wanted": counters, "got": counters, "passed": True}


SAME = [
    {"name": "draft-vocabulary", "wanted": 0, "got": 0, "passed": True},
    {"name": "logits-agree", "wanted": 5e-5 * 12.5, "got": 0.0, "passed": True},
]
ACCEPTANCE, ROWS = counted(883, [560, 408, 289, 175])


def report_of(folder, **changes):
    """A report of eagle3-validate, typed out by hand."""
    logits = {"max_abs_diff": 0.0, "mean_abs_diff": 0.0, "top1_agreement": 1.0, "positions": 96}
    logits |= {"largest": 12.5}
    report = {
        "verdict": "pass",
        "gates": [compared(ACCEPTANCE), *SAME],
        "findings": [],
        "acceptance": ACCEPTANCE,
        "prompts": ROWS,
        "against": {
            "source": "/home/bob/source",
            "layout": "speculators",
            "acceptance": ACCEPTANCE,
            "logits": logits | {"kl": [0.0, 0.0, 0.0, 0.0]},
            "first_difference": None,
            "differences": {},
            "tensors": {},
        },
        "sweep": None,
        "sampling": None,
        "engine": None,
        "checkpoint": {"files": digests(folder)},
        "environment": {
            "versions": {"eagle3-interop": "0.1.0", "torch": "2.13.0"},
            "device": "cpu",
            "dtype": "float32",
            "seed": 0,
            "target": {"path": "/home/bob/target", "revision": None},
            "prompts": {"source": "bundled", "count": 40, "sha256": "0f" * 32},
            "max_new_tokens": 96,
        },
    }
    return report | changes


@pytest.fixture
def report(tmp_path):
    """Write a report about a folder."""

    def write(folder, **changes):
        path = tmp_path / "report.json"
        path.write_text(json.dumps(report_of(folder, **changes)))
        return path

    return write


@pytest.fixture
def measured(checkpoint):
    """Changes of a report to other counters that agree with one another."""

    def make(drafts, per_position, tree=None):
        acceptance, rows = counted(drafts, per_position, tree=tree)
        against = report_of(checkpoint)["against"] | {"acceptance": acceptance}
        gates = [compared(acceptance), *SAME]
        return {"acceptance": acceptance, "prompts": rows, "against": against, "gates": gates}

    return make


@pytest.fixture
def push():
    """Run eagle3-push in this process."""

    def run(folder, report, *options, repo="org/draft"):
        words = [str(folder), "--repo-id", repo, "--report", str(report), *map(str, options)]
        return CliRunner().invoke(app, words, catch_exceptions=False)

    return run
