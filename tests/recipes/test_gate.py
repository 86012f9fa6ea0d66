"""The gate: what opens it, and every reason that keeps it closed. The Hub is never asked."""

import json
import subprocess
import sys

import pytest

from eagle3_interop.convert.masking import shortened

WARNING = {
    "code": "embeddings-unverified",
    "severity": "warning",
    "where": "embed_tokens.weight",
    "message": "kept as it is.",
    "fix": "Give --target.",
}
GATE = {"name": "min-accept-length", "wanted": 3.0, "got": 1 + 1432 / 883, "passed": False}


def closed(result):
    assert result.exit_code == 1, result.output
    assert "Not published" in result.stderr
    return result.stderr


@pytest.fixture
def dry(push):
    """A dry run: the gate is the same, and no Hub is there."""
    return lambda folder, report, *options: push(folder, report, "--dry-run", *options)


def test_it_opens_for_what_was_validated(checkpoint, report, dry):
    result = dry(checkpoint, report(checkpoint))
    assert result.exit_code == 0, result.output
    assert result.stdout.startswith("---\n")
    assert "dry run: nothing was sent to org/draft" in result.stderr


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"verdict": "fail"}, "verdict is 'fail'"),
        ({"gates": []}, "holds no gate"),
        ({"gates": [GATE]}, "the gate min-accept-length failed: wanted 3.0, got 2.62"),
        ({"findings": [WARNING]}, "--allow embeddings-unverified"),
        ({"findings": [WARNING | {"severity": "error"}]}, "error embeddings-unverified"),
    ],
)
def test_it_stays_closed(hub, checkpoint, report, push, changes, reason):
    assert reason in closed(push(checkpoint, report(checkpoint, **changes)))
    assert hub.log == []


def test_a_report_without_an_end_is_wrong_usage(checkpoint, dry):
    result = dry(checkpoint, "/dev/zero")
    assert result.exit_code == 2
    assert "--report /dev/zero: more than 100 MB" in result.stderr


def test_every_reason_is_named_at_once(checkpoint, report, dry):
    path = report(checkpoint, verdict="fail", gates=[GATE], against=None, findings=[WARNING])
    (checkpoint / "LICENSE").write_text("changed")
    result = dry(checkpoint, path, "--json", "--min-accept-length", 3)
    assert result.exit_code == 1
    said = json.loads(result.stdout)
    assert said["status"] == "failed"
    assert len(said["reasons"]) == 5


def test_an_error_cannot_be_allowed(checkpoint, report, dry):
    error = WARNING | {"severity": "error"}
    closed(dry(checkpoint, report(checkpoint, findings=[error]), "--allow", error["code"]))


def test_a_named_warning_is_allowed_and_written_into_the_card(checkpoint, report, dry):
    path = report(checkpoint, findings=[WARNING])
    result = dry(checkpoint, path, "--allow", "embeddings-unverified")
    assert result.exit_code == 0
    accepted = result.stdout.split("Warnings that the publisher accepted")[1]
    assert "| `embeddings-unverified` | embed_tokens.weight | kept as it is. |" in accepted


def test_one_allowed_warning_lets_no_other_through(checkpoint, report, dry):
    other = WARNING | {"code": "kv-shape"}
    path = report(checkpoint, findings=[WARNING, other])
    assert "kv-shape" in closed(dry(checkpoint, path, "--allow", "embeddings-unverified"))


@pytest.mark.parametrize("code", ["no-such-code", "wrong-target", "recognised"])
def test_only_warnings_can_be_allowed(checkpoint, report, dry, code):
    result = dry(checkpoint, report(checkpoint), "--allow", code)
    assert result.exit_code == 2
    assert code in result.stderr


def test_notes_need_nothing(checkpoint, report, dry):
    note = WARNING | {"severity": "note", "code": "cast"}
    assert dry(checkpoint, report(checkpoint, findings=[note])).exit_code == 0


@pytest.mark.parametrize("name", ["model.safetensors", "config.json", "LICENSE"])
def test_a_file_that_changed_since_is_named(checkpoint, report, dry, name):
    path = report(checkpoint)
    file = checkpoint / name
    file.write_bytes(file.read_bytes() + (b" " if name != "model.safetensors" else b""))
    if name == "model.safetensors":
        raw = bytearray(file.read_bytes())
        raw[-1] ^= 1
        file.write_bytes(raw)
    assert f"{name} is not the file that was validated" in closed(dry(checkpoint, path))


def test_a_file_that_the_report_does_not_know(checkpoint, report, dry):
    path = report(checkpoint)
    (checkpoint / "generation_config.json").write_text("{}")
    assert "generation_config.json is not in the report" in closed(dry(checkpoint, path))


def test_a_file_that_is_gone(checkpoint, report, dry):
    path = report(checkpoint)
    (checkpoint / "LICENSE").unlink()
    assert "LICENSE was validated, and is not in this folder" in closed(dry(checkpoint, path))


def test_a_stray_file_is_nobodys_business(checkpoint, report, dry):
    (checkpoint / "training_args.json").write_text("{}")
    result = dry(checkpoint, report(checkpoint))
    assert result.exit_code == 0
    assert "stays here: training_args.json" in result.stderr


