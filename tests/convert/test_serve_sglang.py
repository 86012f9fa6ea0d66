"""SGLang's launch commands: what `serve` prints, and what it says of one that somebody has."""

import json

import drafts
import latent_drafts
import pytest
from conversions import launch_line

from eagle3_interop.convert.serve import command

STOCK = drafts.SGLANG_CONFIG
PLUGIN = {**drafts.VLLM_CONFIG, "norm_before_residual": True}
MLA = latent_drafts.SGLANG_CONFIG
GOOD = (
    "python -m sglang.launch_server --model-path t --speculative-algorithm EAGLE3 "
    "--speculative-draft-model-path d --speculative-num-steps 4 --speculative-eagle-topk 1 "
    "--speculative-num-draft-tokens 5"
)
BARE = GOOD.partition(" --speculative-num-steps")[0]
TREE = GOOD.replace("topk 1", "topk 4")


def codes(arguments, config=STOCK, target=None, draft="d"):
    return [item.code for item in command.judge(arguments, "sglang", config, draft, target)]


def test_eagle_instead_of_eagle3_is_an_error():
    assert codes(GOOD.replace("EAGLE3", "EAGLE")) == ["serve-algorithm"]


def test_one_step_makes_two_draft_tokens_whatever_was_asked():
    arguments = GOOD.replace("steps 4", "steps 1").replace("tokens 5", "tokens 6")
    assert codes(arguments) == ["serve-steps-win"]


def test_draft_tokens_without_steps_are_an_error():
    assert codes(GOOD.replace("--speculative-num-steps 4 ", "")) == ["serve-counts"]


def test_more_draft_tokens_than_a_tree_has_nodes_are_an_error():
    # Two steps of two branches: the root, 2 nodes, then 2 x 2 more.
    tree = GOOD.replace("steps 4", "steps 2").replace("topk 1", "topk 2")
    assert codes(tree.replace("tokens 5", "tokens 7")) == []
    assert codes(tree.replace("tokens 5", "tokens 8")) == ["serve-counts"]


@pytest.mark.parametrize(
    ("steps", "topk", "tokens"),
    [(-4, 1, -3), (0, 1, 1), (4, -2, 5), (4, 0, 5), (4, 4, 0), (4, 4, 1), (-1, 4, 5)],
)
def test_counts_that_draft_nothing_are_errors(steps, topk, tokens):
    counts = f"--speculative-num-steps {steps} --speculative-eagle-topk {topk}"
    found = codes(f"{BARE} {counts} --speculative-num-draft-tokens {tokens}")
    assert set(found) == {"serve-counts"}


def test_adaptive_drafting_may_start_with_no_step():
    assert codes(f"{BARE} --speculative-adaptive --speculative-num-steps 0") == []
    assert codes(f"{BARE} --speculative-adaptive --speculative-num-steps -1") == ["serve-counts"]


@pytest.mark.parametrize("tokens", ["--speculative-num-draft-tokens 5", ""])
def test_steps_without_topk_are_an_error(tokens):
    # SGLang 0.5.23 `_handle_eagle_family` compares the absent top-k with 1: a TypeError.
    bare = GOOD.partition(" --speculative-eagle-topk")[0]
    assert codes(f"{bare} {tokens}") == ["serve-counts"]


def test_a_tree_without_draft_tokens_is_an_error_and_a_chain_has_its_own():
    bare = GOOD.partition(" --speculative-num-draft-tokens")[0]
    assert codes(bare) == []
    assert codes(bare.replace("topk 1", "topk 4")) == ["serve-counts"]


def test_no_counts_at_all_is_a_note_that_sglang_chooses():
    assert codes(BARE) == ["serve-counts-chosen"]


