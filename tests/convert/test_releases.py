"""Releases: which of them runs a folder right, and what is chosen or refused for those that a user names."""

import json
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import drafts
import latent_drafts
import numpy as np
import pytest
from conversions import convert, loaded
from typer.testing import CliRunner

from eagle3_interop.convert import api
from eagle3_interop.convert.cli import app
from eagle3_interop.convert.decide import inspection
from eagle3_interop.convert.decide.releases import right_since, rows
from eagle3_interop.schemas.engines import releases
from eagle3_interop.schemas.engines.flags import flags_of
from eagle3_interop.schemas.engines.releases import RELEASES, named, newest, parse_named
from eagle3_interop.schemas.engines.versions import begins, covers, numbers
from eagle3_interop.schemas.findings import Refused, Usage, errors

TRAINED = Path(__file__).parents[1] / "data" / "drafts"


def run(*words):
    return CliRunner().invoke(app, [str(word) for word in words])


def states(source, engine):
    return {row.since: row.verdict.as_is for row in rows(loaded(source), engine)}


def of(source, engine, version):
    return inspection.verdict(loaded(source, trainer="none"), named(engine, version).release)


def since(source, engine):
    """Since which release a conversion's output is run right."""
    found = rows(loaded(source), engine)
    good = [(row.since, "yes" if row.convertible in ("stock", "plugin") else "no") for row in found]
    return right_since(good, "yes")


# The table itself.


@pytest.mark.parametrize("engine", RELEASES)
def test_releases_are_contiguous_and_oldest_first(engine):
    known = RELEASES[engine]
    assert list(known) == sorted(known, key=lambda one: numbers(one.since))
    for one, following in pairwise(known):
        assert numbers(one.until)[:2] <= numbers(following.since)[:2]
        assert begins(following.since, one.until) or not following.covers(one.until)


@pytest.mark.parametrize(
    ("engine", "first", "last"), [("vllm", 11, 33), ("sglang", 3, 23)], ids=["vllm", "sglang"]
)
def test_every_minor_release_has_one_value(engine, first, last):
    stem = "0." if engine == "vllm" else "0.5."
    for number in range(first, last + 1):
        assert len([one for one in RELEASES[engine] if one.covers(f"{stem}{number}")]) >= 1


@pytest.mark.parametrize(
    ("version", "found"),
    [
        ("0.19", "0.19.1"),  # the newest patch of it
        ("0.19.0", "0.19.0"),
        ("0.19.1", "0.19.1"),
        ("0.21.0+cu129", "0.20"),
        ("0.11", "0.11.1"),
        ("0.33.0", "0.30"),
    ],
)
def test_a_version_stands_for_its_release_and_a_prefix_for_its_newest_patch(version, found):
    row = next(one for one in RELEASES["vllm"] if one.since == found)
    release = named("vllm", version).release
    assert (release.forms, release.until) == (row.forms, version)


@pytest.mark.parametrize(
    ("version", "since"),
    [
        ("0.5.5", "0.5.3"),
        ("0.5.6", "0.5.6.post2"),
        ("0.5.6.post1", "0.5.6.post1"),
        ("0.5.6.post2", "0.5.6.post2"),
    ],
)
def test_a_post_release_that_differs_is_a_row_of_its_own(version, since):
    row = next(one for one in RELEASES["sglang"] if one.since == since)
    assert named("sglang", version).release.forms == row.forms


def test_and_reads_no_base_of_the_rope(tmp_path):
    source = drafts.sglang(tmp_path / "draft", rope_theta=5e5)
    assert "rope.theta" in of(source, "sglang", "0.5.6.post1").differences
    assert of(source, "sglang", "0.5.6.post2").as_is == "same"


def test_versions_are_compared_by_their_numbers():
    assert covers("0.5.3", "0.5.7", "0.5.6.post2")
    assert not covers("0.5.3", "0.5.7", "0.5.10")
    assert begins("0.5.10.post1", "0.5.10")
    assert not begins("0.5.10", "0.5.1")


def test_a_newer_version_is_judged_by_the_newest_release_and_said():
    found = named("vllm", "0.99.0")
    assert found.release is newest("vllm")
    assert [item.code for item in found.remarks] == ["release-unknown"]
    assert "--engine vllm" in found.remarks[0].fix


