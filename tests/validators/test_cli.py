"""eagle3-validate: exit codes, what stands on stdout, and what importing it costs."""

import hashlib
import json
import shutil
import subprocess
import sys
from datetime import datetime
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import LlamaConfig, LlamaForCausalLM
from typer.testing import CliRunner

from eagle3_interop.recipes.publish.consistency import contradictions
from eagle3_interop.schemas.report import Report
from eagle3_interop.validators import asking, validate_cli
from eagle3_interop.validators.accept import sweep
from eagle3_interop.validators.prove import validate as proof

DATA = Path(__file__).resolve().parents[1] / "data"
TARGET, PLAIN, OTHER = (
    DATA / "target", DATA / "drafts" / "plain", DATA / "drafts" / "norm_before_residual"
)  # fmt: skip
OPTIONS = {
    "--target", "--against", "--prompts", "--streams", "--stream-taps", "--trainer", "--allow", "--num-draft-tokens", "--tree", "--sweep", "--max-new-tokens",
    "--stop-at-eos", "--temperature", "--cost-ratio", "--device", "--dtype", "--seed",
    "--engine", "--engine-python", "--engine-arg", "--server", "--baseline-server", "--batch", "--speed", "--no-speed", "--min-accept-length", "--max-logit-diff", "--json", "--html", "--csv", "--trust-remote-code", "--quiet",
    "--version", "--help", "--install-completion", "--show-completion",
}  # fmt: skip
KEYS = {
    "verdict", "gates", "findings", "acceptance", "as_trained", "against", "sweep", "sampling", "engine", "speed", "streams", "checkpoint",
    "environment", "prompts", "breakdown",
}  # fmt: skip


@pytest.fixture(scope="module")
def prompts(tmp_path_factory):
    path = tmp_path_factory.mktemp("prompts") / "prompts.jsonl"
    path.write_text("".join((DATA / "prompts.jsonl").read_text().splitlines(keepends=True)[:2]))
    return path


def run(*arguments):
    return CliRunner().invoke(validate_cli.app, [str(argument) for argument in arguments])


def short(prompts, *arguments, checkpoint=PLAIN, target=TARGET):
    options = ("--prompts", prompts, "--max-new-tokens", 12, "--device", "cpu")
    return run(checkpoint, "--target", target, *options, *arguments)


def report_of(result):
    return json.loads(result.stdout)


def test_the_options_are_frozen():
    found = {word.strip(",.;)") for word in run("--help").stdout.split() if word.startswith("--")}
    assert found == OPTIONS