@pytest.mark.parametrize(
    ("counts", "expected"),
    [
        ("", []),
        ("--speculative-eagle-topk 1", []),
        ("--speculative-num-steps 5", []),
        ("--speculative-num-steps 6", ["serve-counts"]),
        ("--speculative-num-draft-tokens 4", []),  # of the three steps that it starts with
        ("--speculative-num-steps 5 --speculative-num-draft-tokens 4", ["serve-steps-win"]),
        ("--speculative-num-steps 6 --speculative-adaptive-config x.json", []),
        # A tree makes SGLang adapt nothing, and the usual rules hold.
        ("--speculative-num-steps 6 --speculative-eagle-topk 2", ["serve-counts"]),
        ("--speculative-eagle-topk 2", ["serve-counts"]),
    ],
)
def test_adaptive_counts_are_judged_by_the_adaptive_rules(counts, expected):
    assert codes(f"{BARE} --speculative-adaptive {counts}") == expected


@pytest.mark.parametrize(
    ("groups", "adapts"),
    [
        ("--attn-dp-size 2", False),
        ("--attention-data-parallel-size=2", False),
        ("--enable-dp-attention --dp-size 2", False),
        ("--enable-dp-attention --data-parallel-size 2", False),
        ("--enable-dp-attention", True),
        ("--dp-size 2", True),
    ],
)
def test_groups_of_attention_keep_sglang_from_adapting(groups, adapts):
    arguments = f"{BARE} --speculative-adaptive --speculative-num-steps 5 {groups}"
    assert codes(arguments) == ([] if adapts else ["serve-counts"])


def test_the_last_of_a_flag_and_its_aliases_counts():
    assert codes(f"{GOOD} --speculative-algo EAGLE") == ["serve-algorithm"]
    assert codes(f"--speculative-algo EAGLE {GOOD}") == []
    other = f"{GOOD} --speculative-draft-model org/mistral-eagle3"
    assert codes(other, draft="org/mistral-eagle3") == ["serve-mistral-name"]
    assert codes(f"{GOOD} --speculative-num-steps 2") == ["serve-steps-win"]


@pytest.mark.parametrize(
    "flag", ["--speculative-use-rejection-sampling", "--speculative-use-block-verification"]
)
def test_rejection_sampling_wants_a_chain_and_the_whole_vocabulary(flag):
    whole = {**STOCK, "draft_vocab_size": STOCK["vocab_size"]}
    assert codes(f"{GOOD} {flag}", config=whole) == []
    assert codes(f"{GOOD} {flag}") == ["serve-sampling"]
    assert codes(f"{TREE} {flag}", config=whole) == ["serve-tree"]


def test_the_tree_that_sglang_chooses_for_a_llama_target_is_no_chain():
    arguments, llama = (
        f"{BARE} --speculative-use-rejection-sampling",
        {"architectures": ["LlamaForCausalLM"]},
    )
    whole = {**STOCK, "draft_vocab_size": STOCK["vocab_size"]}
    expected = ["serve-counts-chosen", "serve-tree"]
    assert codes(arguments, config=whole, target=llama) == expected
    other = {"architectures": ["Qwen3ForCausalLM"]}
    assert codes(arguments, config=whole, target=other) == ["serve-counts-chosen"]


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        ("--page-size 64 --attention-backend flashinfer", []),
        ("--page-size 64 --attention-backend aiter", ["serve-pages"]),
        ("--page-size 64", ["serve-pages-chosen"]),  # NVIDIA's defaults can, AMD's cannot
        ("--attention-backend aiter", []),
        ("--attention-backend flashmla", ["serve-pages"]),  # makes pages of 64
        ("--attention-backend trtllm_mla", ["serve-pages"]),
        ("--attention-backend cutedsl_mla --page-size 1", ["serve-pages"]),
        ("--attention-backend tokenspeed_mla", ["serve-pages"]),  # its old name
        ("--prefill-attention-backend tokenspeed_mla", []),
        ("--attention-backend fa3 --decode-attention-backend flashmla", []),
        (
            "--prefill-attention-backend flashmla --decode-attention-backend flashmla",
            ["serve-pages"],
        ),
        ("--attention-backend trtllm_mha", ["serve-tree"]),
        ("--attention-backend fa3 --prefill-attention-backend trtllm_mha", ["serve-tree"]),
        ("--attention-backend fa3 --decode-attention-backend trtllm_mha", ["serve-tree"]),
    ],
)
def test_trees_need_a_backend_that_can_do_them(flags, expected):
    of_trees = [code for code in codes(f"{TREE} {flags}") if code != "serve-backend"]
    assert of_trees == expected
    assert not {"serve-tree", "serve-pages"} & set(codes(f"{GOOD} {flags}"))