def test_nobody_is_sent_to_validate_with_a_library_that_does_not_serve():
    (remark,) = named("speculators", "0.99").remarks
    assert remark.code == "release-unknown"
    assert "--engine" not in remark.fix


@pytest.mark.parametrize("word", ["v0.24.0", "latest", "0.24.x", ""])
def test_what_is_no_version_is_answered_with_one_of_that_engine(word):
    with pytest.raises(Usage, match=r"such as 0\.33"):
        named("vllm", word)


def test_an_older_version_than_all_is_refused():
    with pytest.raises(Refused, match="older"):
        named("sglang", "0.4.9")


@pytest.mark.parametrize("word", ["vllm", "vllm=0.21", "trt==1.0", "vllm==new", "vllm=="])
def test_anything_else_than_an_engine_and_a_version_is_wrong_usage(word):
    with pytest.raises(Usage):
        parse_named([word])


# What older releases make of a folder.


@pytest.mark.parametrize("version", ["0.5.11", "0.5.3", "0.5.9"])
@pytest.mark.parametrize("key", ["fc_norm", "norm_output"])
def test_sglang_before_0_5_12_knows_neither_fc_norm_nor_norm_output(key, version, tmp_path):
    tensors = drafts.flat_tensors() | (
        {f"fc_norm.{n}.weight": drafts.random((drafts.H,), n) for n in range(3)}
        if key == "fc_norm"
        else {}
    )
    source = drafts.sglang(tmp_path / "draft", tensors, **{key: True})
    found = of(source, "sglang", version)
    assert found.as_is == "different"
    assert list(found.differences) == [
        {"fc_norm": "fc.block_norms", "norm_output": "feedback"}[key]
    ]
    assert of(source, "sglang", "0.5.12").as_is == "same"


def test_sglang_before_0_5_17_knows_no_norm_before_fc(tmp_path):
    tensors = drafts.flat_tensors() | {"input_norm.weight": drafts.random((3 * drafts.H,), 3)}
    source = drafts.sglang(tmp_path / "draft", tensors, norm_before_fc=True)
    assert of(source, "sglang", "0.5.16").as_is == "different"
    assert of(source, "sglang", "0.5.17").as_is == "same"


def test_vllm_before_0_22_feeds_the_state_before_the_norm_whatever_norm_output_says(tmp_path):
    source = drafts.vllm(tmp_path / "draft", norm_output=True)
    found = of(source, "vllm", "0.21")
    assert (found.as_is, dict(found.differences)) == (
        "different",
        {"feedback": ("post-norm", "pre-norm")},
    )
    assert of(source, "vllm", "0.22").as_is == "same"


def test_vllm_before_0_22_fails_on_the_tensors_of_fc_norm(tmp_path):
    tensors = drafts.flat_tensors() | {
        f"fc_norm.{n}.weight": drafts.random((drafts.H,), n) for n in range(3)
    }
    source = drafts.vllm(tmp_path / "draft", tensors, fc_norm=True)
    assert of(source, "vllm", "0.21").as_is == "does-not-load"
    assert of(source, "vllm", "0.22").as_is == "same"


@pytest.mark.parametrize(
    ("version", "found"),
    [("0.17", "does-not-load"), ("0.18", "different"), ("0.19.0", "same"), ("0.33", "same")],
)
def test_what_vllm_makes_of_norm_before_fc_in_a_speculators_folder(version, found, tmp_path):
    tensors = drafts.speculators_tensors() | {
        "input_norm.weight": drafts.random((3 * drafts.H,), 3)
    }
    source = drafts.speculators(tmp_path / "draft", tensors, norm_before_fc=True)
    assert of(source, "vllm", version).as_is == found


@pytest.mark.parametrize(
    ("version", "found"), [("0.24", "does-not-load"), ("0.25", "different"), ("0.33", "different")]
)
def test_a_bias_of_fc_fails_in_older_vllm_and_is_dropped_without_a_word_in_newer(
    version, found, tmp_path
):
    tensors = drafts.flat_tensors() | {"fc.bias": drafts.random((drafts.H,), 7)}
    source = drafts.sglang(tmp_path / "draft", tensors, bias=True)
    assert of(source, "vllm", version).as_is == found


