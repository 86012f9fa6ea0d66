"""Layer ids between the conventions, and fc's blocks brought into the order that engines feed."""

from dataclasses import replace

import drafts
import numpy as np
import pytest
from conversions import codes, convert, described, loaded, refusal, refusals
from drafts import ABSENT, H, random

from eagle3_interop.convert import api
from eagle3_interop.convert.decide.rewrites.taps import order_taps
from eagle3_interop.convert.decide.rewrites.work import begin
from eagle3_interop.convert.read.checkpoint import open_checkpoint
from eagle3_interop.convert.write.plan import Output
from eagle3_interop.convert.write.rewrite import rewritten
from eagle3_interop.schemas.dialects.base import TargetFacts
from eagle3_interop.schemas.draft import ParallelDrafting
from eagle3_interop.schemas.engines.sglang import ids_to_taps, taps_to_ids
from eagle3_interop.schemas.findings import Refused

IDS = "eagle_aux_hidden_state_layer_ids"
DEEPSEEK = [
    "deepseek_v2",
    "deepseek_v3",
    "deepseek_v32",
    "kimi_k2",
    "kimi_k25",
    "glm4_moe_lite",
    "glm_moe_dsa",
    "MistralLarge3ForCausalLM",
]


def facts(kind, layers=36):
    """Of a target that is named by its class, or by its model type."""
    named = {"architectures": (kind,)} if kind[0].isupper() else {}
    return TargetFacts("target", H, layers, 96, "" if named else kind, **named)


# What SGLang 0.5.23's targets capture: ``set_eagle3_layers_to_capture`` of each class.


@pytest.mark.parametrize(
    ("kind", "ids", "taps"),
    [
        ("llama", [-1, 2, 4], [0, 3, 5]),
        ("llama", [1, 29, 57], [2, 30, 58]),
        *((kind, [1, 29, 57], [2, 30, 58]) for kind in DEEPSEEK),
        *((kind, [2, 30, 58], [2, 30, 58]) for kind in DEEPSEEK),
        *((kind, [3, 29, 57], [3, 29, 57]) for kind in DEEPSEEK),
        ("gpt_oss", [24, 30, 36], [24, 30, 36]),
        ("gpt_oss", [1, 17, 32], [2, 18, 33]),
        ("minimax_m3_vl", [1, 29, 57], [2, 30, 58]),
        ("MiniMaxM2ForCausalLM", [2, 29, 57], [3, 30, 58]),
        (None, [1, 29, 57], [2, 30, 58]),
    ],
)
def test_what_a_list_of_ids_makes_a_target_capture(kind, ids, taps):
    assert ids_to_taps(ids, kind and facts(kind)) == taps


@pytest.mark.parametrize(
    ("kind", "taps", "ids"),
    [
        ("llama", [0, 3, 5], [-1, 2, 4]),
        ("deepseek_v3", [2, 30, 58], [1, 29, 57]),
        ("glm_moe_dsa", [3, 39, 75], [3, 39, 75]),
        ("deepseek_v3", [3, 29, 57], [3, 29, 57]),
        ("deepseek_v3", [0, 29, 57], [0, 29, 57]),
        ("deepseek_v3", [1, 29, 57], [29, 57, 1]),
        ("gpt_oss", [24, 30, 36], [24, 30, 36]),
        ("gpt_oss", [2, 18, 33], [1, 17, 32]),
    ],
)
def test_which_ids_make_a_target_capture_these_taps(kind, taps, ids):
    assert taps_to_ids(taps, facts(kind)) == ids
    assert sorted(ids_to_taps(ids, facts(kind))) == taps


def test_the_rule_of_the_target_is_used_and_named(tmp_path):
    target = drafts.target(tmp_path / "target", model_type="deepseek_v3")
    source = drafts.speculators(tmp_path / "draft", **{IDS: [3, 4, 5]})
    result = convert(source, "sglang", target=target)
    assert result.config["eagle_config"][IDS] == [3, 4, 5]
    assert "plain rule read id + 1" in result.said("target-rule").message


def test_without_a_target_the_plain_rule_is_used_and_said(tmp_path):
    source = drafts.speculators(tmp_path / "draft")
    assert "plain-rule" in convert(source, "sglang").codes
    assert "plain-rule" in codes(drafts.sglang(tmp_path / "sglang"))
    assert "plain-rule" not in codes(
        drafts.sglang(tmp_path / "other"), target=drafts.target(tmp_path / "target")
    )


