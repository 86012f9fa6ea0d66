"""`import eagle3_interop`: as its page says, equal to the commands, and light."""

import doctest
import inspect
import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

import eagle3_interop
from eagle3_interop.convert.cli import app as converting
from eagle3_interop.validators.diagnose_cli import app as diagnosing
from eagle3_interop.validators.record_cli import app as recording
from eagle3_interop.validators.report_cli import app as reporting
from eagle3_interop.validators.validate_cli import app as validating

ROOT = Path(__file__).parents[1]
DATA = ROOT / "tests" / "data"
PAGE = (ROOT / "docs" / "api.md").read_text()
FEW = 8
HEAVY = ("torch", "transformers", "pydantic", "huggingface_hub", "numpy", "typer", "rich")


@pytest.fixture
def pair(tmp_path, monkeypatch):
    """A draft, its target and a few prompts in the current folder."""
    shutil.copytree(DATA / "drafts" / "plain", tmp_path / "draft")
    (tmp_path / "target").symlink_to(DATA / "target")
    lines = (DATA / "prompts.jsonl").read_text().splitlines(keepends=True)
    (tmp_path / "prompts.jsonl").write_text("".join(lines[:FEW]))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def printed(app, *words):
    """What a command prints with --json."""
    return json.loads(CliRunner().invoke(app, list(words)).stdout)


def plain(value):
    """As JSON has it."""
    return json.loads(json.dumps(value))


def timeless(report):
    """Without what two runs cannot share: when and how they were run."""
    environment = report.get("environment", {})
    for name in ("date", "command"):
        environment.pop(name, None)
    return {key: value for key, value in report.items() if key not in ("seconds", "created")}


@pytest.mark.usefixtures("pair")
def test_the_page_is_what_python_prints():
    parser, runner = doctest.DocTestParser(), doctest.DocTestRunner()
    page = parser.get_doctest(PAGE.replace("```", ""), {}, "docs/api.md", None, 0)
    told = []
    runner.run(page, out=told.append)
    assert (runner.tries > 10, "".join(told)) == (True, "")


def test_importing_it_imports_nothing_heavy():
    code = f"import sys, eagle3_interop; print(*({set(HEAVY)!r} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == ""


def test_every_name_that_it_offers_is_there():
    assert {
        name: hasattr(eagle3_interop, name) for name in eagle3_interop.__all__
    } == dict.fromkeys(eagle3_interop.__all__, True)
    assert set(eagle3_interop.__all__) <= set(dir(eagle3_interop))


@pytest.mark.parametrize("name", ["convert", "serve", "validate"])
def test_a_function_tells_its_keywords(name):
    known = inspect.signature(getattr(eagle3_interop, name)).parameters
    assert "target" in known
    assert not any(one.kind is one.VAR_KEYWORD for one in known.values())


def test_a_name_that_it_has_not_is_no_attribute():
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = eagle3_interop.nothing


@pytest.mark.parametrize("kind", ["Refused", "Usage", "Unavailable"])
def test_what_is_raised_has_one_base_and_findings(kind):
    assert issubclass(getattr(eagle3_interop, kind), eagle3_interop.Error)
    assert eagle3_interop.Error("").findings == ()


@pytest.mark.usefixtures("pair")
def test_describe_is_inspect():
    told = printed(converting, "inspect", "draft", "--target", "target", "--json")
    assert plain(eagle3_interop.describe("draft", target=Path("target"))) == told


@pytest.mark.usefixtures("pair")
@pytest.mark.parametrize("destination", ["speculators", "sglang", "vllm", "universal"])
def test_convert_is_the_conversion(destination):
    options = ("--target", "target", "--target-name", "org/name", "--taps", "5,3,1", "--json")
    told = printed(converting, f"auto-to-{destination}", "draft", "a", *options)
    found = eagle3_interop.convert(
        "draft", "b", destination, target="target", target_name="org/name", taps=(5, 3, 1)
    )
    assert plain(found | {"output": told["output"]}) == told
    for name in ("config.json", "model.safetensors"):
        assert Path("a", name).read_bytes() == Path("b", name).read_bytes()


@pytest.mark.usefixtures("pair")
def test_compare_is_diff():
    eagle3_interop.convert("draft", "other", "vllm", sets={"rope.theta": 5e5})
    told = printed(converting, "diff", "draft", "other", "--json")
    assert plain(eagle3_interop.compare("draft", "other")) == told
    assert told["status"] == "different"


@pytest.mark.usefixtures("pair")
def test_serve_is_serve():
    told = printed(converting, "serve", "draft", "--engine", "vllm", "--target", "target", "--json")
    assert plain(eagle3_interop.serve("draft", "vllm", target="target")) == told


