"""vLLM's launch commands: what `serve` prints, and what it says of one that somebody has."""

import json

import drafts
import pytest
from conversions import launch_line

from eagle3_interop.convert.serve import command
from eagle3_interop.schemas.findings import Usage

STOCK = drafts.SGLANG_CONFIG


def codes(arguments, config=STOCK, target=None, draft="d"):
    return [item.code for item in command.judge(arguments, "vllm", config, draft, target)]


def test_vllm_gets_the_method_whatever_the_folder_is_called():
    line = launch_line(STOCK, "vllm", "org/eagle-draft", "t", 4)
    assert '"method": "eagle3"' in line


def test_a_tree_is_refused_for_vllm():
    with pytest.raises(Usage):
        launch_line(STOCK, "vllm", "d", "t", 4, topk=2)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("org/draft", ["serve-method"]),
        ("org/llama-eagle3", []),
        ("org/eagle-eagle3", ["serve-method"]),
    ],
)
def test_without_a_method_vllm_goes_by_the_name(name, expected):
    settings = json.dumps({"model": name, "num_speculative_tokens": 4})
    assert codes(f"--speculative-config '{settings}'", draft=name) == expected


def test_vllm_needs_a_number_of_draft_tokens_for_a_flat_folder():
    settings = json.dumps({"model": "d", "method": "eagle3"})
    assert codes(f"--speculative-config '{settings}'") == ["serve-counts"]


SPECULATORS = drafts.SPECULATORS_CONFIG
LAYERS = SPECULATORS["transformer_layer_config"]


@pytest.mark.parametrize(
    "arguments",
    [
        "vllm serve d",
        "vllm serve --model d",
        "vllm serve --port 8000 --model=d",
        "vllm serve ./d",
        "vllm serve --port 8000 d",
        "vllm serve --enforce-eager d",
    ],
)
def test_a_speculators_folder_that_is_served_tells_vllm_everything_itself(arguments):
    assert codes(arguments, SPECULATORS) == []


def test_beside_another_model_a_speculators_folder_tells_vllm_nothing():
    assert codes("vllm serve target", SPECULATORS) == ["serve-no-draft"]
    draft = """vllm serve target --speculative-config '{"model": "d"}'"""
    assert codes(draft, SPECULATORS) == ["serve-method", "serve-counts"]
    assert codes(launch_line(SPECULATORS, "vllm", "d", "t", 4), SPECULATORS) == []


def test_another_draft_method_is_an_error():
    settings = json.dumps({"model": "d", "method": "eagle", "num_speculative_tokens": 4})
    assert codes(f"--speculative-config '{settings}'") == ["serve-method"]


def test_beside_a_speculators_folder_another_names_flag_serves_the_other():
    arguments = "vllm serve --enforce-eager --spec-model d --tokenizer d target"
    assert codes(f"{arguments} --spec-method eagle3 --spec-tokens 3", SPECULATORS) == []
    assert codes("vllm serve target --tokenizer d", SPECULATORS) == ["serve-no-draft"]


@pytest.mark.parametrize("flag", ["--spec-method eagle3", "--spec-model d", "--spec-tokens 3"])
def test_a_setting_of_the_served_folder_is_not_to_be_given_by_a_short_flag(flag):
    assert codes(f"vllm serve d {flag}", SPECULATORS) == ["serve-given-twice"]
    longer = """vllm serve d --speculative-config '{"num_speculative_tokens": 3}'"""
    assert codes(longer, SPECULATORS) == []


def test_a_setting_is_not_to_be_given_by_two_flags():
    line = launch_line(STOCK, "vllm", "d", "t", 4)
    assert codes(f"{line} --spec-tokens 3") == ["serve-given-twice"]


def test_settings_may_be_given_by_short_flags():
    assert codes("vllm serve t --spec-method eagle3 --spec-model d --spec-tokens 3") == []
    assert codes("vllm serve t --spec_method=eagle --spec-model=d --spec-tokens=3") == [
        "serve-method"
    ]


def test_settings_without_a_model_name_no_draft():
    assert codes("vllm serve t --spec-method eagle3 --spec-tokens 3") == ["serve-no-draft"]


@pytest.mark.parametrize("name", ["-sc", "--speculative-config", "--speculative_config"])
def test_settings_one_by_one_are_read_as_json(name):
    line = f"vllm serve t {name}.method eagle3 {name}.model=d {name}.num-speculative-tokens 4"
    assert codes(f"{line} {name}.parallel_drafting false") == []
    assert codes(f"{line} {name}.parallel_drafting true") == ["serve-method"]
    old = f"VLLM_USE_V2_MODEL_RUNNER=0 {line} --max-model-len 2000"
    assert codes(f"{old} {name}.max_model_len 1k") == ["serve-context-stops"]


def test_settings_one_by_one_replace_those_in_json():
    line = launch_line(STOCK, "vllm", "d", "t", 4)
    assert codes(f"{line} --speculative-config.model d") == ["serve-method", "serve-counts"]