def test_a_single_tap_1_has_no_list_for_deepseek(tmp_path):
    target = drafts.target(tmp_path / "target", model_type="deepseek_v3")
    tensors = drafts.flat_tensors() | drafts.common_tensors(1)
    source = drafts.vllm(tmp_path / "draft", tensors, **{IDS: [1]}, num_aux_hidden_states=1)
    found = refusals(convert, source, "sglang", target=target)
    assert found == {"no-such-ids", "one-equal-tap"}


def with_taps(folder, *taps):
    return drafts.speculators(folder / "draft", **{IDS: list(taps)})


def a_target(folder, kind):
    """Of six layers; by its class where engines go by that, else by its model type."""
    key = {"architectures": [kind]} if kind[0].isupper() else {"model_type": kind}
    return drafts.target(folder / "target", **key)


@pytest.mark.parametrize("kind", ["llama", "minimax_m2", "MiniMaxM2ForCausalLM", "qwen3_moe"])
def test_a_tap_after_the_last_layer_is_refused_where_sglang_never_captures_it(kind, tmp_path):
    source, target = with_taps(tmp_path, 1, 3, 6), a_target(tmp_path, kind)
    assert refusals(convert, source, "sglang", target=target) == {"end-tap"}
    assert convert(source, "vllm", target=target).config[IDS] == [1, 3, 6]


@pytest.mark.parametrize(
    ("kind", "ids"),
    [
        ("gpt_oss", [1, 3, 6]),
        ("minimax_m3_vl", [0, 2, 5]),
        ("MiniMaxM3SparseForCausalLM", [0, 2, 5]),
        ("gemma4_text", [0, 2, 5]),
        ("Gemma4ForConditionalGeneration", [0, 2, 5]),
    ],
)
def test_a_tap_after_the_last_layer_is_written_where_sglang_captures_it(kind, ids, tmp_path):
    source, target = with_taps(tmp_path, 1, 3, 6), a_target(tmp_path, kind)
    assert convert(source, "sglang", target=target).config["eagle_config"][IDS] == ids


@pytest.mark.parametrize("kind", ["DeepseekV32ForCausalLM", "glm_moe_dsa"])
def test_a_tap_after_the_last_layer_is_refused_where_vllm_never_captures_it(kind, tmp_path):
    source, target = with_taps(tmp_path, 1, 3, 6), a_target(tmp_path, kind)
    assert refusals(convert, source, "vllm", target=target) == {"end-tap"}


@pytest.mark.parametrize("kind", ["gemma3_text", "Gemma3ForConditionalGeneration"])
@pytest.mark.parametrize("ids", [[1, 3, 5], None])
def test_gemma_3_in_sglang_captures_something_else(kind, ids, tmp_path):
    source = drafts.speculators(tmp_path / "draft", **{IDS: ids})
    key = {"architectures": [kind]} if kind[0].isupper() else {"model_type": kind}
    target = drafts.target(tmp_path / "target", num_hidden_layers=8, **key)
    assert refusals(convert, source, "sglang", target=target) == {"target-captures-other"}
    if kind[0].isupper():  # a class that vLLM knows, and asks for its interface in vain
        assert refusals(convert, source, "vllm", target=target) == {"target-captures-nothing"}
    else:
        assert convert(source, "vllm", target=target).folder


@pytest.mark.parametrize(
    "kind",
    [
        "deepseek_v3",
        "deepseek_v4",
        "DeepseekForCausalLM",
        "DeepseekV41ForCausalLM",
        "KimiK25ForConditionalGeneration",
        "MistralLarge3ForCausalLM",
        "Olmo2ForCausalLM",
        "SeedOssForCausalLM",
    ],
)
def test_a_tap_on_the_embeddings_is_refused_where_vllm_fails_on_it(kind, tmp_path):
    source, target = with_taps(tmp_path, 0, 3, 5), a_target(tmp_path, kind)
    assert refusals(convert, source, "vllm", target=target) == {"embedding-tap"}


def test_a_tap_on_the_embeddings_is_one_that_sglangs_deepseek_captures(tmp_path):
    source, target = with_taps(tmp_path, 0, 3, 5), a_target(tmp_path, "deepseek_v3")
    assert convert(source, "sglang", target=target).config["eagle_config"][IDS] == [0, 3, 5]


@pytest.mark.parametrize("kind", ["deepseek_v32", "glm_moe_dsa", "PixtralForConditionalGeneration"])
def test_a_tap_on_the_embeddings_is_warned_of_where_it_depends(kind, tmp_path):
    source, target = with_taps(tmp_path, 0, 3, 5), a_target(tmp_path, kind)
    result = convert(source, "vllm", target=target)
    assert result.said("embedding-tap-depends").severity == "warning"


