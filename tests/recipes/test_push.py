"""Pushing with the real client to a Hub on loopback: what arrives, what is refused, what failures say."""

import json
import os
import re
import subprocess
import sys
from hashlib import sha256
from subprocess import PIPE

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from eagle3_interop.convert.read.checkpoint import open_checkpoint

LFS_PUT = r"^PUT /lfs/"

# The client's own way of sending a file over LFS.
pytestmark = pytest.mark.filterwarnings("ignore:Use 'content=:DeprecationWarning")


@pytest.fixture(autouse=True)
def _drawn_at_once(monkeypatch):
    """test_card.py draws the real plot."""
    monkeypatch.setattr(
        "eagle3_interop.recipes.publish.card.draw", lambda _: b"\x89PNG of the test"
    )


def one_line(result):
    """The error on stderr; it must be one line, and hold no token."""
    lines = [line for line in result.stderr.splitlines() if line.startswith("error:")]
    assert len(lines) == 1
    assert "hf_loopback" not in result.output
    return lines[0]


def shard(folder):
    """The weights in two files with an index."""
    tensors = load_file(folder / "model.safetensors")
    names = sorted(tensors)
    halves = {
        "model-00001-of-00002.safetensors": names[::2],
        "model-00002-of-00002.safetensors": names[1::2],
    }
    for file, part in halves.items():
        save_file({n: tensors[n] for n in part}, folder / file, metadata={"format": "pt"})
    (folder / "model.safetensors").unlink()
    weight_map = {name: file for file, part in halves.items() for name in part}
    index = {"metadata": {}, "weight_map": weight_map}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))


def test_a_validated_draft_arrives_whole_in_one_commit(hub, checkpoint, report, push):
    (checkpoint / "notes.txt").write_text("mine")
    (checkpoint / "config.py").write_text("print('code')")
    (checkpoint / ".cache").mkdir()
    (checkpoint / ".cache" / "x").write_text("cached")
    result = push(checkpoint, report(checkpoint), "--json")
    assert result.exit_code == 0, result.output
    files = hub.files("org/draft")
    assert sorted(files) == [
        ".gitattributes",
        "LICENSE",
        "README.md",
        "config.json",
        "eagle3_acceptance.png",
        "eagle3_interop.json",
        "model.safetensors",
    ]
    for name in ("LICENSE", "config.json", "model.safetensors"):
        assert files[name] == (checkpoint / name).read_bytes()
    assert files["eagle3_acceptance.png"].startswith(b"\x89PNG")
    assert hub.repos["org/draft"].messages == [
        "initial commit",
        "Publish a validated EAGLE-3 draft",
    ]
    said = json.loads(result.stdout)
    assert said["status"] == "pushed"
    assert said["commit"] == hub.repos["org/draft"].refs["main"]
    assert said["left"] == [".cache/", "config.py", "notes.txt"]
    assert said["card"].encode() == files["README.md"]
    assert said["pull_request"] is None


def test_nothing_of_this_machine_is_published(hub, checkpoint, report, push, tmp_path):
    assert str(tmp_path.parent) in (checkpoint / "eagle3_interop.json").read_text()
    assert push(checkpoint, report(checkpoint)).exit_code == 0
    for name, content in hub.files("org/draft").items():
        assert str(tmp_path.parent).encode() not in content, name
    provenance = json.loads(hub.files("org/draft")["eagle3_interop.json"])
    assert provenance["source"]["path"] == "source"
    assert provenance["target"]["path"] == "org/target"


def test_pushing_again_changes_and_sends_nothing(hub, checkpoint, report, push):
    assert push(checkpoint, report(checkpoint)).exit_code == 0
    sent = len(hub.requests(LFS_PUT))
    assert sent == 2
    assert push(checkpoint, report(checkpoint)).exit_code == 0
    assert len(hub.requests(LFS_PUT)) == sent
    assert len(hub.repos["org/draft"].messages) == 2


def test_a_new_report_of_the_same_weights_sends_only_the_card(hub, checkpoint, report, push):
    assert push(checkpoint, report(checkpoint)).exit_code == 0
    gates = [{"name": "min-accept-length", "wanted": 2.0, "got": 1 + 1432 / 883, "passed": True}]
    assert push(checkpoint, report(checkpoint, gates=gates, against=None)).exit_code == 0
    assert len(hub.requests(LFS_PUT)) == 2
    assert len(hub.repos["org/draft"].messages) == 3
    assert b"min-accept-length" in hub.files("org/draft")["README.md"]


def test_large_files_go_up_in_parts_where_the_hub_asks_for_it(hub, checkpoint, report, push):
    hub.multipart_over = 100_000
    assert push(checkpoint, report(checkpoint)).exit_code == 0
    assert len(hub.requests(r"^PUT /lfs/\w+/part/")) > 2
    weights = (checkpoint / "model.safetensors").read_bytes()
    assert hub.files("org/draft")["model.safetensors"] == weights