@pytest.mark.parametrize(
    ("key", "last", "first"),
    [("fc_norm", "0.6", "0.7"), ("norm_output", "0.6", "0.7"), ("norm_before_fc", "0.4", "0.5")],
)
def test_older_speculators_passes_over_what_it_does_not_know(key, last, first, tmp_path):
    more = {
        "fc_norm": {f"fc_norm.{n}.weight": drafts.random((drafts.H,), n) for n in range(3)},
        "norm_before_fc": {"input_norm.weight": drafts.random((3 * drafts.H,), 3)},
    }
    tensors = drafts.speculators_tensors() | more.get(key, {})
    source = drafts.speculators(tmp_path / "draft", tensors, **{key: True})
    assert of(source, "speculators", last).as_is == "different"
    assert of(source, "speculators", first).as_is == "same"


def test_layers_under_a_number_are_passed_over_by_older_sglang(tmp_path):
    tensors = {
        name.replace("midlayer.", "layers.0."): value
        for name, value in drafts.flat_tensors().items()
    }
    source = drafts.sglang(tmp_path / "draft", tensors)
    assert of(source, "sglang", "0.5.11").as_is == "different"
    assert of(source, "sglang", "0.5.12").as_is == "same"


@pytest.mark.parametrize(("engine", "older"), [("sglang", "0.5.9"), ("vllm", "0.11")])
def test_a_rope_base_in_transformers_5s_dict_alone_is_not_read_by_older_ones(
    engine, older, tmp_path
):
    rope = {"rope_parameters": {"rope_type": "default", "rope_theta": 5e5}}
    source = getattr(drafts, engine)(
        tmp_path / "draft", rope_theta=drafts.ABSENT, rope_scaling=drafts.ABSENT, **rope
    )
    assert dict(of(source, engine, older).differences)["rope.theta"] == (5e5, 10000.0)
    assert of(source, engine, newest(engine).until).as_is == "same"


def test_the_first_vllm_takes_the_default_triple_whatever_the_ids_say(tmp_path):
    source = drafts.vllm(tmp_path / "draft")
    assert "taps" in of(source, "vllm", "0.11.0").differences
    assert of(source, "vllm", "0.11.1").as_is == "same"


@pytest.mark.parametrize(
    ("keys", "version", "state"),
    [
        ({"mask_token_id": 5}, "0.27", "does-not-load"),
        ({"mask_token_id": 5}, "0.28", "same"),
        ({"dflash_config": {"mask_token_id": 5}}, "0.19", "does-not-load"),
        ({"dflash_config": {"mask_token_id": 5}}, "0.20", "same"),
        ({"ptd_token_id": 5}, "0.16", "same"),
        ({"ptd_token_id": 5}, "0.15", "does-not-load"),
    ],
)
def test_where_a_release_of_vllm_finds_the_mask_token_of_a_parallel_draft(
    keys, version, state, tmp_path
):
    mask = {"mask_hidden": np.zeros((1, 1, 3 * drafts.H), np.float32)}
    source = drafts.vllm(tmp_path / "draft", drafts.flat_tensors() | mask, **keys)
    assert of(source, "vllm", version).as_is == state


YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 512}


@pytest.mark.parametrize(
    ("keys", "differences"),
    [
        ({"rope_scaling": {"type": "yarn", **YARN}, "rope_theta": 5e4}, []),
        ({"rope_scaling": None, "rope_theta": 1e4}, []),
        ({"rope_scaling": None, "rope_theta": 5e4}, ["rope.theta"]),
        (
            {
                "rope_scaling": drafts.ABSENT,
                "rope_theta": drafts.ABSENT,
                "rope_parameters": {**YARN, "rope_theta": 1e4},
            },
            ["rope.parameters", "rope.scaling"],
        ),
    ],
)
def test_latent_attention_in_vllm_before_0_19_1_takes_its_rope_from_rope_scaling_alone(
    keys, differences, tmp_path
):
    source = latent_drafts.vllm(tmp_path / "draft", **keys)
    for version in ("0.18", "0.19.0"):
        found = of(source, "vllm", version)
        assert found.as_is == ("different" if differences else "same")
        assert [name for name in found.differences if name.startswith("rope")] == differences