def test_the_accept_length_is_held_to_the_threshold(checkpoint, report, dry):
    path = report(checkpoint)
    assert dry(checkpoint, path, "--min-accept-length", 2.6).exit_code == 0
    assert "accept length is 2.622" in closed(dry(checkpoint, path, "--min-accept-length", 2.7))
    path = report(checkpoint, acceptance=None)
    assert "no accept length" in closed(dry(checkpoint, path, "--min-accept-length", 1))


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"verdict": "maybe"}', "\udcff"])
def test_what_is_no_report(checkpoint, report, dry, text):
    path = report(checkpoint)
    path.write_bytes(text.encode(errors="surrogateescape"))
    result = dry(checkpoint, path)
    assert result.exit_code == 2
    assert "report" in result.stderr


def test_a_report_cannot_pass_by_infinity(checkpoint, report, dry):
    path = report(checkpoint)
    path.write_text(
        path.read_text().replace('"accept_length": 2.6', '"accept_length": Infinity, "x": 2.6')
    )
    result = dry(checkpoint, path, "--min-accept-length", 3)
    assert result.exit_code == 2
    assert "Infinity is not a JSON number" in result.stderr


def test_wrong_usage(checkpoint, report, push, tmp_path):
    path = report(checkpoint)
    assert push(checkpoint, tmp_path / "absent.json").exit_code == 2
    assert push(tmp_path / "absent", path).exit_code == 2
    assert push(checkpoint, path, repo="draft").exit_code == 2
    assert push(checkpoint, path, "--force").exit_code == 2


# Paths of this machine.


def with_config(folder, change):
    path = folder / "config.json"
    config = json.loads(path.read_text())
    change(config)
    path.write_text(json.dumps(config))


@pytest.mark.parametrize(
    "name",
    ["/models/llama", "/llama", "models/llama/8b", "./llama", "~/llama", "C:\\llama", "llama"],
)
def test_a_verifier_of_this_machine_is_refused_with_the_way_out(checkpoint, report, dry, name):
    verifier = {"verifier": {"name_or_path": name, "architectures": ["LlamaForCausalLM"]}}
    with_config(checkpoint, lambda config: config.update(speculators_config=verifier))
    result = dry(checkpoint, report(checkpoint), "--json")
    assert result.exit_code == 3
    (found,) = json.loads(result.stdout)["findings"]
    assert found["code"] == "local-path"
    assert "--target-name ORG/NAME" in found["fix"]


def test_a_folder_here_that_looks_like_a_hub_id(checkpoint, report, dry, tmp_path, monkeypatch):
    verifier = {"verifier": {"name_or_path": "models/llama", "architectures": []}}
    with_config(checkpoint, lambda config: config.update(speculators_config=verifier))
    path = report(checkpoint)
    assert dry(checkpoint, path).exit_code == 0
    monkeypatch.chdir(tmp_path)
    (tmp_path / "models" / "llama").mkdir(parents=True)
    assert dry(checkpoint, path).exit_code == 3


@pytest.mark.parametrize("place", ["/home/bob/draft", "../draft", "file:///draft", "~/x"])
def test_a_path_anywhere_in_a_config_is_refused(checkpoint, report, dry, place):
    with_config(checkpoint, lambda config: config.update(deep={"er": [{"_name_or_path": place}]}))
    result = dry(checkpoint, report(checkpoint))
    assert result.exit_code == 3
    assert "deep.er._name_or_path" in result.stderr


def test_tokens_and_templates_are_no_paths(checkpoint, report, dry):
    tokens = {"chat_template": "/home/x/y", "added_tokens_decoder": {"1": {"content": "/a/b"}}}
    (checkpoint / "tokenizer_config.json").write_text(json.dumps(tokens | {"eos_token": "</s>"}))
    assert dry(checkpoint, report(checkpoint)).exit_code == 0
    (checkpoint / "tokenizer_config.json").write_text('{"name_or_path": "/home/bob/llama"}')
    assert dry(checkpoint, report(checkpoint)).exit_code == 3


@pytest.mark.parametrize(
    ("text", "public"),
    [
        ("/home/bob/draft", "draft"),
        ("the verifier is named '/home/bob/my draft'.", "the verifier is named 'my draft'."),
        ("read ~/x/y and C:\\a\\b", "read y and b"),
        ("org/name, 1/2 and https://hub/org/name", "org/name, 1/2 and https://hub/org/name"),
        ("model.layers.0 -> layers.0", "model.layers.0 -> layers.0"),
    ],
)
def test_provenance_keeps_only_the_last_part_of_a_path(text, public):
    assert shortened(text) == public


def test_a_broken_checkpoint_is_refused(checkpoint, report, dry):
    path = report(checkpoint)
    (checkpoint / "model.safetensors").write_bytes(b"short")
    assert dry(checkpoint, path).exit_code == 3


def test_help_is_quick_and_imports_nothing_heavy():
    code = (
        "import sys\n"
        "from typer.testing import CliRunner\n"
        "from eagle3_interop.recipes.publish.push_cli import app\n"
        "assert CliRunner().invoke(app, ['--help']).exit_code == 0\n"
        "print(*{'torch', 'transformers', 'huggingface_hub', 'matplotlib'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == ""
