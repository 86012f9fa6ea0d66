"""The card: what it says, and that nothing of the author's own is lost."""

import json
import re
import shlex
import sys

import pytest
import yaml
from huggingface_hub import ModelCard
from hypothesis import given, settings
from hypothesis import strategies as st

from eagle3_interop.convert import api
from eagle3_interop.recipes.publish import card
from eagle3_interop.recipes.publish.section import Facts, section
from eagle3_interop.schemas.findings import Refused
from eagle3_interop.schemas.report import Report

BEGIN, END = card.BEGIN, card.END

# The client's own way of sending a file over LFS.
pytestmark = pytest.mark.filterwarnings("ignore:Use 'content=:DeprecationWarning")


@pytest.fixture
def made(checkpoint, report, push):
    """The card of a dry run, parsed by the library."""

    def make(**changes):
        result = push(checkpoint, report(checkpoint, **changes), "--dry-run")
        assert result.exit_code == 0, result.output
        return ModelCard(result.stdout)

    return make


def commands(text):
    return re.findall(r"```bash\n(.*?)\n```", text, re.DOTALL)


def test_metadata(made):
    data = made().data.to_dict()
    assert data["base_model"] == "org/target"
    assert data["base_model_relation"] == "finetune"
    assert data["library_name"] == "vllm"
    assert data["pipeline_tag"] == "text-generation"
    assert {"speculative-decoding", "eagle3", "vllm"} <= set(data["tags"])
    assert data["license"] == "llama3.1"
    assert data["language"] == "en"


def test_the_measured_figures_are_in_the_model_index(made):
    (model,) = made().data.to_dict()["model-index"]
    assert model["name"] == "draft"
    (result,) = model["results"]
    assert result["task"]["type"] == "text-generation"
    values = {metric["type"]: metric["value"] for metric in result["metrics"]}
    assert values == {
        "accept-length": pytest.approx(1 + 1432 / 883, abs=1e-4),
        "acceptance-at-1": pytest.approx(560 / 883, abs=1e-4),
        "acceptance-at-2": pytest.approx(408 / 883, abs=1e-4),
        "acceptance-at-3": pytest.approx(289 / 883, abs=1e-4),
        "acceptance-at-4": pytest.approx(175 / 883, abs=1e-4),
    }


def test_what_was_measured_converted_and_checked_is_said(made, report, checkpoint):
    low, high = json.loads(report(checkpoint).read_text())["acceptance"]["interval"]
    text = made().text
    assert f"**2.622 tokens a step** (95 % interval {low:.3f} to {high:.3f})" in text
    assert "| 1 | 0.634 |" in text
    assert "![Acceptance by position](eagle3_acceptance.png)" in text
    assert "Converted from `source` (speculators' layout)" in text
    counters = "drafts 883, accepted 1432, per_position 560 408 289 175"
    assert f"| counters-equal | {counters} | {counters} | passed |" in text
    assert "/home/" not in text
    assert "pytest-of" not in text


def test_prompts_that_do_not_differ_give_no_interval(made, measured):
    text = made(**measured(1160, [600, 320, 160, 80])).text
    assert (
        "**2.000 tokens a step** (no interval: one prompt, or prompts that are all alike)" in text
    )
    assert "95 %" not in text


def test_the_plot_is_a_picture(report, checkpoint):
    acceptance = card.AcceptanceReport(**json.loads(report(checkpoint).read_text())["acceptance"])
    first = card.draw(acceptance)
    assert first.startswith(b"\x89PNG")
    assert card.draw(acceptance) == first


def test_without_matplotlib_the_table_has_to_do(monkeypatch, checkpoint, report, push):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    result = push(checkpoint, report(checkpoint), "--dry-run")
    assert result.exit_code == 0
    assert "eagle3_acceptance.png" not in result.stdout
    assert "| 1 | 0.634 |" in result.stdout
    assert "no plot: matplotlib" in result.stderr


def serving(text):
    return {line.split()[0]: line for line in commands(text.split("### Serve")[1].split("###")[0])}


def test_vllm_is_told_how_many_tokens_were_validated(made):
    words = shlex.split(serving(made().text)["vllm"])
    assert words[:3] == ["vllm", "serve", "org/target"]
    settings = json.loads(words[words.index("--speculative-config") + 1])
    assert settings == {"method": "eagle3", "model": "org/draft", "num_speculative_tokens": 4}