def test_the_weights_of_several_files_are_all_sent(hub, checkpoint, report, push):
    shard(checkpoint)
    assert push(checkpoint, report(checkpoint)).exit_code == 0
    assert {n for n in hub.files("org/draft") if n.startswith("model")} == {
        "model-00001-of-00002.safetensors",
        "model-00002-of-00002.safetensors",
        "model.safetensors.index.json",
    }


def test_weights_of_another_set_are_never_mixed_in(hub, checkpoint, report, push):
    assert push(checkpoint, report(checkpoint)).exit_code == 0
    before = hub.repos["org/draft"].refs["main"]
    shard(checkpoint)
    result = push(checkpoint, report(checkpoint), "--json")
    assert result.exit_code == 3
    found = json.loads(result.stdout)["findings"][0]
    assert found["code"] == "other-weights"
    assert "model.safetensors" in found["message"]
    assert hub.repos["org/draft"].refs["main"] == before


def test_private_is_asked_for_and_not_pretended(hub, checkpoint, report, push):
    assert push(checkpoint, report(checkpoint), "--private").exit_code == 0
    assert hub.repos["org/draft"].private
    hub.make("org/public")
    result = push(checkpoint, report(checkpoint), "--private", repo="org/public")
    assert result.exit_code == 2
    assert "public" in one_line(result)
    assert hub.files("org/public") == {}


def test_a_branch_is_made_and_pushed_to(hub, checkpoint, report, push):
    assert push(checkpoint, report(checkpoint), "--revision", "v2/test").exit_code == 0
    assert "model.safetensors" in hub.files("org/draft", "v2/test")
    assert "model.safetensors" not in hub.files("org/draft", "main")
    assert b"org/draft@v2/test" in hub.files("org/draft", "v2/test")["README.md"]


def test_a_pull_request_leaves_the_branch_alone(hub, checkpoint, report, push):
    hub.make("other/draft", {"README.md": b"---\nlicense: mit\n---\n# Theirs\n"})
    result = push(checkpoint, report(checkpoint), "--create-pr", "--json", repo="other/draft")
    assert result.exit_code == 0, result.output
    assert list(hub.files("other/draft")) == ["README.md"]
    proposed = hub.files("other/draft", "refs/pr/1")
    assert b"# Theirs" in proposed["README.md"]
    assert proposed["model.safetensors"] == (checkpoint / "model.safetensors").read_bytes()
    assert json.loads(result.stdout)["pull_request"].endswith("/other/draft/discussions/1")
    assert hub.requests("^POST /api/repos/create") == []


def test_a_pull_request_about_nothing_is_not_opened(hub, checkpoint, report, push):
    assert push(checkpoint, report(checkpoint)).exit_code == 0
    result = push(checkpoint, report(checkpoint), "--create-pr")
    assert result.exit_code == 0
    assert "no pull request was opened" in result.stderr
    assert hub.repos["org/draft"].pull_requests == 0


def test_a_pull_request_needs_a_repository(hub, checkpoint, report, push):
    result = push(checkpoint, report(checkpoint), "--create-pr")
    assert result.exit_code == 4
    assert "no such repository" in one_line(result)
    assert hub.repos == {}


# What goes wrong outside.


def test_no_token(hub, checkpoint, report, push, monkeypatch):
    monkeypatch.delenv("HF_TOKEN")
    result = push(checkpoint, report(checkpoint))
    assert result.exit_code == 4
    assert "hf auth login" in one_line(result)
    assert hub.log == []


def test_a_token_that_is_not_accepted(hub, checkpoint, report, push, monkeypatch):
    monkeypatch.setenv("HF_TOKEN", "hf_loopbackbutwrong")
    result = push(checkpoint, report(checkpoint))
    assert result.exit_code == 4
    assert "does not accept the token" in one_line(result)
    assert hub.repos == {}


def test_a_token_that_may_not_write(hub, checkpoint, report, push):
    hub.make("org/draft")
    hub.fail("^POST .*/preupload", 403)
    result = push(checkpoint, report(checkpoint))
    assert result.exit_code == 4
    assert "--create-pr" in one_line(result)


@pytest.mark.parametrize("status", [409, 412])
def test_somebody_else_commits_meanwhile(hub, checkpoint, report, push, status):
    hub.fail("^POST .*/commit/", status, times=1)
    result = push(checkpoint, report(checkpoint))
    assert result.exit_code == 4
    assert "changed meanwhile" in one_line(result)
    assert "model.safetensors" not in hub.files("org/draft")
    sent = len(hub.requests(LFS_PUT))
    assert push(checkpoint, report(checkpoint)).exit_code == 0
    assert len(hub.requests(LFS_PUT)) == sent