def test_settings_under_a_name_that_comes_later_replace_the_earlier():
    long, short = "--speculative-config.model d", "-sc.num_speculative_tokens 4"
    assert codes(f"vllm serve t {long} {short}") == ["serve-no-draft"]
    assert codes(f"vllm serve t {short} {long}") == ["serve-method", "serve-counts"]


def test_settings_of_none_are_none():
    assert codes("vllm serve t -sc None") == ["serve-no-draft"]


def test_settings_may_be_given_one_by_one():
    arguments = "--speculative-config.method eagle3 --speculative-config.num_speculative_tokens 4"
    assert codes(f"vllm serve t --speculative-config.model d {arguments}") == []


def test_a_speculators_draft_without_positions_has_the_targets():
    bare = {k: v for k, v in LAYERS.items() if k != "max_position_embeddings"}
    arguments = f"VLLM_USE_V2_MODEL_RUNNER=0 {launch_line(STOCK, 'vllm', 'd', 't', 4)}"
    silent = {**SPECULATORS, "transformer_layer_config": bare}
    assert codes(f"{arguments} --max-model-len 1M", silent) == []


def test_quantisation_by_its_short_flag_leaves_the_draft_as_it_is_too():
    assert codes(f"{launch_line(STOCK, 'vllm', 'd', 't', 4)} -q fp8") == ["serve-quantised-target"]


def test_a_quantised_target_leaves_vllms_draft_as_it_is():
    target = {"quantization_config": {"quant_method": "fp8"}}
    line = launch_line(STOCK, "vllm", "d", "t", 4)
    assert codes(line, target=target) == ["serve-quantised-target"]


@pytest.mark.parametrize(
    "eager",
    [
        "--enforce-eager",
        "-O0",
        "-O 0",
        "--optimization-level 0",
        "-cc.mode=none",
        """--compilation-config '{"mode": 0}'""",
        """-cc '{"mode": "NONE"}'""",
    ],
)
def test_without_compilation_a_tap_on_the_embeddings_is_a_warning(eager):
    line = launch_line(STOCK, "vllm", "d", "t", 4)
    tapped = {**drafts.VLLM_CONFIG, "eagle_aux_hidden_state_layer_ids": [0, 3, 5]}
    expected = ["serve-eager-embedding-tap"]
    assert codes(f"{line} {eager}", tapped) == expected
    assert codes(f"{line} {eager}", drafts.VLLM_CONFIG) == []


@pytest.mark.parametrize(
    ("runner", "nested", "expected"),
    [
        ("", "layer_ids", ["serve-eager-embedding-tap"]),
        ("", "eagle_aux_hidden_state_layer_ids", []),
        ("VLLM_USE_V2_MODEL_RUNNER=0 ", "layer_ids", []),
        (
            "VLLM_USE_V2_MODEL_RUNNER=0 ",
            "eagle_aux_hidden_state_layer_ids",
            ["serve-eager-embedding-tap"],
        ),
    ],
)
def test_nested_ids_tap_the_embeddings_in_the_runner_that_reads_them(runner, nested, expected):
    line = f"{runner}{launch_line(STOCK, 'vllm', 'd', 't', 4)} --enforce-eager"
    silent = {k: v for k, v in drafts.VLLM_CONFIG.items() if "layer_ids" not in k}
    assert codes(line, {**silent, "eagle_config": {nested: [0, 3, 5]}}) == expected


@pytest.mark.parametrize(
    "compiled",
    [
        "-O0 -O3",
        "--enforce-eager --no-enforce-eager",
        "",
        "-O2",
        """-cc '{"mode": 3}'""",
        "-cc.mode=3",
    ],
)
def test_compiled_a_tap_on_the_embeddings_is_safe(compiled):
    line = launch_line(STOCK, "vllm", "d", "t", 4)
    tapped = {**drafts.VLLM_CONFIG, "eagle_aux_hidden_state_layer_ids": [0, 3, 5]}
    assert codes(f"{line} {compiled}", tapped) == []


def test_the_v1_runner_stops_drafting_where_the_drafts_positions_end():
    line = launch_line(STOCK, "vllm", "d", "t", 4)
    target = {"max_position_embeddings": 4096}
    old = f"VLLM_USE_V2_MODEL_RUNNER=0 {line}"
    assert codes(old, target=target) == ["serve-context-stops"]
    assert codes(f"{old} --max-model-len 4k") == ["serve-context-stops"]
    assert codes(f"{old} --max-model-len 2K", target=target) == []
    assert codes(f"{old} --max-model-len auto", target=target) == ["serve-context-stops"]
    assert codes(line, target=target) == []  # the V2 runner, which is the default


@pytest.mark.parametrize(
    ("tokens", "fits"),
    [
        ("4", True),
        ('"4"', True),
        ("4.0", True),
        ("0", False),
        ("-1", False),
        ("4.5", False),
        ('"x"', False),
        ("NaN", False),
        ("[4]", False),
    ],
)
@pytest.mark.parametrize("key", ["num_speculative_tokens", "max_model_len"])
def test_a_number_of_the_settings_is_whole_and_from_1_on(key, tokens, fits):
    others = '"model": "d", "method": "eagle3", "num_speculative_tokens": 4'
    expected = [] if fits else ["serve-counts"]
    assert codes(f"vllm serve t -sc '{{{others}, \"{key}\": {tokens}}}'") == expected
    itself = f"vllm serve d -sc '{{\"{key}\": {tokens}}}'"
    assert codes(itself, SPECULATORS) == expected