def test_a_context_beyond_the_drafts_positions_is_an_error():
    assert codes(GOOD + " --context-length 4096") == ["serve-context"]
    assert codes(GOOD + " --context-length 2048") == []
    assert codes(GOOD, target={"max_position_embeddings": 4096}) == ["serve-context"]


@pytest.mark.parametrize("length", ["0", "-5", "-5 --speculative-eagle-topk 1"])
def test_a_context_without_positions_is_an_error(length):
    assert codes(f"{GOOD} --context-length {length}") == ["serve-context"]


@pytest.mark.parametrize("rope", [{"factor": float("nan")}, {"type": "linear", "factor": 1e308}])
def test_a_factor_that_gives_no_number_of_positions_leaves_the_context_open(rope):
    overrides = json.dumps({"rope_scaling": rope})
    arguments = f"{GOOD} --context-length 4096 --json-model-override-args '{overrides}'"
    assert codes(arguments, target={"max_position_embeddings": 4096}) == ["serve-overrides"]


def test_a_context_beyond_the_targets_own_is_an_error():
    wide = {**STOCK, "max_position_embeddings": 8192}
    target = {"max_position_embeddings": 4096}
    assert codes(GOOD + " --context-length 4097", config=wide, target=target) == ["serve-context"]
    assert codes(GOOD + " --context-length 4096", config=wide, target=target) == []


@pytest.mark.parametrize(("length", "positions"), [("2k", 2000), ("2Ki", 2048), ("2.1k", 2100)])
def test_a_context_may_be_given_with_a_unit(length, positions):
    fits = {**STOCK, "max_position_embeddings": positions}
    short = {**STOCK, "max_position_embeddings": positions - 1}
    assert codes(f"{GOOD} --context-length {length}", config=fits) == []
    assert codes(f"{GOOD} --context-length {length}", config=short) == ["serve-context"]


def test_the_factor_of_a_linear_rope_counts_for_target_and_draft():
    linear = {"max_position_embeddings": 2048, "rope_scaling": {"type": "linear", "factor": 4.0}}
    assert codes(GOOD, target=linear) == ["serve-context"]
    assert codes(GOOD, config={**STOCK, **linear}, target={"max_position_embeddings": 8192}) == []


def test_a_draft_without_positions_has_those_of_its_class():
    silent = {key: value for key, value in STOCK.items() if key != "max_position_embeddings"}
    assert codes(GOOD + " --context-length 2048", config=silent) == []  # transformers' LlamaConfig
    assert codes(GOOD + " --context-length 2049", config=silent) == ["serve-context"]


def test_the_variable_that_allows_longer_contexts_raises_the_drafts_positions():
    allowed = f"SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN=1 {GOOD} --context-length 4096"
    assert codes(allowed) == []
    assert codes(allowed.replace("LEN=1", "LEN=0")) == ["serve-context"]


def test_raised_positions_make_a_dynamic_rope_another_network():
    dynamic = {**STOCK, "rope_scaling": {"rope_type": "dynamic", "factor": 1.5}}
    allowed = f"SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN=true {GOOD} --context-length 4096"
    assert codes(allowed, config=dynamic) == ["serve-context"]


YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 512}


@pytest.mark.parametrize(
    ("overrides", "expected"),
    [
        ({}, []),
        ({"rope_scaling": YARN}, ["serve-overrides"]),
        ({"rope_parameters": {"rope_theta": 5e5}}, ["serve-overrides"]),
        ({"num_hidden_layers": 1}, []),  # what the draft has already
        ({"num_hidden_layers": 2}, ["serve-overrides"]),
        ({"text_config": {"rope_scaling": YARN}}, ["serve-overrides"]),  # a draft has none
        ({"rope_theta": 5e5}, ["serve-overrides-shared"]),  # SGLang reads the rope's own
        ({"sliding_window": 64}, ["serve-overrides-shared"]),  # its own class has no windows
        ({"max_position_embeddings": 8192}, ["serve-overrides-shared"]),
    ],
)
def test_overrides_hold_for_the_draft_too(overrides, expected):
    assert codes(f"{GOOD} --json-model-override-args '{json.dumps(overrides)}'") == expected