def test_a_commit_between_our_look_and_ours_is_noticed(hub, checkpoint, report, push):
    repo = hub.make("org/draft", {"README.md": b"# One\n"})

    def theirs():
        repo.add("main", {"README.md": ("regular", b"# Two\n")}, "theirs")

    hub.before("^POST .*/preupload", theirs)
    result = push(checkpoint, report(checkpoint))
    assert result.exit_code == 4
    assert "changed meanwhile" in one_line(result)
    assert hub.files("org/draft") == {"README.md": b"# Two\n"}
    assert push(checkpoint, report(checkpoint)).exit_code == 0
    assert hub.files("org/draft")["README.md"].count(b"# Two") == 1


def test_a_storm_of_server_errors_ends(hub, checkpoint, report, push):
    hub.fail(LFS_PUT, 503)
    result = push(checkpoint, report(checkpoint))
    assert result.exit_code == 4
    assert re.search(r"the Hub failed \(503\)", one_line(result))
    assert 2 <= len(hub.requests(LFS_PUT)) <= 12
    assert "model.safetensors" not in hub.files("org/draft")


def test_a_short_storm_is_weathered(hub, checkpoint, report, push):
    hub.fail(LFS_PUT, 503, times=2)
    hub.fail("^POST .*/preupload", 500, times=2)
    assert push(checkpoint, report(checkpoint)).exit_code == 0
    assert len(hub.waits) == 4


def test_the_rate_limit_is_named_and_its_time_kept(hub, checkpoint, report, push):
    hub.fail("^POST .*/preupload", 429, headers={"Retry-After": "7"})
    result = push(checkpoint, report(checkpoint))
    assert result.exit_code == 4
    assert "rate limit" in one_line(result)
    assert set(hub.waits) == {8.0}


@pytest.mark.parametrize("where", ["^GET /api/models", "^POST .*/preupload", LFS_PUT])
def test_a_connection_that_breaks(hub, checkpoint, report, push, where):
    hub.fail(where, 0)
    result = push(checkpoint, report(checkpoint))
    assert result.exit_code == 4
    assert "cannot be reached" in one_line(result)


def test_offline(hub, checkpoint, report, push, monkeypatch):
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")
    result = push(checkpoint, report(checkpoint))
    assert result.exit_code == 4
    assert "cannot be reached" in one_line(result)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    result = push(checkpoint, report(checkpoint))
    assert result.exit_code == 4
    assert hub.log == []


def test_an_interrupted_push_sends_the_rest_only(hub, checkpoint, report, push):
    shard(checkpoint)
    second = sha256((checkpoint / "model-00002-of-00002.safetensors").read_bytes()).hexdigest()
    hub.fail(f"^PUT /lfs/{second}", 0)
    assert push(checkpoint, report(checkpoint)).exit_code == 4
    assert "config.json" not in hub.files("org/draft")
    arrived = {r.path for r in hub.requests(LFS_PUT) if r.path.split("/")[-1] in hub.large}
    assert arrived
    hub.faults.clear()
    hub.log.clear()
    assert push(checkpoint, report(checkpoint)).exit_code == 0
    assert arrived.isdisjoint(r.path for r in hub.requests(LFS_PUT))
    assert len(hub.repos["org/draft"].messages) == 2


def test_a_killed_push_sends_the_rest_only(hub, server, checkpoint, report, push, tmp_path):
    path = report(checkpoint)
    code = "from eagle3_interop.recipes.publish.push_cli import main; main()"
    environment = os.environ | {
        "HF_ENDPOINT": server.url,
        "HF_HUB_DISABLE_XET": "1",
        "HF_HOME": str(tmp_path / "hf-home"),
    }
    words = [sys.executable, "-c", code, str(checkpoint), "--repo-id", "org/draft"]
    process = subprocess.Popen(
        [*words, "--report", str(path)], env=environment, stdout=PIPE, stderr=PIPE
    )
    hub.before("^POST /lfs/.*/verify", process.kill)
    process.communicate()
    assert process.returncode < 0
    assert list(hub.files("org/draft")) == [".gitattributes"]
    # What the kill cut off midway was asked for, but did not arrive.
    arrived = {r.path for r in hub.requests(LFS_PUT) if r.path.split("/")[-1] in hub.large}
    assert arrived
    hub.log.clear()
    assert push(checkpoint, path).exit_code == 0
    assert arrived.isdisjoint(r.path for r in hub.requests(LFS_PUT))


def test_a_lost_answer_to_the_commit_makes_no_second_one(hub, checkpoint, report, push):
    hub.fail("^POST .*/commit/", 0, times=1, after=True)
    assert push(checkpoint, report(checkpoint)).exit_code == 4
    assert push(checkpoint, report(checkpoint)).exit_code == 0
    assert len(hub.repos["org/draft"].messages) == 2