def test_sglang_is_sent_to_a_layout_that_it_reads(made):
    told = serving(made().text)["eagle3-convert"]
    assert told == ("eagle3-convert vllm-to-sglang org/draft sglang-draft --target org/target")


@pytest.fixture
def told(checkpoint, report):
    """The section on serving of a draft with these facts."""
    read = Report.model_validate_json(report(checkpoint).read_text())

    def of(layout, config, **environment):
        changed = read.model_copy(update={"environment": {**read.environment, **environment}})
        return section(Facts("org/draft", layout, config, changed), "org/target")

    return of


@pytest.mark.parametrize(("dtype", "flag"), [("float16", True), ("bfloat16", False)])
def test_sglang_is_told_the_targets_dtype_where_the_drafts_is_another(told, dtype, flag):
    config = {"architectures": ["LlamaForCausalLMEagle3"], "model_type": "llama", "dtype": dtype}
    line = serving(told("sglang", config, target={"dtype": "bfloat16"}))["python"]
    assert ("--dtype bfloat16" in line) is flag


def test_an_engine_that_fails_on_the_folder_is_not_said_to_run_it(told):
    # Four taps as speculators writes them: vLLM sizes fc for three.
    drafted = {"as_is": {"vllm": "does-not-load"}}
    text = told("speculators", {"speculators_model_type": "eagle3"}, draft=drafted)
    assert "vLLM does not run this very folder" in text
    assert "eagle3-convert speculators-to-vllm org/draft vllm-draft" in text
    assert "vllm serve" not in text


def test_a_card_says_since_which_release_an_engine_runs_the_folder(told):
    drafted = {"as_is": {"vllm": "same"}, "since": {"vllm": "0.24", "sglang": None}}
    text = told("vllm", {"architectures": ["Eagle3LlamaForCausalLM"]}, draft=drafted)
    assert "vLLM >= 0.24:" in text


@pytest.fixture
def universal(tmp_path, converted):
    def convert(**sets):
        options = api.Options(target_name="org/target", sets=sets)
        conversion = api.convert(api.load(str(converted), "vllm", options), "universal", options)
        api.write(conversion, tmp_path / "universal")
        return tmp_path / "universal"

    return convert


def flags(line):
    words = shlex.split(line)
    return {w: words[i + 1] for i, w in enumerate(words[:-1]) if w.startswith("--")}


def test_sglang_steps_topk_and_tokens_agree(universal, report, push):
    folder = universal()
    text = push(folder, report(folder), "--dry-run").stdout
    (line,) = [c for c in commands(text) if "sglang.launch_server" in c]
    told = flags(line)
    assert told["--speculative-algorithm"] == "EAGLE3"
    assert told["--speculative-num-steps"] == "4"
    assert told["--speculative-eagle-topk"] == "1"
    assert told["--speculative-num-draft-tokens"] == "5"
    assert told["--speculative-draft-model-path"] == "org/draft"
    assert told["--model-path"] == "org/target"
    assert not line.startswith("SGLANG_")


def test_sglang_is_given_the_plugin_where_it_needs_it(universal, report, push):
    folder = universal(residual="normed")
    findings = [
        {"code": "needs-sglang-plugin", "severity": "warning", "where": "x", "message": "y"}
    ]
    path = report(folder, findings=findings)
    result = push(folder, path, "--dry-run", "--allow", "needs-sglang-plugin")
    (line,) = [c for c in commands(result.stdout) if "sglang.launch_server" in c]
    assert line.startswith("SGLANG_EXTERNAL_MODEL_PACKAGE=eagle3_interop.sglang_plugin ")


def test_a_validated_tree_is_served_as_it_was_validated(universal, report, measured, push):
    folder = universal()
    path = report(folder, **measured(883, [600, 500, 332], tree=[3, 4, 16]))
    text = push(folder, path, "--dry-run").stdout
    (line,) = [c for c in commands(text) if "sglang.launch_server" in c]
    told = flags(line)
    assert told["--speculative-num-steps"] == "3"
    assert told["--speculative-eagle-topk"] == "4"
    assert told["--speculative-num-draft-tokens"] == "16"
    assert "eagle3-validate org/draft --target org/target --against source --tree 3,4,16" in text


