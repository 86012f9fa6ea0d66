"""A wrong wiring is found from recordings alone, among the layers that were recorded."""

import json
import shutil
from dataclasses import replace

import pytest
from conftest import DATA, TARGET, draft, made
from forms import TAPS, as_specforge
from safetensors.torch import load_file, save_file

from eagle3_interop.validators.diagnose.run import answer as sentence
from eagle3_interop.validators.diagnose.run import run
from eagle3_interop.validators.prove.request import Request
from eagle3_interop.validators.target import replayed
from eagle3_interop.validators.target.replayed import spans


@pytest.fixture(scope="module")
def deep(tmp_path_factory):
    """All 24 prompts, recorded."""
    out = tmp_path_factory.mktemp("deep") / "streams"
    made(out, DATA / "prompts.jsonl")
    return out


def wired(folder, name, taps):
    """A trained draft whose config says other taps."""
    shutil.copytree(draft(name), folder)
    config = json.loads((folder / "config.json").read_text())
    config["eagle_aux_hidden_state_layer_ids"] = list(taps)
    (folder / "config.json").write_text(json.dumps(config))
    return str(folder)


def diagnosed(checkpoint, streams, target=TARGET, **options):
    request = Request(checkpoint, str(target), streams=str(streams), device="cpu", **options)
    return run(request)


def codes(answer):
    return {item.code for item in answer.findings}


def test_the_configured_wiring_is_found_best(deep):
    answer = diagnosed(draft("plain"), deep)
    assert answer.diagnosis.verdict == "configured-is-best"
    assert answer.report["streams"]["by"]["engine"] == "transformers"
    assert answer.report["untried"] == []


def test_wrong_taps_are_found_without_any_layers_weights(deep, tmp_path):
    target = tmp_path / "target"
    shutil.copytree(TARGET, target)
    held = load_file(TARGET / "model.safetensors")
    kept = {k: v for k, v in held.items() if "layers" not in k}
    save_file(kept, target / "model.safetensors", metadata={"format": "pt"})
    answer = diagnosed(wired(tmp_path / "d", "plain", (2, 4, 6)), deep, target)
    assert answer.diagnosis.verdict == "better-wiring"
    assert answer.diagnosis.best.wiring.taps == (1, 3, 5)


def test_a_wrong_flag_is_found(deep, tmp_path):
    folder = wired(tmp_path / "d", "norm_before_residual", (1, 3, 5))
    config = json.loads((tmp_path / "d" / "config.json").read_text())
    (tmp_path / "d" / "config.json").write_text(
        json.dumps({**config, "norm_before_residual": False})
    )
    answer = diagnosed(folder, deep)
    assert answer.diagnosis.verdict == "better-wiring"
    assert answer.diagnosis.best.wiring.flag("residual") == "normed"


def test_scores_are_those_of_a_running_target(deep):
    """Captured streams are bfloat16, recorded ones here float32."""
    recorded = diagnosed(draft("plain"), deep)
    live = run(
        Request(
            draft("plain"), str(TARGET), prompts=DATA / "prompts.jsonl", new_tokens=48, device="cpu"
        )
    )
    assert recorded.diagnosis.best.score == pytest.approx(live.diagnosis.best.score, abs=0.01)
    assert recorded.diagnosis.best.accept_length == pytest.approx(
        live.diagnosis.best.accept_length, abs=0.05
    )


def test_layers_that_were_not_recorded_are_named(tmp_path):
    made(tmp_path / "few", DATA / "prompts.jsonl", taps=(1, 3, 5))
    answer = diagnosed(wired(tmp_path / "d", "plain", (3, 1, 5)), tmp_path / "few")
    said = next(item for item in answer.findings if item.code == "layers-not-tried")
    assert said.message.startswith("taps 2, 4 were not recorded")
    assert answer.report["untried"] == [2, 4]
    assert answer.diagnosis.best.wiring.taps == (1, 3, 5)


def test_a_wiring_on_layers_that_were_not_recorded_is_only_where_the_search_does_not_begin(
    tmp_path,
):
    made(tmp_path / "few", DATA / "prompts.jsonl", taps=(1, 3, 5))
    answer = diagnosed(wired(tmp_path / "d", "plain", (2, 3, 5)), tmp_path / "few")
    assert {"layers-not-tried", "wiring-not-configured"} <= codes(answer)
    assert answer.diagnosis.configured is None
    assert answer.diagnosis.best.wiring.taps == (1, 3, 5)


def test_no_match_does_not_accuse_the_weights_of_what_was_not_recorded(deep):
    found = diagnosed(draft("plain"), deep).diagnosis
    none = replace(found, verdict="no-match")
    assert sentence(none).endswith("these weights do not belong to this target.")
    partly = replace(none, untried=(1, 3, 4, 5))
    assert sentence(partly).endswith("or read taps that were not recorded (1, 3 to 5).")


def test_a_diagnosis_of_more_than_it_can_hold_says_so(deep, monkeypatch):
    monkeypatch.setattr(replayed, "MEMORY", 4 * 128 * 1200)
    answer = diagnosed(draft("plain"), deep)
    said = next(item for item in answer.findings if item.code == "streams-in-part")
    kept, total = (int(word) for word in said.message.removesuffix(" texts.").split(" of "))
    assert 0 < kept < total == 24


def test_a_trainers_files_are_searched(tmp_path):
    """The order in which a trainer concatenated its layers is told apart."""
    rows = [json.loads(x)["token_ids"] for x in (DATA / "prompts.jsonl").read_text().splitlines()]
    folder = as_specforge(tmp_path / "s", rows, [[1] * len(row) for row in rows])
    checkpoint = wired(tmp_path / "d", "plain", (3, 1, 5))
    answer = diagnosed(checkpoint, folder, stream_taps=TAPS)
    assert answer.diagnosis.best.wiring.taps == (1, 3, 5)


@pytest.mark.parametrize(
    ("taps", "words"), [((2,), "2"), ((1, 2, 3, 7), "1 to 3, 7"), ((4, 6, 7), "4, 6 to 7")]
)
def test_numbers_in_a_row_are_said_as_one(taps, words):
    assert spans(taps) == words