@pytest.mark.parametrize(("layers", "state"), [(6, "does-not-load"), (12, "different")])
def test_and_fails_where_a_target_is_too_shallow_for_three_different_streams(
    layers, state, tmp_path
):
    target = drafts.target(tmp_path / "target", num_hidden_layers=layers)
    options = api.Options(target=str(target), trainer="none")
    pair = api.load(str(drafts.vllm(tmp_path / "draft")), "auto", options)
    assert of_pair(pair, "vllm", "0.11.0").as_is == state


@pytest.mark.parametrize("name", sorted(path.name for path in TRAINED.iterdir()))
def test_the_trained_drafts_name_their_first_right_release(name):
    first = {
        "embed_tap": ("0.18", "0.5.22"),
        "fc_norm": ("0.22", "0.5.12"),
        "four_taps": ("0.22", "0.5.12"),
        "library_defaults": ("0.22", "0.5.21"),
        "norm_before_residual": ("0.11.1", "0.5.21"),
        "plain": ("0.11.1", "0.5.3"),
        "qwen3": ("0.24", "0.5.21"),
        "sliding": ("0.11.1", "0.5.21"),
        "two_layers": ("0.11.1", "0.5.12"),
    }
    source = TRAINED / name
    assert (since(source, "vllm"), since(source, "sglang")) == first[name]


# Targets.


def with_target(folder, beside, **config):
    """A draft with its taps 1, 3, 5 beside a target of 12 layers."""
    target = drafts.target(beside, num_hidden_layers=12, **config)
    return api.load(str(folder), "auto", api.Options(target=str(target), trainer="none"))


def of_pair(pair, engine, version):
    return inspection.verdict(pair, named(engine, version).release)


@pytest.mark.parametrize(
    ("engine", "last", "first"), [("vllm", "0.17", "0.18"), ("sglang", "0.5.21", "0.5.22")]
)
def test_a_tap_on_the_embeddings_fails_with_a_llama_target_in_older_releases(
    engine, last, first, tmp_path
):
    ids = {
        "vllm": {"eagle_aux_hidden_state_layer_ids": [0, 3, 5]},
        "sglang": {"eagle_config": {"eagle_aux_hidden_state_layer_ids": [-1, 2, 4]}},
    }
    source = getattr(drafts, engine)(tmp_path / "draft", **ids[engine])
    pair = with_target(source, tmp_path / "target")
    assert of_pair(pair, engine, last).as_is == "does-not-load"
    assert of_pair(pair, engine, first).as_is == "same"


def test_a_tap_that_a_release_does_not_read_cannot_fail_there(tmp_path):
    source = drafts.vllm(tmp_path / "draft", eagle_aux_hidden_state_layer_ids=[0, 3, 5])
    found = of_pair(with_target(source, tmp_path / "target"), "vllm", "0.11.0")
    assert found.as_is == "different"
    assert "taps" in found.differences


def test_a_tap_after_the_last_layer_fails_in_vllm_before_0_18(tmp_path):
    source = drafts.vllm(tmp_path / "draft", eagle_aux_hidden_state_layer_ids=[1, 3, 12])
    pair = with_target(source, tmp_path / "target")
    assert of_pair(pair, "vllm", "0.17").as_is == "does-not-load"
    assert of_pair(pair, "vllm", "0.18").as_is == "same"


def test_vllm_before_0_22_takes_targets_of_few_model_types(tmp_path):
    source = drafts.vllm(tmp_path / "draft")
    config = {"model_type": "mistral", "architectures": ["MistralForCausalLM"]}
    pair = with_target(source, tmp_path / "target", **config)
    assert of_pair(pair, "vllm", "0.21").as_is == "does-not-load"
    assert of_pair(pair, "vllm", "0.22").as_is == "same"


DEEPSEEK = {"model_type": "deepseek_v3", "architectures": ["DeepseekV3ForCausalLM"]}


