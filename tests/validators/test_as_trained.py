"""What serving a draft costs that was trained otherwise: both networks measured on the same texts."""

import json
from dataclasses import replace

import pytest
from conversions import convert
from exports import DATA, TARGET
from typer.testing import CliRunner

from eagle3_interop.validators import record_cli
from eagle3_interop.validators.accept.shape import Shape
from eagle3_interop.validators.prove.request import Request
from eagle3_interop.validators.prove.validate import validate
from eagle3_interop.validators.report.page import page
from eagle3_interop.validators.report.terminal import as_trained_line

PAIR = DATA.parent


def report(folder, target, prompts, **options):
    request = Request(
        checkpoint=str(folder),
        target=str(target),
        prompts=prompts,
        shape=Shape.chain(3),
        new_tokens=24,
        **options,
    )
    return validate(request)[0]


@pytest.fixture
def few(tmp_path):
    lines = (PAIR / "prompts.jsonl").read_text().splitlines()[:4]
    return _lines(tmp_path, lines)


@pytest.fixture
def random_texts(tmp_path):
    return _lines(tmp_path, [json.dumps({"token_ids": [9 + i, 40, 77, 13]}) for i in range(3)])


def _lines(folder, lines):
    path = folder / "prompts.jsonl"
    path.write_text("\n".join(lines) + "\n")
    return path


@pytest.fixture
def trained(tmp_path):
    """A draft that was trained at base 10000."""
    source = tmp_path / "plain"
    source.symlink_to(PAIR / "drafts/plain")
    return convert(source, "vllm", target=PAIR / "target").folder


@pytest.fixture
def mislabelled(trained):
    """The same as AngelSlim would leave it, whose code reads no base: with another one in its config."""
    (trained / "eagle3_interop.json").unlink()
    config = json.loads((trained / "config.json").read_text())
    config |= {"rope_theta": 5e5, "target_model_type": "llama"}
    config["rope_parameters"] = config["rope_parameters"] | {"rope_theta": 5e5}
    (trained / "config.json").write_text(json.dumps(config))
    return trained


def test_as_trained_counts_what_the_trained_network_counts(mislabelled, few):
    truth = report(PAIR / "drafts/plain", PAIR / "target", few)
    assert truth.as_trained is None
    found = report(mislabelled, PAIR / "target", few)
    assert found.as_trained.acceptance == truth.acceptance
    assert found.acceptance != truth.acceptance
    assert found.as_trained.logits.max_abs_diff > 0.1
    assert found.as_trained.logits.positions > 50


def test_the_cost_is_told_on_the_terminal_and_on_the_page(mislabelled, few):
    found = report(mislabelled, PAIR / "target", few)
    line = as_trained_line(found.as_trained)
    assert line.startswith("as engines compute it, against as it was trained: logits differ by")
    shown = page(found)
    assert "As its trainer computed it" in shown
    assert f"{found.as_trained.acceptance.accept_length:.3f}" in shown


def test_no_gate_judges_what_was_trained(mislabelled, few):
    found = report(
        mislabelled, PAIR / "target", few, against=str(mislabelled), min_accept_length=1.0
    )
    assert found.verdict == "pass"
    assert found.against.logits.max_abs_diff == 0
    assert found.as_trained.logits.max_abs_diff > 0.1


def test_by_the_users_word_checkpoint_and_source_are_measured_as_trained(mislabelled, few):
    found = report(
        mislabelled, PAIR / "target", few, against=str(PAIR / "drafts/plain"), trainer="angelslim"
    )
    assert found.verdict == "pass"
    assert found.as_trained is None


@pytest.mark.parametrize("name", ["modelopt/default", "specforge/no_norm_output"])
def test_what_no_engine_computes_is_measured_too(name, random_texts):
    found = report(DATA / name, TARGET, random_texts)
    assert found.as_trained.logits.max_abs_diff / found.as_trained.logits.largest > 0.05
    assert found.as_trained.acceptance.tokens == found.acceptance.tokens


def test_nothing_stands_there_by_the_word_that_nobody_trained_otherwise(random_texts):
    found = report(DATA / "modelopt/default", TARGET, random_texts, trainer="none")
    assert found.as_trained is None


@pytest.mark.parametrize("name", ["specforge/plain", "automodel/plain"])
def test_nothing_stands_there_where_engines_compute_what_was_trained(name, random_texts):
    assert report(DATA / name, TARGET, random_texts).as_trained is None


def test_recordings_as_short_as_the_draft_are_enough(mislabelled, few, tmp_path):
    """One token beyond the scored ones: enough for one draft token, for either network."""
    streams = tmp_path / "streams"
    arguments = [PAIR / "target", "--out", streams, "--prompts", few, "--max-new-tokens", 24]
    ran = CliRunner().invoke(record_cli.app, [*map(str, arguments), "--lookahead", "1"])
    assert ran.exit_code == 0, ran.output
    common = {"shape": Shape.chain(1), "new_tokens": 24}
    request = Request(str(mislabelled), str(PAIR / "target"), **common)
    live = validate(replace(request, prompts=few))[0]
    recorded = validate(replace(request, streams=str(streams)))[0]
    assert recorded.acceptance == live.acceptance
    assert recorded.as_trained.acceptance == live.as_trained.acceptance
