"""Trained drafts, wired wrongly in every way: the diagnosis leads back. One pass of the target for all cases."""

import importlib.util
import json
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from typer.testing import CliRunner

from eagle3_interop.convert import api
from eagle3_interop.schemas.findings import Unavailable, Usage
from eagle3_interop.validators.diagnose import run as orchestration
from eagle3_interop.validators.diagnose import verdict
from eagle3_interop.validators.diagnose.rewire import Rewritten, write_wiring
from eagle3_interop.validators.diagnose.run import answer, prepare
from eagle3_interop.validators.diagnose.scoring import Evaluator
from eagle3_interop.validators.diagnose.suspect import subject_of
from eagle3_interop.validators.diagnose.verdict import diagnose, indistinguishable
from eagle3_interop.validators.diagnose_cli import app
from eagle3_interop.validators.diagnose_cli import main as diagnose_main
from eagle3_interop.validators.prove.request import Request
from eagle3_interop.validators.report.heatmap import SCORE, Row, foremost
from eagle3_interop.validators.validate_cli import main as validate_main
from eagle3_interop.validators.validate_cli import try_report

ROOT = Path(__file__).resolve().parents[2]
DATA = ROOT / "tests" / "data"
TARGET, DRAFTS = DATA / "target", DATA / "drafts"
PROMPTS, NEW_TOKENS = 16, 40
TRAINED = sorted(folder.name for folder in DRAFTS.iterdir())
QUICK = {
    # Single ways.
    "residual=normed",
    "order=hidden-embedding",
    "map=absent",
    "taps reversed",
    "reads sublayer",
    # Pairs.
    "order=hidden-embedding + map=absent",
    # Files.
    "blocks",
    "map",
}
"""Cases of the fast suite; the others run in `make diagnose`."""


def slow(*values):
    """A case that takes its time."""
    return pytest.param(*values, marks=pytest.mark.grid)