def test_sglang_before_0_5_13_counts_ids_of_deepseek_as_all_others(tmp_path):
    ids = {"eagle_config": {"eagle_aux_hidden_state_layer_ids": [3, 5, 7]}}
    pair = with_target(drafts.sglang(tmp_path / "draft", **ids), tmp_path / "target", **DEEPSEEK)
    assert pair.reading.draft.taps == (3, 5, 7)
    assert dict(of_pair(pair, "sglang", "0.5.12").differences) == {"taps": ([3, 5, 7], [4, 6, 8])}
    assert of_pair(pair, "sglang", "0.5.13").as_is == "same"


def test_and_a_conversion_for_it_writes_them_so(tmp_path):
    pair = with_target(drafts.vllm(tmp_path / "draft"), tmp_path / "target", **DEEPSEEK)
    options = api.Options(target_name="org/target", releases=("sglang==0.5.12",))
    written = api.convert(pair, "sglang", options).fitted.writing.config
    assert written["eagle_config"]["eagle_aux_hidden_state_layer_ids"] == [0, 2, 4]
    both = replace(options, releases=("sglang==0.5.12", "sglang==0.5.23"))
    with pytest.raises(Refused, match=r"SGLang 0\.5\.23 computes another network"):
        api.convert(pair, "sglang", both)


def test_a_range_is_told_apart_where_a_target_begins_to_hand_out_hidden_states(tmp_path):
    config = {"model_type": "qwen3_5", "architectures": ["Qwen3_5ForConditionalGeneration"]}
    pair = with_target(drafts.vllm(tmp_path / "draft"), tmp_path / "target", **config)
    found = [(row.since, row.until, row.verdict.as_is) for row in rows(pair, "vllm")]
    assert found[-2:] == [("0.11.1", "0.16", "does-not-load"), ("0.17", None, "same")]


# The rows of inspect.


def test_equal_neighbours_are_one_row_and_the_last_is_open(tmp_path):
    found = rows(loaded(drafts.vllm(tmp_path / "draft")), "vllm")
    assert [(row.since, row.until) for row in found] == [("0.11.0", "0.11.0"), ("0.11.1", None)]


def test_inspect_gives_contiguous_rows_in_its_json(tmp_path):
    ran = run("inspect", drafts.vllm(tmp_path / "draft", norm_output=True), "--json")
    found = json.loads(ran.stdout)["engines"]["vllm"]["releases"]
    assert [(row["since"], row["until"], row["as_is"]) for row in found] == [
        ("0.11.0", "0.11.0", "different"),
        ("0.11.1", "0.21", "different"),
        ("0.22", None, "same"),
    ]
    assert found[1]["differences"] == {"feedback": ["post-norm", "pre-norm"]}
    assert found[1]["convertible"] == "refused"


def test_inspect_shows_a_named_release_alone(tmp_path):
    source = drafts.vllm(tmp_path / "draft", norm_output=True)
    ran = run("inspect", source, "--json", "--for", "vllm==0.21")
    found = json.loads(ran.stdout)["engines"]
    assert [(row["since"], row["as_is"]) for row in found["vllm"]["releases"]] == [
        ("0.21", "different")
    ]
    assert len(found["sglang"]["releases"]) > 1


def test_a_release_that_a_newcomer_adds_is_a_row_of_its_own(tmp_path, monkeypatch):
    old = newest("vllm")
    new = replace(old, since="99.0", until="99.0", refuses=lambda _config: "it loads nothing.")
    monkeypatch.setitem(releases.RELEASES, "vllm", (*RELEASES["vllm"], new))
    assert states(drafts.vllm(tmp_path / "draft"), "vllm")["99.0"] == "does-not-load"


# Conversions for a named release.


def test_a_conversion_says_since_which_release_its_output_is_read_right(tmp_path):
    result = convert(drafts.vllm(tmp_path / "draft", norm_output=True), "vllm")
    assert result.said("read-since").message == "vLLM reads this output right since 0.22."


def test_and_warns_of_releases_of_the_last_six_months_that_differ_silently(tmp_path):
    result = convert(drafts.vllm(tmp_path / "draft", norm_output=True), "vllm")
    assert "vLLM 0.20 to 0.21 computes another network" in result.said("older-differs").message