def test_help_imports_neither_torch_nor_transformers():
    script = (
        "import sys\n"
        "from typer.testing import CliRunner\n"
        "from eagle3_interop.validators.validate_cli import app\n"
        "assert CliRunner().invoke(app, ['--help']).exit_code == 0\n"
        "assert CliRunner().invoke(app, ['--version']).exit_code == 0\n"
        "print(*({'torch', 'transformers', 'huggingface_hub', 'numpy'} & set(sys.modules)))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == ""


def test_a_missing_extra_is_named(monkeypatch, prompts):
    absent = {"torch", "transformers"}
    monkeypatch.setattr(
        asking, "find_spec", lambda name: None if name in absent else find_spec(name)
    )
    result = short(prompts)
    assert result.exit_code == 4
    assert "pip install 'eagle3-interop[validate]'" in result.stderr
    assert "Traceback" not in result.output


def test_a_measurement_without_gates(prompts):
    result = short(prompts, "--json", "-")
    assert result.exit_code == 0
    report = report_of(result)
    assert set(report) == KEYS
    assert report["verdict"] == "pass"
    assert report["gates"] == []
    assert set(report["acceptance"]) == {
        "accept_length", "interval", "drafts", "accepted", "per_position", "num_draft_tokens", "tree",
        "tokens",
    }  # fmt: skip
    assert report["acceptance"]["num_draft_tokens"] == 4, "the draft's own"
    assert report["acceptance"]["tokens"] == 24
    assert set(report["checkpoint"]["files"]) == {"config.json", "model.safetensors"}
    assert set(report["findings"][0]) == {"code", "severity", "where", "message", "fix"}
    environment = report["environment"]
    assert environment["dtype"] == "float32"
    assert environment["versions"]["torch"] == torch.__version__
    assert environment["target"]["path"] == str(TARGET)
    assert environment["target"]["dtype"] == "bfloat16"
    assert environment["draft"]["as_is"].keys() == {"speculators", "sglang", "vllm"}
    assert [report[key] for key in ("against", "sweep", "sampling", "engine")] == [None] * 4


def test_a_draft_that_changes_while_it_is_validated_gets_no_report(prompts, tmp_path, monkeypatch):
    draft, file = tmp_path / "draft", tmp_path / "report.json"
    shutil.copytree(PLAIN, draft)

    def swapped(session, *arguments):
        raw = bytearray((draft / "model.safetensors").read_bytes())
        raw[-5] ^= 255
        (draft / "model.safetensors").write_bytes(raw)
        return measure(session, *arguments)

    measure = proof._measure
    monkeypatch.setattr(proof, "_measure", swapped)
    result = short(prompts, "--json", file, checkpoint=draft)
    assert result.exit_code == 4
    assert "model.safetensors changed while it was" in result.stderr
    assert not file.exists()


@pytest.mark.parametrize(
    "options",
    [
        (),
        ("--tree", "3,2,6", "--temperature", "0.8"),
        ("--cost-ratio", "0.1", "--stop-at-eos", "--seed", "7", "--dtype", "bfloat16"),
        ("--max-logit-diff", "1", "--min-accept-length", "1.01", "--num-draft-tokens", "1"),
    ],
)
def test_a_report_agrees_with_itself(prompts, options):
    told = report_of(short(prompts, "--against", PLAIN, "--json", "-", *options))
    assert told["verdict"] == "pass"
    assert list(contradictions(Report.model_validate(told))) == []
    assert len(told["prompts"]) == 2


def test_what_a_report_records_of_its_run(prompts, monkeypatch):
    """Date, command line and the target's digest: sha256 of config.json, and over its files' headers."""
    monkeypatch.setattr("sys.argv", ["/bin/eagle3-validate", "/home/me/draft", "--json", "-"])
    environment = report_of(short(prompts, "--json", "-"))["environment"]
    assert environment["command"] == "eagle3-validate draft --json -"
    assert datetime.fromisoformat(environment["date"]).tzinfo is not None
    config = hashlib.sha256((TARGET / "config.json").read_bytes()).hexdigest()
    raw = (TARGET / "model.safetensors").read_bytes()
    header = raw[: 8 + int.from_bytes(raw[:8], "little")]
    headers = hashlib.sha256(hashlib.sha256(header).hexdigest().encode()).hexdigest()
    assert environment["target"]["digest"] == {"config": config, "headers": headers, "weights": {}}


def test_a_comparison_that_fails(prompts, tmp_path):
    """The same report in a file, for people on stdout, and as a page."""
    json_file, html_file = tmp_path / "report.json", tmp_path / "report.html"
    result = short(prompts, "--against", OTHER, "--json", json_file, "--html", html_file)
    assert result.exit_code == 1
    report = Report.model_validate_json(json_file.read_text())
    assert report.verdict == "fail"
    assert set(report.against.logits.model_dump()) >= {
        "max_abs_diff", "top1_agreement", "kl", "positions",
    }  # fmt: skip
    assert report.against.first_difference.stage == "fc output"
    assert "the networks part at: fc output" in result.stdout
    assert result.stdout.rstrip().endswith("FAIL")
    assert "<h1>Failed</h1>" in html_file.read_text()


def test_gates(prompts):
    passed = short(prompts, "--min-accept-length", "1.01", "--json", "-")
    failed = short(prompts, "--min-accept-length", "5.5", "--json", "-")
    assert (passed.exit_code, failed.exit_code) == (0, 1)
    gate = report_of(failed)["gates"][0]
    assert gate["name"] == "min-accept-length"
    assert gate["wanted"] == 5.5
    assert gate["got"] == report_of(failed)["acceptance"]["accept_length"]
    assert not gate["passed"]
    assert report_of(passed)["gates"][0]["passed"]


def test_everything_at_once(prompts, monkeypatch):
    monkeypatch.setattr(sweep, "TOPK", (2,))
    options = ("--sweep", "--cost-ratio", "0.1", "--temperature", "0.8", "--tree", "3,2,6")
    result = short(prompts, *options, "--stop-at-eos", "--dtype", "bfloat16")
    assert result.exit_code == 0
    assert "tree of 3 steps, top-k 2, 6 tokens" in result.stdout
    assert "expected speed-up" in result.stdout
    assert "the best: " in result.stdout
    assert "at temperature 0.8" in result.stdout
    assert "no gate ran" in result.stdout


def test_a_cost_ratio_tells_the_best_chain(prompts):
    report = report_of(short(prompts, "--cost-ratio", "0.05", "--json", "-"))
    assert [row["num_draft_tokens"] for row in report["sweep"]] == [1, 2, 3, 4]
    best = max(report["sweep"], key=lambda row: row["speedup"])
    assert [row["best"] for row in report["sweep"]].count(True) == 1
    assert best["best"]


def test_quiet_leaves_the_verdict(prompts):
    result = short(prompts, "--quiet")
    length, verdict = result.output.splitlines()
    assert result.exit_code == 0
    assert length.startswith("accept length ")
    assert verdict.startswith("measured; no gate ran")
    failed = short(prompts, "--quiet", "--min-accept-length", "99")
    assert (failed.exit_code, failed.output) == (1, f"{length}\nFAIL\n")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--max-logit-diff", "0.1"), "--against"),
        (("--tree", "3,2"), "STEPS,TOPK,TOKENS"),
        (("--tree", "2,2,99"), "these steps make 6 nodes"),
        (("--tree", "0,3,1"), "count from 1"),
        (("--tree", "2,2,4", "--num-draft-tokens", "3"), "not both"),
        (("--tree", "3,600,700"), "more than the 512 tokens"),
        (("--tree", "3,4," + "9" * 5000), "STEPS,TOPK,TOKENS"),
        (("--tree", "2000,1,2001"), "no engine drafts more than 1024"),
        (("--tree", "3,5000,9"), "no engine drafts more than 1024"),
        (("--num-draft-tokens", "1025"), "no engine drafts more than 1024"),
        (("--num-draft-tokens", "9" * 5000), "num-draft-tokens"),
        (("--num-draft-tokens", "0"), "num-draft-tokens"),
        (("--max-new-tokens", "2000"), "2048 positions"),
        (("--max-new-tokens", "9" * 15), "no target reaches further"),
        (("--prompts", "/dev/zero"), "more than 64 MiB"),
        (("--seed", "-1"), "--seed"),
        (("--seed", "9" * 30), "--seed"),
        (("--temperature", "nan"), "--temperature"),
        (("--cost-ratio", "inf"), "--cost-ratio"),
        (("--min-accept-length", "nan"), "--min-accept-length"),
        (("--against", str(PLAIN)[:-1]), "did you mean"),
        (("--max-new-tokens", "1"), "max-new-tokens"),
        (("--device", "cuda:99"), "CUDA"),
        (("--device", "tpu"), "expected auto, cpu, cuda"),
        (("--dtype", "int8"), "dtype"),
        (("--json", "/no/such/folder/report.json"), "folder that exists"),
        (("--against", "no-such-folder"), "no-such-folder"),
        (("--prompts", "no-such-file"), "no-such-file"),
        (("--target", " "), "target: empty"),
        (("--against", ""), "against: empty"),
        (("--against", "~nosuchuser/draft"), "home directory"),
        (("--against", "a" * 300), "name too long"),
        (("--target", "~nosuchuser/draft"), "home directory"),
        (("--html", "a" * 300), "name too long"),
        (("--engine", "vllm", "--engine-python", "~nosuchuser/python"), "home directory"),
    ],
)
def test_wrong_usage_exits_with_2(prompts, options, words):
    result = short(prompts, *options)
    assert result.exit_code == 2
    assert words in result.stderr
    assert result.stdout == ""
    assert "Traceback" not in result.output