def test_metadata_that_the_hub_refuses(hub, checkpoint, report, push):
    (checkpoint / "README.md").write_text("---\nlicense: not-a-license\n---\n# Mine\n")
    result = push(checkpoint, report(checkpoint))
    assert result.exit_code == 4
    assert "Invalid metadata in README.md" in one_line(result)
    assert hub.requests("/commit/") == []


# What is read back.


def test_a_file_that_changed_on_the_way_is_noticed(hub, checkpoint, report, push):
    hub.tamper = lambda tree: tree.update({"config.json": ("regular", b"{}")})
    result = push(checkpoint, report(checkpoint))
    assert result.exit_code == 4
    assert "config.json is not what was sent" in one_line(result)


def test_weights_that_changed_on_the_way_are_noticed(hub, checkpoint, report, push):
    other = hub.store("x.bin", b"other weights")
    hub.tamper = lambda tree: tree.update({"model.safetensors": other})
    result = push(checkpoint, report(checkpoint))
    assert result.exit_code == 4
    assert "model.safetensors is not what was sent" in one_line(result)


def test_a_file_that_a_gitignore_swallows_is_noticed(hub, checkpoint, report, push):
    hub.ignored = {"config.json"}
    result = push(checkpoint, report(checkpoint))
    assert result.exit_code == 4
    assert ".gitignore" in one_line(result)


def test_what_was_pushed_is_a_source_whose_headers_come_by_range(hub, checkpoint, report, push):
    assert push(checkpoint, report(checkpoint)).exit_code == 0
    hub.log.clear()
    opened = open_checkpoint("org/draft@main", weights=False)
    here = open_checkpoint(str(checkpoint))
    assert opened.tensors == here.tensors
    assert opened.config == here.config
    served = [r for r in hub.requests("^GET /(cdn|org/draft/resolve)") if r.sent]
    assert served
    assert all(r.range for r in served)
    assert sum(r.sent for r in served) < 20_000 < (checkpoint / "model.safetensors").stat().st_size


def test_what_was_pushed_converts_like_the_folder(hub, checkpoint, report, push, tmp_path):
    from eagle3_interop.convert import api

    assert push(checkpoint, report(checkpoint), "--revision", "v1").exit_code == 0
    options = api.Options(target_name="org/target")
    loaded = api.load("org/draft@v1", "vllm", options)
    api.write(api.convert(loaded, "speculators", options), tmp_path / "back")
    back, here = (
        load_file(tmp_path / "back/model.safetensors"),
        load_file(checkpoint / "model.safetensors"),
    )
    np.testing.assert_array_equal(back["fc.weight"], here["fc.weight"])
    provenance = json.loads((tmp_path / "back/eagle3_interop.json").read_text())
    assert provenance["source"]["path"] == "org/draft@v1"
    assert provenance["source"]["revision"] == hub.repos["org/draft"].refs["v1"]


@pytest.mark.usefixtures("hub")
def test_quiet_leaves_the_card_of_a_dry_run_and_the_place_of_a_push(checkpoint, report, push):
    path = report(checkpoint)
    loud = push(checkpoint, path, "--dry-run")
    quiet = push(checkpoint, path, "--dry-run", "--quiet")
    assert (quiet.stdout, quiet.stderr) == (loud.stdout, "")
    sent = push(checkpoint, path, "--quiet")
    assert (sent.exit_code, sent.stderr) == (0, "")
    assert "read back and equal: " in sent.stdout


def test_a_place_on_the_hub_may_be_given_by_its_url(checkpoint, report, push):
    path, url = report(checkpoint), "https://huggingface.co/org/draft"
    asked = push(checkpoint, path, "--dry-run", "--json", repo=url)
    assert json.loads(asked.stdout)["repo_id"] == "org/draft"


def test_wrong_options_are_one_json_object_too(tmp_path):
    command = [
        sys.executable,
        "-m",
        "eagle3_interop.recipes.publish.push_cli",
        str(tmp_path),
        "--json",
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert json.loads(done.stdout)["status"] == "failed"
    assert "--repo-id" in done.stderr


@pytest.mark.parametrize("name", ["LICENSE", "eagle3_interop.json"])
def test_a_link_to_a_file_of_this_machine_is_not_published(
    checkpoint, report, push, tmp_path, name
):
    """Neither through a report that was made of it, nor in what a dry run shows."""
    (tmp_path / "private").write_text('{"token": "1234"}')
    (checkpoint / name).unlink(missing_ok=True)
    (checkpoint / name).symlink_to(tmp_path / "private")
    result = push(checkpoint, report(checkpoint), "--dry-run", "--json")
    assert result.exit_code == 3
    assert [item["code"] for item in json.loads(result.stdout)["findings"]] == ["link-elsewhere"]
    assert "1234" not in result.output