def test_overridden_positions_are_the_drafts_as_well():
    arguments = f"""{GOOD} --json-model-override-args '{{"max_position_embeddings": 4096}}'"""
    assert codes(arguments, target={"max_position_embeddings": 8192}) == ["serve-overrides-shared"]


@pytest.mark.parametrize(
    ("draft", "target", "fits"),
    [
        ("float32", "float32", True),  # SGLang makes both float16
        ("float32", "float16", True),
        ("bfloat16", "bfloat16", True),
        ("float16", "bfloat16", False),
        ("float32", "bfloat16", False),
        (None, "bfloat16", False),
    ],
)
def test_two_dtypes_are_an_error_that_the_printed_command_mends(draft, target, fits):
    config, theirs = {**STOCK, "torch_dtype": draft}, {"dtype": target}
    line = launch_line(config, "sglang", "d", "t", 4, target_config=theirs)
    assert codes(GOOD, config=config, target=theirs) == ([] if fits else ["serve-dtype"])
    assert codes(line, config=config, target=theirs) == []
    assert ("--dtype" in line) == (not fits)


@pytest.mark.parametrize("name", ["float16; rm -rf ~", ["x"], {"a": 1}, "float8_e4m3fn", 7, "auto"])
def test_what_is_no_dtype_counts_as_none(name):
    config = {**STOCK, "torch_dtype": "bfloat16"}
    line = launch_line(config, "sglang", "d", "t", 4, target_config={"dtype": name})
    assert line.endswith(" --dtype float16")  # as for float32
    config = {**STOCK, "torch_dtype": name}
    line = launch_line(config, "sglang", "d", "t", 4, target_config={"dtype": "bfloat16"})
    assert line.endswith(" --dtype bfloat16")


def test_a_dtype_may_have_torchs_name_before_it():
    config = {**STOCK, "torch_dtype": "torch.bfloat16"}
    assert codes(GOOD, config=config, target={"dtype": "bfloat16"}) == []
    assert codes(GOOD, config=config, target={"dtype": "torch.float16"}) == ["serve-dtype"]


def test_float32_is_bfloat16_for_gemma():
    gemma = {"model_type": "gemma3_text", "dtype": "float32"}
    assert codes(GOOD, target=gemma) == ["serve-dtype"]
    assert codes(GOOD, config={**STOCK, "torch_dtype": "bfloat16"}, target=gemma) == []


def test_a_dtype_that_is_given_or_set_for_the_target_holds_for_the_draft():
    target = {"dtype": "bfloat16"}
    assert codes(f"{GOOD} --dtype bfloat16", target=target) == []
    assert codes(f"{GOOD} --dtype auto", target=target) == ["serve-dtype"]
    mxfp4 = {
        "architectures": ["GptOssForCausalLM"],
        "quantization_config": {"quant_method": "mxfp4"},
    }
    assert codes(GOOD, target={**target, **mxfp4}) == []


def test_the_flag_that_quantises_the_target_quantises_the_draft():
    assert codes(GOOD + " --quantization fp8") == ["serve-quantisation"]
    kept = GOOD + " --quantization fp8 --speculative-draft-model-quantization unquant"
    assert codes(kept) == []


def test_a_draft_inherits_neither_the_targets_config_nor_its_unquant():
    assert codes(GOOD, target={"quantization_config": {"quant_method": "fp8"}}) == []
    assert codes(GOOD + " --quantization unquant") == []