EARLY = [
    ["--tree", "3,2"],
    ["--tree", "2,2,99"],
    ["--tree", "3,4,16", "--engine", "vllm"],
    ["--num-draft-tokens", "5000"],
    ["--device", "tpu"],
    ["--prompts", "no-such-file"],
    ["--against", "no-such-folder"],
    ["--engine-arg", "x=1"],
    ["--engine", "vllm", "--server", "http://127.0.0.1:1"],
    ["--engine", "vllm", "--engine-python", "no-such-python"],
    ["--max-logit-diff", "1"],
    ["--json", "/no/such/folder/report.json"],
    ["--seed", "-1"],
]


def test_wrong_usage_is_found_before_torch_is_imported():
    script = (
        "import sys\n"
        "from typer.testing import CliRunner\n"
        "from eagle3_interop.validators.validate_cli import app\n"
        "from eagle3_interop.validators.diagnose_cli import app as diagnosing\n"
        f"common = [{str(PLAIN)!r}, '--target', {str(TARGET)!r}]\n"
        f"for words in {EARLY}:\n"
        "    done = CliRunner().invoke(app, [*common, *words])\n"
        "    assert done.exit_code == 2, (words, done.output)\n"
        "for words in (['--device', 'tpu'], ['--prompts', 'no'], ['--max-new-tokens', '99999999']):\n"
        "    done = CliRunner().invoke(diagnosing, [*common, *words])\n"
        "    assert done.exit_code == 2, (words, done.output)\n"
        "print(*({'torch', 'transformers'} & set(sys.modules)))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=False
    )
    assert (done.stdout.strip(), done.stderr) == ("", "")


