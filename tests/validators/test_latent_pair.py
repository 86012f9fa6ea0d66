"""The trained pair of DeepSeek's kind: its drafts measured, diagnosed and put right, the story among them."""

import json
import shutil
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from eagle3_interop.convert import api, cli
from eagle3_interop.validators import diagnose_cli
from eagle3_interop.validators.accept.acceptance import measure
from eagle3_interop.validators.accept.shape import Shape
from eagle3_interop.validators.diagnose.rewire import write_wiring
from eagle3_interop.validators.diagnose.scoring import Evaluator, order_texts
from eagle3_interop.validators.diagnose.suspect import subject_of
from eagle3_interop.validators.diagnose.verdict import diagnose
from eagle3_interop.validators.network.reference import Network
from eagle3_interop.validators.network.weights import Weights
from eagle3_interop.validators.target.captured import capture
from eagle3_interop.validators.target.running import Target
from eagle3_interop.validators.target.writing import write_texts

DATA = Path(__file__).resolve().parents[1] / "data"
TARGET, DRAFTS = DATA / "mla" / "target", DATA / "mla" / "drafts"
OPTIONS = api.Options(target=str(TARGET))
LINES = (DATA / "prompts.jsonl").read_text().splitlines()[:24]
PROMPTS = [json.loads(line)["token_ids"] for line in LINES]


@pytest.fixture(scope="module")
def target():
    return Target.load(TARGET)


@pytest.fixture(scope="module")
def ordered(target):
    """Texts, and how many of them are the sieve's."""
    return order_texts(write_texts(target, PROMPTS, 64, 4).texts)


def subject(folder, target):
    loaded = api.load(str(folder), "auto", OPTIONS, diagnosing=True)
    return subject_of(loaded, target, device=torch.device("cpu"), dtype=torch.float32)


def network(folder, target, layout="auto"):
    loaded = api.load(str(folder), layout, OPTIONS)
    weights = Weights.read(loaded.reading, loaded.checkpoint, tables=target.tables)
    return Network(loaded.reading.draft, weights)


def counted(folder, target, ordered, shape, layout="auto"):
    found = measure(network(folder, target, layout), target, ordered[0], [shape])[shape]
    return found.drafts, found.accepted, list(found.per_position)


@pytest.mark.parametrize("shape", [Shape.chain(4), Shape(3, 2, 6)])
def test_conversions_count_what_the_source_counts(tmp_path, target, ordered, shape):
    """Chains and trees."""
    source = DRAFTS / "mla"
    wanted = counted(source, target, ordered, shape, "sglang")
    assert wanted[1] > wanted[0]  # it was trained
    for destination in ("vllm", "universal"):
        loaded = api.load(str(source), "sglang", OPTIONS)
        folder = tmp_path / f"{destination}-{shape.topk}"
        api.write(api.convert(loaded, destination, OPTIONS), folder)
        assert counted(folder, target, ordered, shape) == wanted


@pytest.mark.parametrize(("flag", "which"), [("pairs", 1), ("scores", 1)])
def test_a_wrong_rotation_and_a_wrong_mscale_are_found(target, ordered, flag, which):
    texts, sieve = ordered
    evaluator = Evaluator(subject(DRAFTS / "mla", target), target, capture(target, texts), sieve)
    truth = evaluator.subject.configured
    wrong = truth.with_flag(flag, evaluator.subject.options[flag][which])
    found = diagnose(evaluator, wrong)
    assert found.verdict == "better-wiring"
    assert found.best.wiring == truth


@pytest.mark.parametrize("flag", ["pairs", "scores"])
def test_they_are_written(tmp_path, target, flag):
    """In SGLang's layout, where a folder can say both."""
    known = subject(DRAFTS / "mla", target)
    wiring = known.configured.with_flag(flag, known.options[flag][1])
    output = tmp_path / "right"
    done = write_wiring(str(DRAFTS / "mla"), str(TARGET), known, wiring, output)
    assert done.output == output, done.findings
    assert subject(output, target).configured == wiring


def test_the_ropes_that_are_tried_are_those_of_a_description(target):
    """A yarn taken from the target names its amplitude, as a reading of latent attention does."""
    known = subject(DRAFTS / "mla", target)
    scaled = [rope for rope in known.ropes.values() if rope.scaling == "yarn"]
    assert (
        len(scaled) == 2
    )  # as configured, and with the amplitude of a trainer who reads no mscale
    assert all("attention_factor" in rope.parameters for rope in scaled)
    assert not any("mscale" in rope.parameters for rope in scaled)


# The story: fc was trained on [embedding, 2, 3], and SGLang feeds [2, 3, 5].


@pytest.fixture
def story(tmp_path):
    """The folder as it is served, with the note of its trainer where other engines look."""
    folder = tmp_path / "draft"
    shutil.copytree(DRAFTS / "shifted", folder)
    config = json.loads((folder / "config.json").read_text())
    config["eagle_aux_hidden_state_layer_ids"] = [0, 2, 3]
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def run(app, *arguments):
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def test_inspect_says_what_sglang_feeds(story):
    ran = run(cli.app, "inspect", story, "--target", TARGET, "--json")
    report = json.loads(ran.stdout)
    sglang = report["engines"]["sglang"]
    assert sglang["as_is"] == "different"
    assert sglang["differences"]["taps"] == [[0, 2, 3], [2, 3, 5]]
    assert "ids-disagree" in {item["code"] for item in report["findings"]}


def test_serve_check_says_it_before_anything_is_served(story):
    flags = f"--model-path {TARGET} --speculative-algorithm EAGLE3 --speculative-draft-model-path {story}"
    ran = run(cli.app, "serve", story, "--engine", "sglang", "--target", TARGET, "--check", flags)
    assert ran.exit_code == 3
    assert "SGLang would feed other taps" in " ".join(ran.stderr.split())


def test_the_weights_say_it_and_what_is_written_is_right(tmp_path):
    """Of the folder as it is served nothing but the weights can tell."""
    prompts, output = tmp_path / "prompts.jsonl", tmp_path / "right"
    prompts.write_text("".join(json.dumps({"token_ids": ids}) + "\n" for ids in PROMPTS[:8]))
    common = ("--target", TARGET, "--prompts", prompts, "--max-new-tokens", 40, "--device", "cpu")
    ran = run(diagnose_cli.app, DRAFTS / "shifted", *common, "--write", output, "--budget", 3600)
    assert ran.exit_code == 1, ran.output
    assert "taps [0, 2, 3] instead of [2, 3, 5]" in ran.stdout
    report = json.loads(run(cli.app, "inspect", output, "--target", TARGET, "--json").stdout)
    assert report["engines"]["sglang"]["as_is"] == "same"
    assert report["draft"]["taps"] == [0, 2, 3]