@pytest.mark.parametrize("kind", ["MiMoForCausalLM", "CohereCompassForConditionalGeneration"])
@pytest.mark.parametrize("ids", [[1, 3, 5], None])
def test_a_target_that_captures_nothing_in_vllm_is_refused(kind, ids, tmp_path):
    source = drafts.speculators(tmp_path / "draft", **{IDS: ids})
    target = drafts.target(tmp_path / "target", num_hidden_layers=8, architectures=[kind])
    assert refusals(convert, source, "vllm", target=target) == {"target-captures-nothing"}


def test_the_class_counts_more_than_the_model_type():
    glm = TargetFacts("glm", H, 36, 96, "gpt_oss", ("GlmMoeDsaForCausalLM",))
    assert ids_to_taps([24, 30, 36], glm) == [24, 30, 36]
    assert ids_to_taps([1, 30, 36], glm) == [2, 31, 37]


def test_a_tap_beyond_the_target_is_refused(tmp_path):
    source = drafts.speculators(tmp_path / "draft", **{IDS: [1, 3, 7]})
    target = drafts.target(tmp_path / "target")
    assert refusals(convert, source, "vllm", target=target) == {"taps-out-of-range"}
    assert convert(source, "vllm", target=target, taps=(1, 3, 5)).config[IDS] == [1, 3, 5]


@pytest.mark.parametrize("ids", [[-2, 1, 2], [True, 2, 3], ["1", 2, 3], "1,2,3", [1.0, 2, 3]])
def test_ids_that_are_no_layers_are_refused(ids, tmp_path):
    source = drafts.sglang(tmp_path / "draft", eagle_config={IDS: ids})
    assert refusals(convert, source, "vllm", layout="sglang") & {"bad-config", "taps-out-of-range"}


# No ids: the default triple.


@pytest.mark.parametrize("layout", ["speculators", "vllm", "sglang"])
@pytest.mark.parametrize(("layers", "taps"), [(8, (2, 4, 5)), (36, (2, 18, 33)), (3, (0, 1, 2))])
def test_no_ids_are_the_default_triple_of_the_target(layout, layers, taps, tmp_path):
    target = drafts.target(tmp_path / "target", num_hidden_layers=layers)
    assert described(without_ids(tmp_path / "draft", layout), layout, target=target).taps == taps


@pytest.mark.parametrize("layers", [2, 4, 5, 6])
def test_a_target_too_shallow_for_the_triple_is_refused(layers, tmp_path):
    target = drafts.target(tmp_path / "target", num_hidden_layers=layers)
    source = without_ids(tmp_path / "draft", "speculators")
    assert refusals(convert, source, "vllm", target=target) == {"taps-unknown"}


def test_minimax_m3_adds_one_to_its_default_too(tmp_path):
    target = drafts.target(tmp_path / "target", num_hidden_layers=8, model_type="minimax_m3_vl")
    assert described(without_ids(tmp_path / "draft", "sglang"), target=target).taps == (3, 5, 6)


@pytest.mark.parametrize("destination", ["speculators", "sglang", "vllm"])
def test_the_default_triple_stays_a_default_without_a_target(destination, tmp_path):
    result = convert(without_ids(tmp_path / "draft", "speculators"), destination)
    assert not result.config.get(IDS)
    assert IDS not in result.config.get("eagle_config", {})
    assert "default-taps" in result.codes


def without_ids(folder, layout):
    changes = {
        "speculators": {IDS: None},
        "vllm": {IDS: ABSENT},
        "sglang": {"eagle_config": {"use_aux_hidden_state": True}},
    }
    return getattr(drafts, layout)(folder, **changes[layout])


def test_no_ids_and_four_blocks_is_a_question(tmp_path):
    tensors = drafts.speculators_tensors() | drafts.common_tensors(4)
    source = drafts.speculators(tmp_path / "draft", tensors, **{IDS: None})
    assert refusal(convert, source, "vllm").code == "taps-unknown"
    assert convert(source, "vllm", taps=(0, 1, 3, 5)).config[IDS] == [0, 1, 3, 5]


def test_an_empty_list_is_no_default_to_sglang(tmp_path):
    source = drafts.sglang(tmp_path / "draft", eagle_config={IDS: []})
    assert refusals(convert, source, "vllm") == {"ids-empty"}
    written = convert(source, "sglang", taps=(1, 3, 5)).config["eagle_config"]
    assert written[IDS] == [0, 2, 4]


# Ids in two places.