def test_a_named_release_that_reads_another_network_is_refused_with_the_first_right_one(tmp_path):
    source = drafts.vllm(tmp_path / "draft", norm_output=True)
    with pytest.raises(Refused) as caught:
        convert(source, "vllm", releases=("vllm==0.21",))
    (item,) = errors(caught.value.findings)
    assert item.code == "not-for-release"
    assert "0.22 or later" in item.fix


def test_layer_0_is_named_as_all_named_releases_know_it(tmp_path):
    source = drafts.speculators(tmp_path / "draft")
    new = convert(source, "sglang").tensors
    old = convert(source, "sglang", releases=("sglang==0.5.11", "sglang==0.5.23")).tensors
    assert any(name.startswith("layers.0.") for name in new)
    assert not any(name.startswith("layers.0.") for name in old)


@pytest.mark.parametrize(
    ("key", "version"), [("norm_output", "0.22"), ("norm_output", "0.24"), ("fc_norm", "0.24")]
)
def test_flags_that_older_vllm_loses_stand_among_the_layers_keys_too(key, version, tmp_path):
    tensors = drafts.speculators_tensors() | (
        {f"fc_norm.{n}.weight": drafts.random((drafts.H,), n) for n in range(3)}
        if key == "fc_norm"
        else {}
    )
    source = drafts.speculators(tmp_path / "draft", tensors, **{key: True})
    assert key not in convert(source, "speculators").config["transformer_layer_config"]
    result = convert(source, "speculators", releases=(f"vllm=={version}",))
    assert result.config["transformer_layer_config"][key] is True
    assert of(result.folder, "vllm", version).as_is == "same"


def test_a_release_of_an_engine_that_never_reads_the_output_is_wrong_usage(tmp_path):
    with pytest.raises(Usage, match="is read by vLLM"):
        convert(drafts.vllm(tmp_path / "draft"), "vllm", releases=("sglang==0.5.23",))


def test_the_provenance_says_which_releases_an_output_was_proved_with(tmp_path):
    source = drafts.sglang(tmp_path / "draft")
    result = convert(source, "sglang", releases=("sglang==0.5.12",))
    told = json.loads((result.folder / "eagle3_interop.json").read_text())
    assert told["rules"] == {"sglang": ["SGLang 0.5.12", newest("sglang").name]}
    assert told["options"]["for"] == ["sglang==0.5.12"]


@pytest.mark.parametrize(
    ("word", "code"), [("vllm==0.21", 3), ("vllm==0.9", 3), ("vllm=0.21", 2), ("vllm==0.33", 0)]
)
def test_exit_codes_of_a_named_release(word, code, tmp_path):
    source = drafts.vllm(tmp_path / "draft", norm_output=True)
    ran = run("vllm-to-vllm", source, tmp_path / "out", "--dry-run", "--for", word)
    assert ran.exit_code == code


def test_a_folder_is_asked_for_its_maps_once_however_many_releases_there_are(tmp_path):
    source = api.load(str(drafts.sglang(tmp_path / "draft")))
    asked = []
    checkpoint = source.checkpoint

    class Counted:
        path, config, tensors = checkpoint.path, checkpoint.config, checkpoint.tensors

        def values(self, name):
            asked.append(name)
            return checkpoint.values(name)

    from eagle3_interop.convert.decide.releases import ReadOnce

    once = ReadOnce(Counted())
    for release in RELEASES["sglang"]:
        inspection.verdict(source, release, once)
    assert len(asked) == len(set(asked))


# Serving.


def test_serve_refuses_a_release_that_reads_another_network(tmp_path):
    source = drafts.vllm(tmp_path / "draft", norm_output=True)
    ran = run("serve", source, "--engine", "vllm", "--for", "vllm==0.21", "--json")
    report = json.loads(ran.stdout)
    assert ran.exit_code == 3
    assert "vLLM 0.21 computes another network" in report["findings"][0]["message"]
    assert run("serve", source, "--engine", "vllm", "--for", "vllm==0.22").exit_code == 0


@pytest.mark.parametrize(
    ("version", "key"), [("0.12", "parallel_drafting"), ("0.21", "spec_model_sampling")]
)
def test_keys_of_the_speculative_config_are_those_of_the_release(version, key):
    known = flags_of("vllm", version)
    assert known.release == version
    assert key not in known.settings