@pytest.mark.parametrize("content", ['{"prompt": ', '{"text": "x"}', '{"token_ids": [5000]}', ""])
def test_prompts_that_do_not_parse_exit_with_2(tmp_path, content):
    (tmp_path / "prompts.jsonl").write_text(content)
    result = short(tmp_path / "prompts.jsonl")
    assert result.exit_code == 2
    assert "prompts.jsonl" in result.stderr


def llama(folder, **changes):
    """A random target."""
    sizes = {
        "vocab_size": 1024, "hidden_size": 128, "intermediate_size": 32, "num_hidden_layers": 6,
        "num_attention_heads": 4, "num_key_value_heads": 2,
    }  # fmt: skip
    LlamaForCausalLM(LlamaConfig(**sizes | changes)).save_pretrained(folder)
    return folder


def refusal(result, *words):
    assert result.exit_code == 3
    assert "Traceback" not in result.output
    for word in words:
        assert word in result.stderr


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({"vocab_size": 1000}, "vocabulary"),
        ({"hidden_size": 64}, "width"),
        ({"num_hidden_layers": 4}, "taps"),
    ],
)
def test_a_wrong_pair_is_refused(prompts, tmp_path, changes, word):
    refusal(short(prompts, target=llama(tmp_path / "target", **changes)), word)


def test_a_target_given_as_draft_is_refused(prompts):
    refusal(short(prompts, checkpoint=TARGET), "not-a-draft", "not a draft", "--target")


def test_a_draft_given_as_target_is_refused(prompts):
    refusal(short(prompts, target=PLAIN))


def test_a_flat_draft_given_as_target_is_refused(prompts, tmp_path):
    """Its sizes fit: only its class tells."""
    config = json.loads((TARGET / "config.json").read_text())
    (tmp_path / "draft").mkdir()
    (tmp_path / "draft" / "config.json").write_text(
        json.dumps(config | {"architectures": ["LlamaForCausalLMEagle3"]})
    )
    shutil.copy(TARGET / "model.safetensors", tmp_path / "draft")
    refusal(short(prompts, target=tmp_path / "draft"), "is a draft")


def test_a_target_without_weights_is_refused(prompts, tmp_path):
    shutil.copy(TARGET / "config.json", tmp_path)
    refusal(short(prompts, target=tmp_path), "not-a-target")


def test_weights_that_are_not_numbers_are_refused_also_as_json(prompts, tmp_path):
    broken = shutil.copytree(PLAIN, tmp_path / "broken")
    tensors = load_file(broken / "model.safetensors")
    tensors["norm.weight"][3] = float("nan")
    save_file(tensors, broken / "model.safetensors", metadata={"format": "pt"})
    result = short(prompts, "--json", "-", checkpoint=broken)
    refusal(result, "non-finite-weights", "norm.weight")
    report = report_of(result)
    assert set(report) == KEYS
    assert report["verdict"] == "fail"
    assert report["acceptance"] is None
    assert report["findings"][0]["code"] == "non-finite-weights"


def test_a_missing_checkpoint_exits_with_2(prompts):
    assert short(prompts, checkpoint="no-such-folder").exit_code == 2


def test_given_texts_that_the_target_would_not_write_are_said(tmp_path):
    entry = {"token_ids": [57, 54, 48], "completion_token_ids": [9] * 16}
    (tmp_path / "prompts.jsonl").write_text(json.dumps(entry))
    report = report_of(short(tmp_path / "prompts.jsonl", "--json", "-"))
    said = {item["code"]: item for item in report["findings"]}["given-texts"]
    assert said["severity"] == "warning"
    assert "of 16 given tokens" in said["message"]


def test_out_of_memory_is_the_outside_worlds_fault(prompts, monkeypatch):
    from eagle3_interop.validators.prove import validate

    def fail(*_arguments):
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 9 GiB.\nand more")

    monkeypatch.setattr(validate, "load_target", fail)
    result = short(prompts)
    assert result.exit_code == 4
    assert "--dtype bfloat16" in result.stderr
    assert "and more" not in result.stderr