@pytest.mark.parametrize("draft", ["/models/Mistral/eagle3", "org/mistral-eagle3", "/leanstral/d"])
def test_a_draft_whose_path_names_mistral_is_an_error_that_no_flag_mends(draft):
    arguments = GOOD.replace("model-path d", f"model-path {draft}")
    assert codes(arguments, draft=draft) == ["serve-mistral-name"]
    told = f"{arguments} --model-config-parser hf"
    assert codes(told, draft=draft) == ["serve-mistral-name"]


def test_the_printed_command_gives_such_a_draft_another_name(tmp_path):
    folder = tmp_path / "mistral-eagle3"
    folder.mkdir()
    line = launch_line(STOCK, "sglang", str(folder), "t", 4)
    assert line.startswith(f"ln -sfn {folder} eagle3-draft && python -m sglang")
    assert "--speculative-draft-model-path eagle3-draft " in line
    assert codes(line, draft=str(folder)) == []
    line = launch_line(STOCK, "sglang", "org/mistral-eagle3", "t", 4)
    assert line.startswith("hf download org/mistral-eagle3 --local-dir eagle3-draft && ")


def test_a_target_taken_for_mistrals_format_is_read_by_config_json_if_told_so(tmp_path):
    target = tmp_path / "eagle" / "Mistral-7B"
    target.mkdir(parents=True)
    arguments = GOOD.replace("model-path t", f"model-path {target}")
    assert codes(arguments) == ["serve-mistral-name"]
    assert codes(f"{arguments} --model-config-parser hf") == []
    line = launch_line(STOCK, "sglang", "d", str(target), 4)
    assert "--model-config-parser hf" in line
    (target / "params.json").write_text("{}")
    assert codes(arguments) == []


def test_a_target_that_cannot_be_looked_at_gets_a_warning():
    elsewhere = GOOD.replace("model-path t", "model-path /elsewhere/eagle/mistral")
    assert codes(elsewhere) == ["serve-mistral-target"]
    assert codes(GOOD.replace("model-path t", "model-path mistralai/Mistral-Large-3")) == []


def test_a_window_on_the_command_line_is_refused_by_a_draft_that_has_one():
    window = "--speculative-draft-window-size 64"
    own = {**PLUGIN, "layer_types": ["sliding_attention"], "sliding_window": 32}
    assert codes(f"{command.PLUGIN_VARIABLE} {GOOD} {window}", config=own) == ["serve-window-given"]
    assert codes(f"{command.PLUGIN_VARIABLE} {GOOD} {window}", config=PLUGIN) == ["serve-window"]
    assert codes(f"{GOOD} {window}") == ["serve-window"]


def test_a_draft_for_the_plugin_needs_the_plugin():
    assert codes(GOOD, config=PLUGIN) == ["serve-plugin"]
    assert codes(f"{command.PLUGIN_VARIABLE} {GOOD}", config=PLUGIN) == []


@pytest.mark.parametrize(
    "before",
    [
        "export {};",
        "export {} ;",
        "export {} &&",
        "docker run -e {} image",
        "docker run -e{} image",
        "docker run --env {} image",
        "docker run --env={} image",
        "env {}",
    ],
)
def test_the_plugin_may_be_given_before_the_command_or_to_docker(before):
    assert codes(f"{before.format(command.PLUGIN_VARIABLE)} {GOOD}", config=PLUGIN) == []


@pytest.mark.parametrize("value", ["", "another.plugin", "eagle3_interop.sglang_plugin2"])
def test_another_plugin_is_not_the_drafts(value):
    line = f"SGLANG_EXTERNAL_MODEL_PACKAGE={value}; {GOOD}"
    assert codes(line, config=PLUGIN) == ["serve-plugin"]


def test_a_revision_of_a_draft_with_mistral_in_its_name_is_downloaded():
    line = launch_line(STOCK, "sglang", "org/mistral-eagle3@v2", "t", 3)
    assert line.startswith("hf download org/mistral-eagle3 --revision v2 --local-dir ")
    assert "--speculative-draft-model-revision" not in line