def test_a_flag_that_a_release_does_not_have_is_an_error_for_it_alone(tmp_path):
    source = drafts.sglang(tmp_path / "draft")
    line = (
        "python -m sglang.launch_server --model-path org/t --speculative-algorithm EAGLE3 "
        f"--speculative-draft-model-path {source} --speculative-num-steps 3 --speculative-eagle-topk 1 "
        "--speculative-num-draft-tokens 4 --speculative-draft-window-size 64"
    )
    words = ("serve", source, "--engine", "sglang", "--check", line, "--json")
    old = json.loads(run(*words, "--for", "sglang==0.5.11").stdout)
    assert [item["code"] for item in old["findings"] if item["severity"] == "error"] == [
        "serve-unknown-flag"
    ]
    assert "SGLang 0.5.11 has no such flag" in json.dumps(old["findings"])
    assert json.loads(run(*words).stdout)["status"] == "ok"


@pytest.mark.parametrize(
    ("draft", "engine", "version", "fix"),
    [
        ("fc_norm", "vllm", "0.24.0", "eagle3-convert auto-to-vllm --for vllm==0.24.0 first"),
        ("qwen3", "vllm", "0.21.0", "Serve it with vLLM 0.24 or later: no conversion"),
        (
            "norm_before_residual",
            "sglang",
            "0.5.11",
            "serve its output with SGLang 0.5.21 or later",
        ),
    ],
    ids=["a conversion", "another release", "both"],
)
def test_serve_names_a_way_out_that_there_is(draft, engine, version, fix):
    with pytest.raises(Refused) as refused:
        inspection.require_same(loaded(TRAINED / draft), engine, named(engine, version))
    assert fix in refused.value.findings[0].fix


def test_named_releases_that_are_alike_are_no_range(tmp_path):
    """What lies between them was not looked at."""
    source = drafts.vllm(tmp_path / "draft")
    words = ("--for", "vllm==0.12.0", "--for", "vllm==0.30")
    table = run("inspect", source, *words).stdout.splitlines()
    (row,) = [line for line in table if line.startswith("vllm ") and "0.12.0" in line]
    assert "0.12.0, 0.30 " in row


EMBEDDING = TRAINED / "embed_tap"


@pytest.mark.parametrize(
    ("engine", "last", "first"), [("vllm", "0.17", "0.18"), ("sglang", "0.5.21", "0.5.22")]
)
def test_the_class_that_the_draft_names_is_its_targets_where_none_is_given(
    engine, last, first, tmp_path
):
    """Its config names LlamaForCausalLM, and the loop over a llama target once failed on tap 0."""
    refused = run(f"auto-to-{engine}", EMBEDDING, tmp_path / "out", "--for", f"{engine}=={last}")
    assert refused.exit_code == 3
    assert "LlamaForCausalLM fails on a tap before its first layer" in refused.stderr
    assert not (tmp_path / "out").exists()
    done = run(f"auto-to-{engine}", EMBEDDING, tmp_path / "out", "--json")
    said = {item["code"]: item["message"] for item in json.loads(done.stdout)["findings"]}
    assert said["read-since"].endswith(f"since {first}.")


def test_where_nothing_names_the_target_an_old_release_is_said_to_depend_on_it(tmp_path):
    source = drafts.vllm(tmp_path / "draft", eagle_aux_hidden_state_layer_ids=[0, 3, 5])
    ran = served(source, "vllm", "vllm==0.16")
    found = {item["code"]: item for item in json.loads(ran.stdout)["findings"]}
    assert found["target-unnamed"]["fix"] == "Give --target."
    assert "LlamaForCausalLM" in found["target-unnamed"]["message"]
    output = run("auto-to-vllm", source, tmp_path / "out", "--for", "vllm==0.16", "--json")
    codes = {item["code"]: item["message"] for item in json.loads(output.stdout)["findings"]}
    assert "target-unnamed" in codes
    assert codes["read-since"].endswith("since 0.18.")