def test_ids_only_in_eagle_config_are_sglangs_with_a_warning(tmp_path):
    source = drafts.sglang(tmp_path / "draft", architectures=["LlamaForCausalLM"])
    assert described(source).taps == (1, 3, 5)
    assert "read-as-sglang" in codes(source)


def test_a_folder_that_this_tool_wrote_says_itself_whose_layout_it_is(tmp_path):
    written = convert(drafts.speculators(tmp_path / "draft"), "sglang")
    said = loaded(written.folder).reading.findings
    assert "read-as-sglang" not in {item.code for item in said}
    assert any("eagle3_interop.json" in item.message for item in said)


def test_a_provenance_file_that_cannot_be_read_counts_for_nothing(tmp_path):
    written = convert(drafts.speculators(tmp_path / "draft"), "sglang")
    (written.folder / "eagle3_interop.json").write_text("[]")
    assert "read-as-sglang" in {item.code for item in loaded(written.folder).reading.findings}


def test_nested_ids_mean_taps_to_vllms_first_runner_and_nothing_to_its_second(tmp_path):
    source = drafts.sglang(tmp_path / "draft", architectures=["Eagle3LlamaForCausalLM"])
    assert refusals(described, source, "vllm") == {"wrong-layout"}
    second = {"layer_ids": [1, 3, 5]}
    source = drafts.vllm(tmp_path / "other", **{IDS: ABSENT}, eagle_config=second)
    assert described(source, "vllm").taps == (1, 3, 5)
    assert "nested-ids" in codes(source, "vllm")


@pytest.mark.parametrize("layout", ["sglang", "vllm"])
def test_ids_in_both_places_agree_by_their_own_conventions(layout, tmp_path):
    source = drafts.sglang(tmp_path / "draft", **{IDS: [1, 3, 5]})
    assert described(source, layout).taps == (1, 3, 5)
    assert "ids-unread" in codes(source, layout)


@pytest.mark.parametrize("layout", ["sglang", "vllm"])
def test_the_same_list_in_both_places_is_a_question(layout, tmp_path):
    source = drafts.sglang(tmp_path / "draft", **{IDS: [0, 2, 4]})
    assert refusals(convert, source, "vllm", layout=layout) == {"ids-disagree"}
    assert convert(source, "vllm", layout=layout, taps=(0, 2, 4)).config[IDS] == [0, 2, 4]


# The order of fc's blocks.


def blocks(fc, count=3):
    return np.split(fc, count, axis=1)


@pytest.mark.parametrize("layout", ["speculators", "vllm", "sglang"])
def test_engines_feed_in_the_order_of_the_layers_whatever_the_list_says(layout, tmp_path):
    changes = {"eagle_config": {IDS: [4, 0, 2]}} if layout == "sglang" else {IDS: [5, 1, 3]}
    source = getattr(drafts, layout)(tmp_path / "draft", **changes)
    result = convert(source, "vllm", layout=layout)
    assert result.config[IDS] == [1, 3, 5]
    assert np.array_equal(result.tensors["fc.weight"], drafts.load(source)[1]["fc.weight"])
    assert result.said("taps-reordered").severity == "warning"


def test_taps_say_in_which_order_the_trainer_concatenated(tmp_path):
    source = drafts.speculators(tmp_path / "draft")
    result = convert(source, "vllm", taps=(5, 0, 3))
    one, two, three = blocks(drafts.load(source)[1]["fc.weight"])
    assert np.array_equal(result.tensors["fc.weight"], np.hstack([two, three, one]))
    assert result.config[IDS] == [0, 3, 5]
    assert "taps-permuted" in result.codes


def test_input_norm_is_permuted_with_fc(tmp_path):
    norm = 1 + random((3 * H,), 80)
    tensors = drafts.speculators_tensors() | {"input_norm.weight": norm}
    source = drafts.speculators(tmp_path / "draft", tensors, norm_before_fc=True)
    one, two, three = np.split(norm, 3)
    result = convert(source, "vllm", taps=(5, 0, 3))
    assert np.array_equal(result.tensors["input_norm.weight"], np.concatenate([two, three, one]))


@pytest.mark.parametrize("destination", ["vllm", "sglang", "speculators", "universal"])
def test_block_norms_move_with_their_blocks(destination, tmp_path):
    norms = {f"fc_norm.{i}.weight": 1 + random((H,), 70 + i) for i in range(3)}
    source = drafts.speculators(
        tmp_path / "draft", drafts.speculators_tensors() | norms, fc_norm=True
    )
    result = convert(source, destination, taps=(5, 0, 3))
    for new, old in enumerate((1, 2, 0)):
        assert np.array_equal(
            result.tensors[f"fc_norm.{new}.weight"], norms[f"fc_norm.{old}.weight"]
        )