@pytest.mark.parametrize("draft", ["org/mistral-eagle3", "org/mistral-eagle3@v2"])
def test_a_draft_that_the_line_first_gives_another_name_is_the_draft_that_was_given(draft):
    assert codes(launch_line(STOCK, "sglang", draft, "t", 3), draft=draft) == []


def test_multi_layer_eagle_drafts_with_other_models_than_this_one():
    assert codes(f"{GOOD} --enable-multi-layer-eagle") == ["serve-multi-layer"]


def test_a_flag_may_be_cut_short_where_no_other_begins_so():
    assert codes(GOOD.replace("--speculative-num-steps", "--speculative-num-st")) == []
    assert codes(GOOD.replace("num-steps 4", "num-s 2")) == ["serve-steps-win"]


def test_a_beginning_that_several_flags_have_keeps_sglang_from_starting():
    found = command.judge(f"{GOOD} --speculative-draft 1", "sglang", STOCK, "d")
    assert [item.code for item in found] == ["serve-unknown-flag"]
    assert "--speculative-draft-attention-backend, " in found[0].message


def test_sglang_takes_the_model_as_its_first_word_too():
    line = GOOD.replace("python -m sglang.launch_server --model-path t", "sglang serve t")
    judged = [command.judge(line, "sglang", STOCK, "d", None, name) for name in ("t", "u")]
    assert [[item.code for item in found] for found in judged] == [[], ["serve-other-target"]]


# Attention of draft and target: `layers/attention/attention_registry.py`.

KIMI = {"kv_lora_rank": 512, "qk_rope_head_dim": 64, "torch_dtype": "float32"}
LLAMA = {"torch_dtype": "float32"}
OWN = "--speculative-draft-attention-backend"


def backend_codes(arguments, config, target=None):
    found = codes(f"{GOOD} {arguments}", config, target)
    return [code for code in found if code.startswith("serve-backend")]


@pytest.mark.parametrize(
    ("config", "arguments"),
    [
        (STOCK, "--attention-backend trtllm_mla"),
        (STOCK, "--attention-backend flashmla"),
        (STOCK, f"--attention-backend fa3 {OWN} cutedsl_mla"),
        (STOCK, "--attention-backend fa3 --decode-attention-backend flashmla"),
        (MLA, "--attention-backend trtllm_mha"),
        (MLA, f"--attention-backend fa3 {OWN} trtllm_mha"),
    ],
)
def test_a_backend_that_does_not_compute_the_drafts_attention_is_an_error(config, arguments):
    assert backend_codes(arguments, config) == ["serve-backend"]


@pytest.mark.parametrize(
    ("config", "arguments"),
    [
        (STOCK, f"--attention-backend trtllm_mla {OWN} triton"),
        (STOCK, "--attention-backend fa3"),
        (MLA, "--attention-backend trtllm_mla"),
        (MLA, f"--attention-backend trtllm_mha {OWN} flashinfer"),
    ],
)
def test_a_backend_of_the_drafts_own_kind_is_none(config, arguments):
    assert backend_codes(arguments, config) == []


@pytest.mark.parametrize(("config", "target"), [(STOCK, KIMI), (MLA, LLAMA)])
def test_a_draft_that_attends_otherwise_than_its_target_gets_a_backend_of_its_own(config, target):
    assert backend_codes("", config, target) == ["serve-backend-chosen"]
    line = launch_line(config, "sglang", "d", "t", 3, target_config=target)
    assert f"{OWN} triton" in line
    assert backend_codes(f"{OWN} triton", config, target) == []


@pytest.mark.parametrize(("config", "target"), [(STOCK, LLAMA), (MLA, KIMI)])
def test_a_draft_that_attends_as_its_target_does_needs_none(config, target):
    assert backend_codes("", config, target) == []
    assert OWN not in launch_line(config, "sglang", "d", "t", 3, target_config=target)


def test_overriding_the_ranks_of_latent_attention_makes_the_draft_another_network():
    override = "--json-model-override-args '{\"kv_lora_rank\": 256}'"
    assert "serve-overrides" in codes(f"{GOOD} {override}", MLA)
    assert "serve-overrides" not in codes(f"{GOOD} {override}", STOCK)