def test_the_validation_can_be_repeated(made):
    gates = [{"name": "min-accept-length", "wanted": 2.5, "got": 1 + 1432 / 883, "passed": True}]
    line = commands(made(gates=gates, against=None).text)[-1]
    assert line == (
        "eagle3-validate org/draft --target org/target --num-draft-tokens 4 "
        "--max-new-tokens 96 --dtype float32 --seed 0 --min-accept-length 2.5"
    )


def test_a_source_on_the_hub_is_named_with_its_revision(checkpoint, report, push):
    path = checkpoint / "eagle3_interop.json"
    told = json.loads(path.read_text())
    told["source"] |= {"path": "org/source@main", "revision": "c" * 40}
    path.write_text(json.dumps(told))
    text = push(checkpoint, report(checkpoint), "--dry-run").stdout
    assert f"Converted from `org/source@main` at revision `{'c' * 40}`" in text
    assert f"--against org/source@{'c' * 40}" in text


def test_a_draft_that_was_never_converted_has_a_card_too(checkpoint, report, push):
    (checkpoint / "eagle3_interop.json").unlink()
    result = push(checkpoint, report(checkpoint), "--dry-run")
    assert result.exit_code == 0
    assert "Converted from" not in result.stdout
    assert "vllm serve TARGET" in result.stdout
    assert "--target-name ORG/NAME" in result.stderr
    assert "no license is known" in result.stderr


# The author's own text.

OWN = "---\nlicense: mit\nbase_model: theirs/target\ntags:\n- mine\n---\n# My draft\n\nHello.\n"


def test_an_authors_card_is_kept_and_only_added_to(checkpoint, report, push):
    (checkpoint / "README.md").write_text(OWN)
    made = ModelCard(push(checkpoint, report(checkpoint), "--dry-run").stdout)
    assert made.text.startswith("# My draft\n\nHello.\n\n" + BEGIN)
    assert made.data.license == "mit"
    assert made.data.base_model == "theirs/target"
    assert made.data.tags[0] == "mine"


def test_an_authors_results_stay_beside_ours(checkpoint, report, push):
    index = [
        {
            "name": "Mine",
            "results": [
                {
                    "task": {"type": "text-generation"},
                    "dataset": {"type": "mt_bench", "name": "MT-Bench"},
                    "metrics": [{"type": "speedup", "value": 2.0}],
                }
            ],
        }
    ]
    block = yaml.safe_dump({"model-index": index})
    (checkpoint / "README.md").write_text(f"---\n{block}---\n# My draft\n")
    text = push(checkpoint, report(checkpoint), "--dry-run").stdout
    for _ in range(2):  # and again, over our own
        (model,) = ModelCard(text).data.to_dict()["model-index"]
        assert model["name"] == "Mine"
        datasets = [result["dataset"]["type"] for result in model["results"]]
        assert datasets == ["mt_bench", "eagle3-validate"]
        (checkpoint / "README.md").write_text(text)
        text = push(checkpoint, report(checkpoint), "--dry-run").stdout


def test_the_hubs_card_goes_before_the_folders(hub, checkpoint, report, push):
    hub.make("org/draft", {"README.md": b"# On the Hub\n"})
    (checkpoint / "README.md").write_text(OWN)
    result = push(checkpoint, report(checkpoint))
    text = hub.files("org/draft")["README.md"].decode()
    assert "# On the Hub" in text
    assert "# My draft" not in text
    assert "license: mit" in text
    assert "the card on the Hub is kept" in result.stderr


def test_a_card_of_the_hub_without_text_keeps_its_metadata(hub, checkpoint, report, push):
    gated = b"---\nlicense: apache-2.0\nextra_gated_prompt: Agree?\n---\n"
    hub.make("org/draft", {"README.md": gated})
    (checkpoint / "README.md").write_text("# My draft\n")
    assert push(checkpoint, report(checkpoint)).exit_code == 0
    text = hub.files("org/draft")["README.md"].decode()
    assert "extra_gated_prompt: Agree?" in text
    assert "license: apache-2.0" in text
    assert "# My draft" in text


