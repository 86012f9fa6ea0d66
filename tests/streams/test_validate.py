"""Counters from recordings are those of the running target, to the last token."""

import json
import shutil

import pytest
import torch
from conftest import NEW_TOKENS, TARGET, counters, draft, made, measured
from safetensors.torch import load_file, save_file
from transformers import DeepseekV3Config, DeepseekV3ForCausalLM
from typer.testing import CliRunner

from eagle3_interop.convert.write.stream import sha256_of
from eagle3_interop.schemas.findings import Refused, Usage
from eagle3_interop.validators import record_cli, validate_cli
from eagle3_interop.validators.accept.drafting import Shape
from eagle3_interop.validators.prove.request import Request
from eagle3_interop.validators.prove.validate import validate
from eagle3_interop.validators.target.recorded import Recording
from eagle3_interop.validators.target.recordings import open_recordings
from eagle3_interop.validators.target.running import Target
from eagle3_interop.validators.target.tables import TargetTables

CHAIN, TREE = Shape.chain(4), Shape(3, 3, 8)


def rewritten(folder, name, edit):
    """A recorded file whose tensors are changed, and the manifest that knows of it."""
    path = folder / name
    tensors = load_file(path)
    edit(tensors)
    save_file(tensors, path)
    told = json.loads((folder / "streams.json").read_text())
    for text in told["texts"]:
        if text["file"] == name:
            text |= {"sha256": sha256_of(path), "bytes": path.stat().st_size}
    (folder / "streams.json").write_text(json.dumps(told))


def test_categories_and_texts_are_those_of_the_running_target(tmp_path, prompts):
    """What a recording keeps of its prompts, and the digest of its texts."""
    kinds = ("a", "b", None)
    rows = [
        {**json.loads(line), **({"category": kind} if kind else {})}
        for line, kind in zip(prompts.read_text().splitlines(), kinds, strict=False)
    ]
    file = tmp_path / "kinds.jsonl"
    file.write_text("\n".join(map(json.dumps, rows)))
    live = measured("plain", prompts=file, new_tokens=NEW_TOKENS, shape=CHAIN)
    made(tmp_path / "s", file)
    told = measured("plain", streams=str(tmp_path / "s"), shape=CHAIN)
    assert [row.category for row in told.prompts] == list(kinds)
    assert told.prompts == live.prompts
    assert told.breakdown == live.breakdown
    assert told.environment["texts"] == live.environment["texts"]


@pytest.mark.parametrize("name", ["plain", "embed_tap", "fc_norm", "two_layers", "four_taps"])
def test_counters_are_those_of_the_running_target(name, recorded, prompts):
    live = measured(name, prompts=prompts, new_tokens=NEW_TOKENS, shape=CHAIN)
    assert counters(measured(name, streams=str(recorded), shape=CHAIN)) == counters(live)


def test_trees_are_counted_as_on_the_running_target(recorded, prompts):
    live = measured("plain", prompts=prompts, new_tokens=NEW_TOKENS, shape=TREE)
    assert counters(measured("plain", streams=str(recorded), shape=TREE)) == counters(live)


def test_a_sweep_is_that_of_the_running_target(recorded, prompts):
    live = measured("plain", prompts=prompts, new_tokens=NEW_TOKENS, shape=CHAIN, sweep=True)
    assert measured("plain", streams=str(recorded), shape=CHAIN, sweep=True).sweep == live.sweep


def test_a_draft_is_compared_with_its_source_on_recordings(recorded):
    same = measured("plain", streams=str(recorded), against=draft("plain"), shape=CHAIN)
    other = measured("plain", streams=str(recorded), against=draft("qwen3"), shape=CHAIN)
    assert same.verdict == "pass"
    assert same.against.logits.max_abs_diff == 0
    assert other.verdict == "fail"
    assert other.against.first_difference is not None


def test_fewer_tokens_than_were_recorded_are_counted_as_live(recorded, prompts):
    live = measured("plain", prompts=prompts, new_tokens=20, shape=CHAIN)
    found = measured("plain", streams=str(recorded), new_tokens=20, shape=CHAIN)
    assert counters(found) == counters(live)


def test_the_teacher_forced_accuracy_of_greedy_texts_is_that_of_the_running_target(
    recorded, prompts
):
    request = {"prompts": prompts, "new_tokens": NEW_TOKENS, "shape": CHAIN}
    live = Request(draft("plain"), str(TARGET), device="cpu", agreement=True, **request)
    forced = measured("plain", streams=str(recorded), shape=CHAIN).streams.teacher_forced
    assert forced.accuracy == pytest.approx(validate(live)[1].agreement, abs=1e-7)
    assert forced.chained[0] == forced.accuracy[0]
    assert all(a >= b for a, b in zip(forced.in_draft_vocabulary, forced.accuracy, strict=True))