def test_a_tap_that_an_old_release_cannot_take_names_the_first_that_can():
    with pytest.raises(Refused) as refused:
        inspection.require_same(loaded(EMBEDDING), "vllm", named("vllm", "0.16"))
    (found,) = refused.value.findings
    assert (found.code, found.fix) == ("embedding-tap", "Serve with vLLM 0.18 or later.")


def served(source, engine, *named_so, **options):
    words = [part for word in named_so for part in ("--for", word)]
    words += [part for name, value in options.items() for part in (f"--{name}", value)]
    return run("serve", source, "--engine", engine, *words, "--json")


def test_releases_of_another_engine_than_the_one_that_serves_are_wrong_usage(tmp_path):
    ran = served(drafts.vllm(tmp_path / "draft"), "vllm", "vllm==0.21", "sglang==0.5.23")
    assert ran.exit_code == 2


def test_a_command_for_several_releases_is_that_of_each(tmp_path):
    source = drafts.vllm(tmp_path / "draft")
    both, new = served(source, "vllm", "vllm==0.22", "vllm==0.33"), served(source, "vllm")
    assert both.exit_code == 0
    assert json.loads(both.stdout)["command"] == json.loads(new.stdout)["command"]


def test_the_first_of_several_releases_that_reads_another_network_is_named(tmp_path):
    source = drafts.vllm(tmp_path / "draft", norm_output=True)
    ran = served(source, "vllm", "vllm==0.22", "vllm==0.21")
    assert ran.exit_code == 3
    assert "vLLM 0.21 computes another network" in ran.stdout


def test_a_flag_has_to_be_one_of_every_release_that_is_named(tmp_path):
    source = drafts.sglang(tmp_path / "draft")
    line = (
        json.loads(served(source, "sglang").stdout)["command"]
        + " --speculative-draft-window-size 9"
    )
    for words, code in ((["0.5.23"], 0), (["0.5.23", "0.5.11"], 1)):
        ran = served(source, "sglang", *(f"sglang=={word}" for word in words), check=line)
        assert ran.exit_code == code, ran.stdout
    assert "SGLang 0.5.11 has no such flag" in ran.stdout


def test_where_no_command_is_right_in_all_of_them_the_first_that_fails_is_named(tmp_path):
    """A path that SGLang takes for Mistral's own format; 0.5.11 has no flag against it."""
    source = drafts.sglang(tmp_path / "draft")
    place = drafts.target(tmp_path / "mistral-eagle", max_position_embeddings=2048)
    assert served(source, "sglang", "sglang==0.5.23", target=str(place)).exit_code == 0
    ran = served(source, "sglang", "sglang==0.5.23", "sglang==0.5.11", target=str(place))
    assert ran.exit_code == 3
    (found,) = json.loads(ran.stdout)["findings"]
    assert found["code"] == "serve-releases"
    assert "no command is right in all of SGLang 0.5.11, SGLang 0.5.23" in found["message"]


def test_a_release_without_a_flag_is_not_told_to_use_it(tmp_path):
    source = drafts.sglang(tmp_path / "draft")
    place = drafts.target(tmp_path / "mistral-eagle", max_position_embeddings=2048)
    for version, fix in (("0.5.11", "Give the target another name"), ("0.5.12", None)):
        found = json.loads(served(source, "sglang", f"sglang=={version}", target=str(place)).stdout)
        fixes = [one["fix"] for one in found["findings"] if one["code"] == "serve-mistral-name"]
        assert [text[: len(fix or "")] for text in fixes] == ([fix] if fix else [])


@pytest.mark.parametrize("engine", ["vllm", "sglang"])
def test_the_newest_release_is_said_to_take_the_flags_that_it_was_asked_for(engine):
    now = flags_of(engine)
    again = flags_of(engine, now.release)
    assert (again.values, again.settings) == (now.values, now.settings)


@pytest.mark.parametrize(
    ("engine", "stem", "first", "last"), [("vllm", "0.", 11, 33), ("sglang", "0.5.", 3, 23)]
)
def test_the_parser_of_every_minor_release_was_asked(engine, stem, first, last):
    wanted = [f"{stem}{number}" for number in range(first, last + 1)]
    assert [flags_of(engine, version).release for version in wanted] == wanted