@pytest.mark.parametrize("tokens", ["0", "-3", "x"])
def test_so_is_one_that_a_short_flag_gives(tokens):
    line = f"vllm serve t --spec-method eagle3 --spec-model d --spec-tokens {tokens}"
    assert codes(line) == ["serve-counts"]


@pytest.mark.parametrize(
    ("length", "fits"), [("0", False), ("-5", False), ("-1", True), ("auto", True), ("1k", True)]
)
def test_a_context_without_positions_is_an_error(length, fits):
    line = launch_line(STOCK, "vllm", "d", "t", 4)
    assert codes(f"{line} --max-model-len {length}") == ([] if fits else ["serve-counts"])


def test_a_folder_that_serves_itself_may_be_named_on_the_next_line():
    assert codes("vllm serve \\\n d", SPECULATORS) == []


@pytest.mark.parametrize("before", ["export {};", "export {} &&", "docker run -e {}"])
def test_a_variable_may_be_given_before_the_command_or_to_docker(before):
    line = launch_line(STOCK, "vllm", "d", "t", 4)
    given = before.format("VLLM_USE_V2_MODEL_RUNNER=0")
    assert codes(f"{given} {line} --max-model-len 4k") == ["serve-context-stops"]


@pytest.mark.parametrize(
    "settings",
    [
        '-sc \'{"model": "d", "method": "eagle3", "num_speculative_tokens": 4, "foo": 3}\'',
        "-sc.model d -sc.method eagle3 -sc.num_speculative_tokens 4 -sc.foo.bar 3",
        "--spec-model d --spec-method eagle3 --spec-tokens 4 -sc.foo+ 3",
    ],
)
def test_a_key_that_the_speculative_config_does_not_have_keeps_vllm_from_starting(settings):
    found = command.judge(f"vllm serve t {settings}", "vllm", STOCK, "d")
    assert [(item.code, item.where) for item in found] == [
        ("serve-unknown-setting", "--speculative-config: foo")
    ]


def test_keys_of_the_speculative_config_may_have_dashes():
    settings = '{"model": "d", "method": "eagle3", "num-speculative-tokens": 4, "max-model-len": 9}'
    assert codes(f"vllm serve t -sc '{settings}'") == []


LINE = launch_line(STOCK, "vllm", "d", "t", 4)
LINEAR = {"rope_scaling": {"rope_type": "linear", "factor": 2.0}}
YARN = {"rope_scaling": {"rope_type": "yarn", "factor": 2.0}}
LONG = {"rope_scaling": {"rope_type": "longrope"}, "original_max_position_embeddings": 1024}


@pytest.mark.parametrize(
    ("keys", "reach"), [({}, 4096), (LINEAR, 8192), (YARN, 4096), (LONG, 4096)]
)
def test_a_length_beyond_what_the_target_reaches_keeps_vllm_from_starting(keys, reach):
    target = {"max_position_embeddings": 4096, **keys}
    assert codes(f"{LINE} --max-model-len {reach}", target=target) == []
    beyond = f"{LINE} --max-model-len {reach + 1}"
    assert codes(beyond, target=target) == ["serve-context"]
    assert codes(f"VLLM_ALLOW_LONG_MAX_MODEL_LEN=1 {beyond}", target=target) == []


def test_the_drafts_own_length_is_within_the_drafts_and_the_targets_positions():
    def drafted(length, target):
        others = '"model": "d", "method": "eagle3", "num_speculative_tokens": 4'
        line = f"vllm serve t -sc '{{{others}, \"max_model_len\": {length}}}'"
        return codes(line, target={"max_position_embeddings": target})

    assert STOCK["max_position_embeddings"] == 2048
    assert drafted(2048, 4096) == []
    assert drafted(2049, 4096) == ["serve-context"]
    assert drafted(1025, 1024) == ["serve-context"]


@pytest.mark.parametrize(
    "flags", ["-O3", "-O 3", "-q fp8", "-tp 2", "-asc 1", "--max_model_len -1"]
)
def test_short_flags_and_levels_are_vllms_own(flags):
    assert "serve-unknown-flag" not in codes(f"{LINE} {flags}")


@pytest.mark.parametrize("model", ["t", "u"])
def test_the_model_may_stand_behind_flags_that_take_no_value_or_several(model):
    """``--api-key`` takes all the words up to the next flag, ``--seed`` one, the others none."""
    before = f"serve -O3 --enforce-eager --api-key a b --seed 3 {model}"
    found = command.judge(LINE.replace("serve t", before), "vllm", STOCK, "d", None, "t")
    assert [item.code for item in found] == ([] if model == "t" else ["serve-other-target"])