@pytest.mark.usefixtures("pair")
def test_validate_is_the_validation():
    words = ("draft", "--target", "target", "--prompts", "prompts.jsonl", "--max-new-tokens", "8")
    told = printed(validating, *words, "--num-draft-tokens", "2", "--json", "-")
    found = eagle3_interop.validate(
        "draft", "target", prompts="prompts.jsonl", max_new_tokens=8, num_draft_tokens=2
    )
    assert timeless(found.model_dump(mode="json")) == timeless(told)


@pytest.mark.usefixtures("pair")
def test_report_is_the_report():
    options = {"prompts": "prompts.jsonl", "max_new_tokens": 8}
    for tokens in (2, 3):
        found = eagle3_interop.validate("draft", "target", num_draft_tokens=tokens, **options)
        Path(f"{tokens}.json").write_text(found.model_dump_json())
    told = printed(reporting, "2.json", "3.json", "--json", "-")
    assert eagle3_interop.report("2.json", Path("3.json")).model_dump(mode="json") == told


@pytest.mark.usefixtures("pair")
def test_record_and_diagnose_are_the_commands():
    words = ("--prompts", "prompts.jsonl", "--max-new-tokens", "8", "--lookahead", "4")
    told = printed(recording, "target", "--out", "a", *words, "--json", "-")
    found = eagle3_interop.record(
        "target", "b", prompts="prompts.jsonl", max_new_tokens=8, lookahead=4
    ).model_dump(mode="json")
    assert timeless(found) == timeless(told)
    told = printed(diagnosing, "draft", "--target", "target", "--streams", "a", "--json", "-")
    answer = plain(eagle3_interop.diagnose("draft", "target", streams="a"))
    assert timeless(answer) == timeless(told)


@pytest.mark.usefixtures("pair")
@pytest.mark.parametrize(
    "call",
    [
        lambda: eagle3_interop.convert("draft", "out", "nowhere"),
        lambda: eagle3_interop.convert("draft", "out", "vllm", layout="nothing"),
        lambda: eagle3_interop.convert("draft", "out", "vllm", dtype="int3"),
        lambda: eagle3_interop.convert("draft", "out", "vllm", max_shard_size="much"),
        lambda: eagle3_interop.convert("draft", "out", "vllm", sets={"no.such": 1}),
        lambda: eagle3_interop.convert("draft", "out", "vllm", sets={"rope.theta": object()}),
        lambda: eagle3_interop.convert("draft", "target", "vllm"),
        lambda: eagle3_interop.load("draft", trainer="nobody"),
        lambda: eagle3_interop.serve("draft", "none"),
        lambda: eagle3_interop.validate("draft", "target", dtype="int3"),
        lambda: eagle3_interop.validate("draft", "target", num_draft_tokens=3, tree=(2, 2, 4)),
        lambda: eagle3_interop.validate("draft", "target", engine="none"),
        lambda: eagle3_interop.validate("draft", "target", num_draft_tokens=0),
        lambda: eagle3_interop.validate("draft", "target", tree=(3, 4)),
        lambda: eagle3_interop.validate("draft", "target", tree=(2, 2, 4), cost_ratio=0.1),
        lambda: eagle3_interop.validate("draft", "target", prompts=["a prompt"]),
        lambda: eagle3_interop.validate("draft", "target", unheard=1),
        lambda: eagle3_interop.describe("draft", releases="vllm==0.33"),
        lambda: eagle3_interop.convert("draft", "out", "vllm", sets="rope.theta=1"),
        lambda: eagle3_interop.convert("draft", "out", "vllm", allow="double-norm"),
        lambda: eagle3_interop.serve("draft", "vllm", extra="--port 1"),
        lambda: eagle3_interop.diagnose("draft", "target", budget=-1),
        lambda: eagle3_interop.report(["absent.json"]),
        lambda: eagle3_interop.report({}),
        lambda: eagle3_interop.validate("draft", "target", batches=(1, 4)),
        lambda: eagle3_interop.validate("draft", "target", speed=True),
        lambda: eagle3_interop.diagnose("draft", "target", write="target"),
        lambda: eagle3_interop.record("target", "target"),
        lambda: eagle3_interop.report(),
        lambda: eagle3_interop.report("absent.json"),
    ],
)
def test_a_wrong_call_is_usage_before_anything_is_written(call):
    with pytest.raises(eagle3_interop.Usage):
        call()
    assert sorted(path.name for path in Path().iterdir()) == ["draft", "prompts.jsonl", "target"]