def test_the_license_of_a_source_on_the_hub_is_passed_on(hub, checkpoint, report, push):
    repo = hub.make("org/source", {"README.md": b"---\nlicense: gemma\n---\n# Source\n"})
    path = checkpoint / "eagle3_interop.json"
    told = json.loads(path.read_text())
    told["source"] |= {"path": "org/source", "revision": repo.refs["main"]}
    path.write_text(json.dumps(told))
    assert push(checkpoint, report(checkpoint)).exit_code == 0
    assert b"license: gemma" in hub.files("org/draft")["README.md"]


def test_a_source_that_is_gone_is_no_reason_not_to_push(hub, checkpoint, report, push):  # noqa: ARG001
    path = checkpoint / "eagle3_interop.json"
    told = json.loads(path.read_text())
    told["source"] |= {"path": "org/source", "revision": "c" * 40}
    path.write_text(json.dumps(told))
    result = push(checkpoint, report(checkpoint))
    assert result.exit_code == 0
    assert "the source's card could not be read" in result.stderr


@pytest.mark.parametrize(
    "text",
    [
        "---\nlicense: [\n---\n# x\n",
        "---\n- a\n---\n# x\n",
        f"# x\n{BEGIN}\n",
        f"# x\n{END}\n{BEGIN}\n",
        f"{BEGIN}\n{END}\n{BEGIN}\n{END}\n",
        "---\nmodel-index: 3\n---\n# x\n",
    ],
)
def test_a_card_that_cannot_be_read_is_refused_before_anything_is_sent(
    hub, checkpoint, report, push, text
):
    (checkpoint / "README.md").write_text(text)
    result = push(checkpoint, report(checkpoint), "--json")
    assert result.exit_code == 3, result.output
    assert json.loads(result.stdout)["findings"][0]["code"] == "broken-card"
    assert hub.log == []


def test_what_a_finding_says_cannot_leave_its_cell(made):
    text = f"a | b\n{END} <!-- x"
    note = {"code": "cast", "severity": "note", "where": "w", "message": text}
    made_text = made(findings=[note]).text
    assert made_text.count(END) == 1
    row = next(line for line in made_text.splitlines() if line.startswith("| `cast`"))
    assert re.findall(r"(?<!\\)\|", row) == ["|"] * 4


PROSE = st.text(st.characters(codec="utf-8", exclude_characters="\r\x00"), max_size=60).filter(
    lambda text: "eagle3-interop:" not in text
)


@given(before=PROSE, after=PROSE)
@settings(max_examples=30, deadline=None)
def test_all_around_the_section_is_kept_to_the_byte(before, after):
    text = f"{before}{BEGIN}\nold\n{END}{after}"
    assert card.with_section(text, "new") == f"{before}{BEGIN}\nnew\n{END}{after}"


@given(PROSE)
@settings(max_examples=30, deadline=None)
def test_a_section_is_added_once_and_then_replaced(text):
    once = card.with_section(text, "one")
    assert once.startswith(text.rstrip())
    assert card.with_section(once, "one") == once
    assert card.with_section(once, "two") == once.replace("\none\n", "\ntwo\n")


def test_line_ends_are_the_cards_own():
    text = card.with_section("# x\r\n\r\ny\r\n", "a\nb")
    assert "\n" not in text.replace("\r\n", "")


def test_a_damaged_section_names_the_file():
    with pytest.raises(Refused) as refused:
        card.with_section(BEGIN, "x")
    assert refused.value.findings[0].where == "README.md"


def test_what_an_engine_took_is_said_with_its_name(checkpoint, report):
    row = {"batch": 1, "with": 56.8, "without": 90.0, "ratio": 56.8 / 90.0, "spread": (56.0, 57.0), "spread_without": (89.0, 91.0)}  # fmt: skip
    speed = {**row, "target_step": None, "draft_step": None, "batches": [row], "rounds": 3, "new_tokens": 64, "same_texts": 1.0}  # fmt: skip
    read = Report.model_validate_json(report(checkpoint).read_text())
    content = read.model_dump() | {
        "engine": {"engine": "vllm", "version": "0.32.0"},
        "speed": {
            key: speed[key]
            for key in Report.model_fields["speed"].annotation.__args__[0].__annotations__
        },
    }
    text = section(Facts("org/draft", "vllm", {}, Report.model_validate(content)), "org/target")
    said = "vLLM 0.32.0, batch size 1: with the draft 56.8 tokens a second, without it 90.0: drafting makes it 1.58 times slower."
    assert said in text