def test_half_precision_recordings_agree_nearly(prompts, tmp_path, recorded):
    made(tmp_path / "half", prompts, dtype="bfloat16")
    half = measured("plain", streams=str(tmp_path / "half"), shape=CHAIN)
    full = measured("plain", streams=str(recorded), shape=CHAIN)
    assert half.acceptance.accept_length == pytest.approx(full.acceptance.accept_length, abs=0.15)
    assert half.streams.dtype == "bfloat16"


# What of the target is needed.


def bare(folder, keep=("embed_tokens", "lm_head", "model.norm")):
    """A copy of the tiny target without any layer's weights."""
    shutil.copytree(TARGET, folder)
    tensors = load_file(TARGET / "model.safetensors")
    kept = {name: x for name, x in tensors.items() if any(word in name for word in keep)}
    assert not any("layers" in name for name in kept)
    save_file(kept, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def test_a_target_without_any_layers_weights_is_enough(recorded, tmp_path):
    target = bare(tmp_path / "bare")
    whole = measured("plain", streams=str(recorded), shape=CHAIN)
    assert counters(
        measured("plain", target=target, streams=str(recorded), shape=CHAIN)
    ) == counters(whole)


def test_shards_that_hold_layers_only_may_be_missing(recorded, tmp_path):
    target = bare(tmp_path / "sharded")
    (target / "model.safetensors").rename(target / "model-00002-of-00002.safetensors")
    files = dict.fromkeys(
        load_file(TARGET / "model.safetensors"), "model-00001-of-00002.safetensors"
    )
    files |= dict.fromkeys(
        load_file(target / "model-00002-of-00002.safetensors"), "model-00002-of-00002.safetensors"
    )
    (target / "model.safetensors.index.json").write_text(json.dumps({"weight_map": files}))
    whole = measured("plain", streams=str(recorded), shape=CHAIN)
    assert counters(
        measured("plain", target=target, streams=str(recorded), shape=CHAIN)
    ) == counters(whole)


def test_a_head_that_is_missing_is_not_taken_for_the_embedding_table(recorded, tmp_path):
    target = bare(tmp_path / "headless", keep=("embed_tokens", "model.norm"))
    config = json.loads((target / "config.json").read_text())
    (target / "config.json").write_text(json.dumps({**config, "tie_word_embeddings": False}))
    with pytest.raises(Refused, match="holds no head"):
        measured("plain", target=target, streams=str(recorded))


# What is refused.


def test_recordings_of_another_target_are_refused(recorded, tmp_path):
    other = tmp_path / "other"
    shutil.copytree(TARGET, other)
    tensors = load_file(TARGET / "model.safetensors")
    tensors["model.norm.weight"][0] *= 2
    save_file(tensors, other / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(Refused, match="whose embedding table, final norm or head is not that of"):
        measured("plain", target=other, streams=str(recorded))


@pytest.mark.parametrize(
    ("key", "words"),
    [
        ("hidden_size", "features wide"),
        ("vocab_size", "in its vocabulary"),
        ("layers", "layers deep"),
    ],
)
def test_recordings_of_another_size_are_refused(key, words, manifest):
    folder = manifest(lambda told: told["target"].update({key: told["target"][key] + 1}))
    with pytest.raises(Refused, match=words):
        measured("plain", streams=str(folder))


def test_a_truncated_file_is_named(copied):
    path = copied / "hs_3.safetensors"
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(Refused, match=r"hs_3\.safetensors: is truncated or changed"):
        measured("plain", streams=str(copied))


def test_a_file_that_was_changed_is_named(copied):
    path = copied / "hs_2.safetensors"
    raw = bytearray(path.read_bytes())
    raw[-1] ^= 1
    path.write_bytes(raw)
    with pytest.raises(Refused, match=r"hs_2\.safetensors: .* sha256"):
        measured("plain", streams=str(copied))


def test_a_missing_file_is_named(copied):
    (copied / "hs_1.safetensors").unlink()
    with pytest.raises(Refused, match=r"hs_1\.safetensors: the manifest names it"):
        measured("plain", streams=str(copied))


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_what_is_no_number_is_named_with_its_file_and_tap(copied, value):
    rewritten(copied, "hs_4.safetensors", lambda x: x["hidden_states"][60, 2].fill_(value))
    with pytest.raises(Refused, match=r"hs_4\.safetensors: tap 3 holds NaN"):
        measured("plain", streams=str(copied))


def test_a_draft_whose_taps_were_not_recorded_is_refused_by_name(prompts, tmp_path):
    made(tmp_path / "few", prompts, taps=(1, 5))
    with pytest.raises(Refused, match=r"reads tap 3; recorded are 0, 1, 5, 6"):
        measured("plain", streams=str(tmp_path / "few"))


@pytest.mark.parametrize("shape", [Shape.chain(17), Shape(17, 2, 30)])
def test_a_draft_deeper_than_the_recording_is_wrong_usage(recorded, shape):
    with pytest.raises(Usage, match=r"17 draft tokens .* was recorded to judge 16"):
        measured("plain", streams=str(recorded), shape=shape)


def test_a_text_longer_than_the_recording_is_wrong_usage(recorded):
    with pytest.raises(Usage, match="holds texts of 48 new tokens"):
        measured("plain", streams=str(recorded), new_tokens=49)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"stream_taps": (1, 2, 3)}, "leave it out"),
        ({"temperature": 1.0}, "--temperature"),
        ({"prompts": "x"}, "--prompts"),
    ],
)
def test_options_that_mean_nothing_beside_recordings_are_wrong_usage(recorded, options, words):
    with pytest.raises(Usage, match=words):
        measured("plain", streams=str(recorded), **options)