def rms(states, weight, eps=1e-5):
    return states / np.sqrt(np.mean(states**2, axis=-1, keepdims=True) + eps) * weight


@pytest.mark.parametrize("normed", [False, True], ids=["plain", "block norms"])
def test_a_repeated_tap_is_merged_to_the_same_function(normed, tmp_path):
    norms = {f"fc_norm.{i}.weight": 1 + random((H,), 70 + i) for i in range(4)}
    tensors = drafts.speculators_tensors() | drafts.common_tensors(4) | (norms if normed else {})
    source = drafts.speculators(tmp_path / "draft", tensors, fc_norm=normed, **{IDS: [0, 1, 3, 5]})
    result = convert(source, "vllm", taps=(3, 0, 3, 5))
    assert result.config[IDS] == [0, 3, 5]
    assert result.config["num_aux_hidden_states"] == 3
    assert "taps-merged" in result.codes

    streams = {tap: random((7, H), tap).astype(np.float64) for tap in (0, 3, 5)}

    def fc(tensors, taps):
        inputs = [
            rms(streams[tap], tensors[f"fc_norm.{i}.weight"].astype(np.float64))
            if normed
            else streams[tap]
            for i, tap in enumerate(taps)
        ]
        return np.hstack(inputs) @ tensors["fc.weight"].astype(np.float64).T

    before, after = fc(tensors, (3, 0, 3, 5)), fc(result.tensors, (0, 3, 5))
    scale = np.abs(np.hstack([streams[3]] * 4)).max() * np.abs(tensors["fc.weight"]).max()
    np.testing.assert_allclose(after, before, rtol=0, atol=4 * H * scale * np.finfo(np.float32).eps)


def test_a_repeated_tap_under_a_norm_over_all_is_refused(tmp_path):
    tensors = drafts.speculators_tensors() | {"input_norm.weight": 1 + random((3 * H,), 80)}
    source = drafts.speculators(tmp_path / "draft", tensors, norm_before_fc=True)
    assert refusals(convert, source, "vllm", taps=(3, 0, 3)) == {"taps-unmergeable"}


@pytest.mark.parametrize("ids", [[1, 3, 3], [1, 3]])
def test_too_few_ids_for_the_blocks_is_a_question(ids, tmp_path):
    source = drafts.speculators(tmp_path / "draft", **{IDS: ids})
    assert refusals(convert, source, "vllm", layout="speculators") == {"taps-mismatch"}


def test_the_number_of_taps_stands_wherever_a_class_of_vllm_looks(tmp_path):
    config = convert(drafts.sglang(tmp_path / "draft"), "vllm").config
    assert (config["num_aux_layers"], config["num_aux_hidden_states"]) == (3, 3)


def parallel(tmp_path, taps):
    """A draft with the mask of parallel drafting, which no reader takes yet, and that mask."""
    mask = random((1, 1, 3 * H), 81)
    tensors = drafts.speculators_tensors()
    plain = drafts.speculators(tmp_path / "plain", tensors)
    masked = drafts.speculators(tmp_path / "masked", tensors | {"mask_hidden": mask})
    loaded = api.load(str(plain), "auto", api.Options(taps=taps))
    reading = loaded.reading
    reading = replace(
        reading,
        draft=reading.draft.model_copy(update={"parallel": ParallelDrafting()}),
        names={**reading.names, "mask_hidden": "mask_hidden"},
    )
    loaded = replace(loaded, reading=reading, checkpoint=open_checkpoint(str(masked)))
    return begin(loaded, "vllm", api.Options()), mask


def test_the_mask_of_parallel_drafting_is_permuted_with_fc(tmp_path):
    work, mask = parallel(tmp_path, (5, 0, 3))
    op = order_taps(work).tensors["mask_hidden"].op
    output = Output("mask_hidden", "F32", (1, 1, 3 * H), op, "")
    with op.source.file.open("rb") as file:
        values = np.concatenate(list(rewritten(file.fileno(), output, op)))
    one, two, three = np.split(mask, 3, axis=2)
    assert np.array_equal(values.reshape(mask.shape), np.concatenate([two, three, one], axis=2))


def test_a_repeated_tap_under_a_mask_is_refused_by_its_name(tmp_path):
    """What two blocks of the mask add up to depends on fc's blocks, which are merged as well."""
    work, _ = parallel(tmp_path, (3, 0, 3))
    with pytest.raises(Refused, match="mask_hidden"):
        order_taps(work)