def _load_grid():
    path = ROOT / "benchmarks" / "diagnose_grid.py"
    spec = importlib.util.spec_from_file_location("_diagnose_grid", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


grid = _load_grid()


@pytest.fixture(scope="session")
def pair():
    """Target, streams, size of the sieve."""
    return grid.captured(PROMPTS, NEW_TOKENS)


@pytest.fixture(scope="session")
def evaluators(pair):
    """By draft; every score is computed once for all tests."""
    kept: dict[str, Evaluator] = {}

    def of(name: str) -> Evaluator:
        if name not in kept:
            kept[name] = grid.evaluator_of(name, *pair)
        return kept[name]

    return of


def of_folder(folder, pair) -> Evaluator:
    """As the command reads it."""
    target, streams, sieve = pair
    options = api.Options(target=str(TARGET))
    loaded = api.load(str(folder), "auto", options, diagnosing=True)
    subject = subject_of(loaded, target, device=torch.device("cpu"), dtype=torch.float32)
    return Evaluator(subject, target, streams, sieve)


def edited(tmp_path, draft, weights=None, **keys):
    """A trained draft with other keys in its config, and other weights."""
    folder = tmp_path / "draft"
    shutil.copytree(DRAFTS / draft, folder)
    config = json.loads((folder / "config.json").read_text())
    config.update(keys)
    (folder / "config.json").write_text(json.dumps(config))
    if weights is not None:
        tensors = load_file(folder / "model.safetensors")
        weights(tensors)
        save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


# As they were trained.


@pytest.mark.parametrize("name", ["plain", *(slow(one) for one in TRAINED if one != "plain")])
def test_the_trained_wiring_is_the_best(evaluators, name):
    evaluator = evaluators(name)
    found = diagnose(evaluator)
    assert found.verdict == "configured-is-best"
    assert found.best is found.configured
    assert found.finished
    assert 100 < found.tried < 900
    assert "is the best of" in answer(found)


# Features of another position: a leak for any draft, and what some were trained on.


def by_shift(evaluator):
    """Scores at equal knowledge."""
    configured = evaluator.subject.configured
    return {s: evaluator.result(configured.with_flag("shift", s)) for s in ("0", "1", "-1")}


@pytest.mark.parametrize(("name", "shift"), [("ahead", "1"), ("behind", "-1")])
def test_a_draft_that_was_trained_with_a_shift_fits_it_best(pair, name, shift):
    found = by_shift(of_folder(DATA / "shifted" / name, pair))
    assert min(found, key=lambda one: found[one].score) == shift
    assert found[shift].gain_interval(found["0"])[0] > 0


@pytest.mark.parametrize("name", TRAINED)
def test_a_draft_that_was_trained_without_a_shift_gains_by_none(evaluators, name):
    found = by_shift(evaluators(name))
    assert min(found, key=lambda one: found[one].score) == "0"


# Wrong in one way.

SINGLES = (
    "residual=normed",
    "feedback=post-norm",
    "input_norm=on",
    "block_norms=on",
    "head_norm=off",
    "embedding_scale=scaled",
    "order=hidden-embedding",
    "shift=1",
    "shift=-1",
    "rope=theta 500000",
    "rope=theta 1e+06",
    "map=absent",
    "hidden_norms=two",
    "entry_norms=swapped",
    "taps + 1",
    "taps - 1",
    "taps reversed",
    "taps shifted up",
    "taps shifted down",
    "first tap 0",
    "last tap L",
    "reads sublayer",
    "block 0 reads sublayer",
    "block 1 reads sublayer",
    "block 2 reads sublayer",
    "reads normed",
    "block 0 reads normed",
    "block 1 reads normed",
    "block 2 reads normed",
)
NO_EFFECT = {"embedding_scale=scaled", "hidden_norms=two", "block 0 reads sublayer"}
"""A factor on what is normed next; a norm of nearly equal weights before another norm; and layer 0's MLP, which is
nearly all of the stream after it."""


def test_the_list_of_single_ways_is_whole(evaluators):
    assert set(grid.singles(evaluators("plain"))) == set(SINGLES)


@pytest.mark.parametrize("name", [one if one in QUICK else slow(one) for one in SINGLES])
def test_every_single_way_leads_back(evaluators, name):
    evaluator = evaluators("plain")
    end, detail, _ = grid.outcome(evaluator, grid.singles(evaluator)[name])
    assert end == ("no effect" if name in NO_EFFECT else "found"), detail


OWN = [
    ("norm_before_residual", "residual=raw"),
    ("sliding", "reads sublayer"),
    ("library_defaults", "residual=raw"),
    ("embed_tap", "taps shifted up"),
    ("qwen3", "qk_norm=off"),
    ("fc_norm", "block_norms=off"),
    ("two_layers", "later_norms=swapped"),
    ("four_taps", "taps reversed"),
]


@pytest.mark.parametrize(
    ("draft", "name"), [slow(*one) for one in OWN], ids=[one[0] for one in OWN]
)
def test_what_is_special_about_a_draft_is_found(evaluators, draft, name):
    evaluator = evaluators(draft)
    end, detail, _ = grid.outcome(evaluator, grid.singles(evaluator)[name])
    assert end == "found", detail


# Wrong in two ways.

PAIRS = (
    "residual=normed + feedback=post-norm",
    "residual=normed + taps reversed",
    "feedback=post-norm + taps - 1",
    "head_norm=off + feedback=post-norm",
    "order=hidden-embedding + taps - 1",
    "order=hidden-embedding + map=absent",
    "shift=1 + taps reversed",
    "rope=theta 1e+06 + taps - 1",
    "rope=theta 1e+06 + residual=normed",
    "map=absent + taps reversed",
    "input_norm=on + taps - 1",
    "block_norms=on + residual=normed",
)


@pytest.mark.parametrize("name", [one if one in QUICK else slow(one) for one in PAIRS])
def test_a_dozen_pairs_lead_back(evaluators, name):
    evaluator = evaluators("plain")
    found = grid.pairs(evaluator)
    one, other = name.split(" + ", 1) if name.count(" + ") == 1 else (name, "")
    wrong = found[name] if name in found else found[f"{other} + {one}"]
    end, detail, _ = grid.outcome(evaluator, wrong)
    assert end == "found", detail


# Wrong in the files.


def _blocks_permuted(tensors):
    low, middle, high = tensors["fc.weight"].chunk(3, dim=1)
    tensors["fc.weight"] = torch.cat([high, low, middle], dim=1).contiguous()


def _halves_exchanged(tensors):
    for part in "qkv":
        name = f"layers.0.self_attn.{part}_proj.weight"
        tensors[name] = tensors[name].roll(tensors[name].shape[1] // 2, dims=1).contiguous()


def _absolute_map(tensors):
    tensors["d2t"] += torch.arange(len(tensors["d2t"]))


def _norms_exchanged(tensors):
    one, other = "layers.0.input_layernorm.weight", "layers.0.hidden_norm.weight"
    tensors[one], tensors[other] = tensors[other].clone(), tensors[one].clone()


FILES = {
    "taps": ("plain", {"eagle_aux_hidden_state_layer_ids": [0, 2, 4]}, None, "taps [1, 3, 5]"),
    "residual": ("plain", {"norm_before_residual": True}, None, "residual raw"),
    "feedback": ("plain", {"norm_output": True}, None, "feedback pre-norm"),
    "fc_norm": ("fc_norm", {"fc_norm": False}, None, "block_norms on"),
    "blocks": ("plain", {}, _blocks_permuted, "taps [5, 1, 3]"),
    "halves": ("plain", {}, _halves_exchanged, "order hidden-embedding"),
    "map": ("plain", {}, _absolute_map, "map absolute"),
    "norms": ("plain", {}, _norms_exchanged, "entry_norms swapped"),
}


@pytest.mark.parametrize("name", [one if one in QUICK else slow(one) for one in FILES])
def test_files_that_are_wrong_are_told_so_and_written_right(tmp_path, pair, evaluators, name):
    draft, keys, weights, wanted = FILES[name]
    folder = edited(tmp_path, draft, weights, **keys)
    evaluator = of_folder(folder, pair)
    subject = evaluator.subject
    found = diagnose(evaluator, known=subject.known)
    best = found.best
    assert found.verdict == "better-wiring"
    # A map that leaves the vocabulary is no wiring: the search begins from one that does not.
    assert subject.known == (name != "map")
    said = [*best.wiring.changes(subject.configured), f"map {best.wiring.flag('map')}"]
    assert any(wanted in one for one in said)
    trained = evaluators(draft)
    truth = trained.result(trained.subject.configured)
    assert best.score == pytest.approx(truth.score, abs=1e-3)
    done = write_wiring(str(folder), str(TARGET), subject, best.wiring, tmp_path / "right")
    assert done.output is not None, done.findings
    again = of_folder(done.output, pair)
    assert again.subject.known
    result = again.result(again.subject.configured)
    assert result.score == pytest.approx(best.score, abs=1e-4)
    assert torch.equal(result.accepted, best.accepted)


# Weights of no wiring.


def _random(tensors):
    generator = torch.Generator().manual_seed(3)
    for name, tensor in tensors.items():
        if tensor.is_floating_point() and tensor.dim() > 1:
            std = tensor.float().std()
            tensors[name] = (torch.randn(tensor.shape, generator=generator) * std).bfloat16()


@pytest.fixture(scope="session")
def small_pair():
    """Fewer texts, for searches that have nowhere to end."""
    return grid.captured(6, 24)


def test_random_weights_are_not_diagnosed(tmp_path, small_pair):
    evaluator = of_folder(edited(tmp_path, "plain", _random), small_pair)
    found = diagnose(evaluator)
    assert found.verdict == "no-match"
    assert found.best.interval()[0] < 1.1
    assert found.best.by_depth[0] > found.constant
    assert "do not belong to this target" in answer(found)
    assert "wiring-none" in {item.code for item in orchestration._said(found)}


def test_a_draft_of_another_target_is_not_diagnosed(small_pair):
    """The tokens of the target renamed: what the draft learnt is of no use."""
    subject = grid.evaluator_of("plain", *small_pair).subject
    generator = torch.Generator().manual_seed(5)
    order = torch.randperm(len(subject.tables["target"]), generator=generator)
    other = replace(
        subject,
        maps={**subject.maps, "offset": order[subject.maps["offset"]]},
        tables={"target": subject.tables["target"][order.argsort()]},
    )
    assert diagnose(Evaluator(other, *small_pair)).verdict == "no-match"


# The clock, intervals, equivalents.


def test_without_time_there_is_still_an_answer(pair):
    evaluator = of_folder(DRAFTS / "plain", pair)
    found = diagnose(evaluator, budget=0.0)
    assert found.verdict == "configured-is-best"
    assert not found.finished
    assert found.tried == 1


def test_a_gain_is_paired_and_an_interval_holds_its_figure(evaluators):
    evaluator = evaluators("plain")
    truth, other = (
        evaluator.result(one)
        for one in (evaluator.subject.configured, grid.singles(evaluator)["taps reversed"])
    )
    low, high = truth.gain_interval(other)
    assert 0 < low < truth.gain(other) < high
    assert other.gain(truth) == -truth.gain(other)
    low, high = truth.interval()
    assert low < truth.accept_length < high
    assert not indistinguishable(truth, other)
    assert indistinguishable(truth, truth)


def test_what_makes_no_difference_is_named_once_and_is_no_row(evaluators):
    """A factor on an embedding that is normed next changes nothing; two norms in a row change little."""
    report = diagnose(evaluators("plain")).report()
    assert "embedding_scale scaled instead of raw" in report["idle"]
    shown = [*report["candidates"], *report["best"]["equivalent"]]
    assert all(one["flags"]["embedding_scale"] == "raw" for one in shown)
    assert any(one["flags"]["hidden_norms"] == "two" for one in report["best"]["equivalent"])


# The command.


@pytest.fixture
def _one_target(monkeypatch, pair):
    monkeypatch.setattr(orchestration, "load_target", lambda *_: pair[0])
    monkeypatch.setattr(type(pair[0]), "release_layers", lambda _: None)  # others need them yet


@pytest.mark.usefixtures("_one_target")
def test_streams_that_do_not_fit_into_memory_are_said_to_lie_on_disk(tmp_path):
    prompts = tmp_path / "prompts"
    prompts.write_text("Hello")
    request = Request(str(DRAFTS / "plain"), str(TARGET), prompts=prompts, new_tokens=8)
    prepared = orchestration.prepare(request, memory=1 << 10)
    prepared.evaluator.streams.close()
    assert "streams-on-disk" in {item.code for item in prepared.findings}


@pytest.fixture(scope="session")
def prompts(tmp_path_factory):
    path = tmp_path_factory.mktemp("prompts") / "few.jsonl"
    lines = (DATA / "prompts.jsonl").read_text().splitlines()[:PROMPTS]
    path.write_text("\n".join(lines))
    return path


def command(*arguments):
    return CliRunner().invoke(app, [*map(str, arguments), "--max-new-tokens", str(NEW_TOKENS)])


@pytest.mark.usefixtures("_one_target")
def test_the_story(tmp_path, prompts):
    """fc was trained on [embedding, 3, 5], the config says [3, 5, 6]: told, written, and then the best."""
    keys = {"eagle_aux_hidden_state_layer_ids": [3, 5, 6]}
    wrong, output = edited(tmp_path, "embed_tap", **keys), tmp_path / "right"
    html, file = tmp_path / "report.html", tmp_path / "report.json"
    common = ("--target", TARGET, "--prompts", prompts)
    ran = command(
        wrong, *common, "--write", output, "--html", html, "--json", file, "--budget", 3600
    )
    assert ran.exit_code == 1, ran.output
    assert "as configured: " in ran.stdout
    assert "taps [0, 3, 5] instead of [3, 5, 6]" in ran.stdout
    assert f"score: {SCORE}" in " ".join(ran.stdout.split())
    assert "taps [3, 5, 6] [configured]" in ran.stdout
    report = json.loads(file.read_text())
    assert report["verdict"] == "better-wiring"
    assert report["configured"]["taps"] == [3, 5, 6]
    assert report["best"]["taps"] == [0, 3, 5]
    assert report["best"]["changes"] == ["taps [0, 3, 5] instead of [3, 5, 6]"]
    assert report["best"]["accept_length"] > report["configured"]["accept_length"]
    assert report["best"]["gain_interval"][0] > 0
    assert report["tried"] > 100
    for entry in (report["configured"], report["best"], *report["candidates"]):
        assert {"taps", "flags", "score", "accept_length", "interval"} <= entry.keys()
        assert entry["interval"][0] <= entry["accept_length"] <= entry["interval"][1]
    assert {"wiring-differs"} <= {item["code"] for item in report["findings"]}
    page = html.read_text()
    assert "Another wiring fits better" in page
    assert page.count('class="was"') == 3
    assert "<script" not in page
    assert "http" not in page.replace("http-equiv", "")
    assert report["written"] == str(output)
    assert json.loads((output / "config.json").read_text())["eagle_aux_hidden_state_layer_ids"] == [
        0,
        3,
        5,
    ]
    again = command(output, *common, "--json", "-")
    assert again.exit_code == 0, again.output
    report = json.loads(again.stdout)
    assert report["verdict"] == "configured-is-best"
    assert report["best"]["taps"] == [0, 3, 5]
    quiet = command(output, *common, "--quiet", "--budget", 0)
    assert quiet.output.startswith("the configured wiring is the best of ")
    assert quiet.output.count("\n") == 1


@pytest.mark.usefixtures("_one_target")
def test_exit_codes(tmp_path, prompts):
    plain = DRAFTS / "plain"
    assert command(plain, "--target", TARGET, "--json", tmp_path / "no" / "file").exit_code == 2
    assert command(plain, "--target", TARGET, "--write", tmp_path).exit_code == 2
    assert command(plain, "--target", TARGET, "--prompts", tmp_path / "none").exit_code == 2
    refused = command(TARGET, "--target", TARGET, "--prompts", prompts, "--json", "-")
    assert refused.exit_code == 3
    report = json.loads(refused.stdout)
    assert report["verdict"] == "refused"
    assert report["findings"]


@pytest.mark.parametrize(
    ("place", "code"),
    [("draft/inside", 2), ("file/below", 2), ("draft", 2), ("a" * 300, 2), ("new/a", 4)],
)
def test_a_place_that_cannot_be_written_to_is_found_before_the_search(
    tmp_path, monkeypatch, place, code
):
    draft = edited(tmp_path, "plain")
    (tmp_path / "file").touch()
    monkeypatch.setattr(orchestration, "prepare", lambda *_, **__: pytest.fail("it went on"))
    if code == 4:
        monkeypatch.setattr("os.access", lambda *_: False)
    ran = command(draft, "--target", TARGET, "--write", tmp_path / place, "--json", "-")
    assert ran.exit_code == code, ran.output
    assert json.loads(ran.stdout)["exit_code"] == code


@pytest.mark.usefixtures("_one_target")
@pytest.mark.parametrize(("texts", "few"), [(5, True), (6, False)])
def test_texts_so_few_that_all_may_lean_one_way_by_chance_are_said_to_be_few(tmp_path, texts, few):
    assert (2 ** (1 - texts) > 0.05) == few
    prompts = tmp_path / "prompts"
    prompts.write_text("Hello\n" * texts)
    request = Request(str(DRAFTS / "plain"), str(TARGET), prompts=prompts, new_tokens=8)
    found = orchestration.run(request, budget=0.0).findings
    assert ("few-texts" in {item.code for item in found}) == few


@pytest.mark.usefixtures("_one_target")
@pytest.mark.parametrize("error", [Unavailable, Usage])
def test_the_answer_outlives_a_disk_that_fails(tmp_path, monkeypatch, small_pair, error):
    def fails(*_arguments, **_options):
        raise error("no space")

    evaluator = of_folder(edited(tmp_path, "plain"), small_pair)
    best = diagnose(evaluator, budget=0.0)
    other = replace(best, verdict="better-wiring")
    monkeypatch.setattr(orchestration, "diagnose", lambda *_, **__: other)
    monkeypatch.setattr(orchestration, "write_wiring", fails)
    file = tmp_path / "report.json"
    common = (tmp_path / "draft", "--target", TARGET, "--prompts", tmp_path / "prompts")
    (tmp_path / "prompts").write_text("Hello")
    ran = command(*common, "--write", tmp_path / "out", "--json", file)
    assert ran.exit_code == 4, ran.output
    assert "wirings, the best first" in ran.stdout
    assert "no space" in ran.stderr
    report = json.loads(file.read_text())
    assert report["verdict"] == "better-wiring"
    assert report["written"] is None
    assert "wiring-not-written" in {item["code"] for item in report["findings"]}


@pytest.mark.usefixtures("_one_target")
@pytest.mark.parametrize("asked", [(), ("--write",)])
def test_writing_is_advised_to_those_alone_who_did_not_ask_for_it(
    tmp_path, monkeypatch, small_pair, asked
):
    best = diagnose(of_folder(edited(tmp_path, "plain"), small_pair), budget=0.0)
    other = replace(best, verdict="better-wiring")
    monkeypatch.setattr(orchestration, "diagnose", lambda *_, **__: other)
    monkeypatch.setattr(orchestration, "write_wiring", lambda *_, **__: Rewritten(None, ()))
    (tmp_path / "prompts").write_text("Hello")
    common = (tmp_path / "draft", "--target", TARGET, "--prompts", tmp_path / "prompts")
    ran = command(*common, *(x for flag in asked for x in (flag, tmp_path / "out")))
    assert ran.exit_code == 1, ran.output
    assert "wiring-differs" in ran.output
    assert ("--write" in ran.output) == (not asked)


@pytest.mark.usefixtures("_one_target")
def test_write_writes_nothing_that_the_texts_do_not_support(tmp_path, monkeypatch, small_pair):
    """Which they do is judged apart (`test_diagnose_verdict.py`)."""
    best = diagnose(of_folder(edited(tmp_path, "plain"), small_pair), budget=0.0)
    other = replace(best, verdict="better-wiring")
    too_few = property(lambda _: "1 text is too few to tell.")
    monkeypatch.setattr(type(best), "unsupported", too_few)
    monkeypatch.setattr(orchestration, "diagnose", lambda *_, **__: other)
    (tmp_path / "prompts").write_text("Hello")
    common = (tmp_path / "draft", "--target", TARGET, "--prompts", tmp_path / "prompts")
    ran = command(*common, "--write", tmp_path / "out")
    assert ran.exit_code == 1, ran.output
    assert "Nothing was written: 1 text is too few to tell." in " ".join(ran.output.split())
    assert "wiring-not-supported" in ran.output
    assert not (tmp_path / "out").exists()


@pytest.mark.usefixtures("_one_target")
@pytest.mark.parametrize(
    ("verdict", "why"),
    [
        ("configured-is-best", "no other wiring fits better"),
        ("no-match", "no wiring that was tried"),
    ],
)
def test_write_says_that_there_was_nothing_to_write(
    tmp_path, monkeypatch, small_pair, verdict, why
):
    best = diagnose(of_folder(edited(tmp_path, "plain"), small_pair), budget=0.0)
    monkeypatch.setattr(orchestration, "diagnose", lambda *_, **__: replace(best, verdict=verdict))
    (tmp_path / "prompts").write_text("Hello")
    common = (tmp_path / "draft", "--target", TARGET, "--prompts", tmp_path / "prompts")
    said = " ".join(command(*common, "--write", tmp_path / "out").output.split())
    assert f"nothing-written --write: Nothing was written: {why}" in said
    assert not (tmp_path / "out").exists()
    assert "nothing-written" not in command(*common).output


def test_the_table_names_its_score_and_keeps_the_configured_wiring():
    marks = ["best", "", "", "configured", ""]
    found = [Row(float(i), "2.0", f"wiring {i}", mark, "") for i, mark in enumerate(marks)]
    assert [row.text for row in foremost(found, 1)] == ["wiring 0", "wiring 3"]
    assert [row.text for row in foremost(found, 4)] == [f"wiring {i}" for i in (0, 3, 1, 2)]
    for word in ("cross-entropy", "nats", "lower"):
        assert word in SCORE


def test_a_report_that_the_disk_does_not_take_is_not_lost(tmp_path):
    (tmp_path / "full").symlink_to("/dev/full")
    (message,) = try_report(tmp_path / "full", "x" * 100)
    assert "No space left" in message


WRONG = [
    [],
    ["--target", TARGET, "--dtype", "x"],
    ["--target", TARGET, "--no-such-option"],
    ["--target", ""],
    ["--target="],
    ["--target", "~nosuchuser/x"],
    ["--target", TARGET, "--prompts", ""],
    ["--target", TARGET, "--html", "a" * 300],
]


@pytest.mark.parametrize("form", [("--json", "-"), ("--json=-",)])
@pytest.mark.parametrize("wrong", WRONG, ids=str)
@pytest.mark.parametrize("main", [validate_main, diagnose_main])
def test_wrong_usage_is_one_json_object_too(monkeypatch, capsys, main, wrong, form):
    words = ["eagle3", DRAFTS / "plain", *wrong, *form]
    monkeypatch.setattr(sys, "argv", [str(word) for word in words])
    with pytest.raises(SystemExit) as left:
        main()
    assert left.value.code == 2
    failure = json.loads(capsys.readouterr().out)
    assert (failure["status"], failure["exit_code"]) == ("failed", 2)
    assert failure["message"]


def test_ids_that_name_no_layer_are_searched_for(tmp_path, prompts):
    """Nothing that could be run is configured: said, and the search begins from a guess."""
    folder = edited(tmp_path, "plain", eagle_aux_hidden_state_layer_ids=[30, 31, 32])
    request = Request(str(folder), str(TARGET), prompts=prompts, new_tokens=8)
    prepared = prepare(request)
    assert not prepared.subject.known
    assert "wiring-not-configured" in {item.code for item in prepared.findings}
    assert diagnose(prepared.evaluator, known=False, budget=0.0).configured is None


def test_help_imports_no_torch():
    code = (
        "import sys; from typer.testing import CliRunner; "
        "from eagle3_interop.validators.diagnose_cli import app; "
        "ran = CliRunner().invoke(app, ['--help']); assert ran.exit_code == 0, ran.output; "
        "sys.exit(sum(name in sys.modules for name in ('torch', 'transformers', 'matplotlib')))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


# What it costs.


def test_the_work_of_a_comparison_is_that_of_paper(evaluators):
    """Each position runs through fc and the layer once, each start through layer and head at four depths."""
    evaluator = evaluators("plain")
    width, mlp, vocabulary = 128, 192, 512
    fc = 3 * width * width
    attention = 2 * width * (128 + 2 * 64) + 128 * width
    layer = fc + attention + 3 * width * mlp + 4 * width
    starts = sum(len(text.starts) for text in evaluator.streams.texts)
    head = vocabulary * width
    wanted = evaluator.streams.count * layer + starts * 4 * (layer + head)
    assert evaluator.work == pytest.approx(wanted, rel=0.01)


def test_of_a_draft_that_takes_much_work_fewer_wirings_are_compared(evaluators, monkeypatch):
    """Those that look equal and were not compared are counted."""
    evaluator = evaluators("norm_before_residual")
    whole = diagnose(evaluator)
    monkeypatch.setattr(verdict, "WORK", 0)
    monkeypatch.setattr(verdict, "SHOWN", 0)
    short = diagnose(evaluator)
    assert len(short.candidates) <= 4 < len(whole.candidates)
    assert whole.uncompared == 0
    assert short.report()["uncompared"] == short.uncompared > 0
    assert short.verdict == whole.verdict