def test_a_folder_without_recordings_is_wrong_usage(tmp_path):
    with pytest.raises(Usage, match="no recordings in it"):
        measured("plain", streams=str(tmp_path))


# The commands.


def test_the_commands_record_and_validate(prompts, tmp_path):
    run = CliRunner().invoke
    words = [
        str(TARGET),
        "--out",
        str(tmp_path / "s"),
        "--prompts",
        str(prompts),
        "--device",
        "cpu",
    ]
    done = run(
        record_cli.app, [*words, "--max-new-tokens", "12", "--lookahead", "5", "--json", "-"]
    )
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)["taps"] == [1, 2, 3, 4, 5]
    words = [
        draft("plain"),
        "--target",
        str(TARGET),
        "--streams",
        str(tmp_path / "s"),
        "--device",
        "cpu",
    ]
    page = tmp_path / "page.html"
    done = run(validate_cli.app, [*words, "--json", "-", "--html", str(page)])
    assert done.exit_code == 0, done.output
    told = json.loads(done.stdout)
    assert told["streams"]["by"]["engine"] == "transformers"
    assert told["environment"]["streams"] == str(tmp_path / "s")
    assert "transformers" in page.read_text()
    assert run(validate_cli.app, [*words, "--num-draft-tokens", "6"]).exit_code == 2
    assert (
        run(
            validate_cli.app, [*words, "--engine", "sglang", "--engine-python", "python3"]
        ).exit_code
        == 2
    )


# A DeepSeek-type target: latent attention, experts.


@pytest.fixture(scope="module")
def deepseek(tmp_path_factory):
    """A random DeepSeek-V3 of four layers with the tiny pair's vocabulary and width."""
    folder = tmp_path_factory.mktemp("deepseek") / "target"
    shutil.copytree(TARGET, folder)
    torch.manual_seed(0)
    config = DeepseekV3Config(
        vocab_size=1024,
        hidden_size=128,
        intermediate_size=96,
        moe_intermediate_size=32,
        num_hidden_layers=6,
        num_attention_heads=4,
        num_key_value_heads=4,
        n_routed_experts=8,
        num_experts_per_tok=2,
        n_group=2,
        topk_group=1,
        first_k_dense_replace=1,
        q_lora_rank=24,
        kv_lora_rank=16,
        qk_rope_head_dim=8,
        qk_nope_head_dim=16,
        v_head_dim=16,
        max_position_embeddings=512,
        initializer_range=0.2,
    )
    (folder / "generation_config.json").unlink()
    DeepseekV3ForCausalLM(config).save_pretrained(folder)
    return folder


def test_a_deepseek_type_target_is_counted_as_it_runs(deepseek, prompts, tmp_path):
    made(tmp_path / "s", prompts, target=deepseek, new_tokens=24)
    request = {"target": deepseek, "shape": CHAIN}
    live = measured("plain", prompts=prompts, new_tokens=24, **request)
    assert counters(measured("plain", streams=str(tmp_path / "s"), **request)) == counters(live)


def test_a_deepseek_type_target_is_recorded_as_it_runs(deepseek, prompts, tmp_path):
    """Its untrained text is nothing that a draft could follow, so the hidden states themselves are compared."""
    manifest = made(tmp_path / "s", prompts, target=deepseek, new_tokens=24)
    held = TargetTables.open(str(deepseek))
    recording = Recording(open_recordings(tmp_path / "s", held), held)
    one = recording.recordings.texts[3]
    live = Target.load(deepseek).features(one.tokens[None], range(7))
    for tap in range(7):
        assert torch.allclose(recording.stream(one, tap, one.count), live.taps[tap][0], atol=2e-5)
    assert torch.allclose(recording.final(one, one.count), live.final[0], atol=2e-5)
    assert manifest.target.model_type == "deepseek_v3"
    assert "DeepseekV3RMSNorm" in held.final_norm[1]
