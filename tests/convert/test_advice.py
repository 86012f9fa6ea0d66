"""Whatever option a finding advises is given to the command, literally: what was found is settled then.

Each case is a folder in which the finding arises. Its own text is read for options (``--set KEY=VALUE`` ...), words in
capitals stand for a value that only the user knows, and each alternative is run.
"""

import json
import re

import drafts
import latent_drafts as mla
import pytest
from drafts import ABSENT, random
from exports import TARGET as TRAINERS_TARGET
from exports import copied
from typer.testing import CliRunner

from eagle3_interop.convert.cli import app
from eagle3_interop.schemas.codes import CODES

IDS = "eagle_aux_hidden_state_layer_ids"
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 512}
SECTIONS = [4, 6, 6]
NESTED_ROPE = {
    "full_attention": {"rope_type": "default", "rope_theta": 1e6},
    "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
}
SLIDING = {"sliding_window": 64, "layer_types": ["sliding_attention"]}
BIASES = {
    f"midlayer.self_attn.{part}_proj.bias": random((rows,), 7)
    for part, rows in {"q": 128, "k": 64, "v": 64}.items()
}


def layered(folder, **changes):
    layer = drafts.SPECULATORS_CONFIG["transformer_layer_config"] | changes
    return drafts.speculators(folder, transformer_layer_config=layer)


def without(tensors, *names):
    return {name: x for name, x in tensors.items() if name not in names}


def two_layers(folder):
    layer = drafts.SPECULATORS_CONFIG["transformer_layer_config"] | {"num_hidden_layers": 2}
    return drafts.speculators(folder, drafts.speculators_tensors(2), transformer_layer_config=layer)


def unmasked(folder):
    copied("specforge/parallel", folder)
    config = json.loads((folder / "config.json").read_text())
    del config["mask_token_id"]
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def large(folder):
    tensors = drafts.flat_tensors()
    tensors["fc.weight"] = tensors["fc.weight"].copy()
    tensors["fc.weight"][0, 0] = 1e20
    return drafts.sglang(folder, tensors)


def exported(name):
    return lambda folder: copied(name, folder)


TIED = {"tie_word_embeddings": True, "draft_vocab_size": ABSENT}
UNMAPPED = ("lm_head.weight", "d2t", "t2d")

CASES = {
    # Layers.
    "taps-unknown": (
        lambda f: drafts.vllm(
            f, drafts.flat_tensors() | {"fc.weight": random((48, 192), 1)},
            **{IDS: ABSENT, "num_aux_hidden_states": 4},
        ),
        "vllm", {"LIST": "embed,1,3,5"},
    ),
    "taps-mismatch": (lambda f: drafts.sglang(f, eagle_config={IDS: [0, 2]}), "vllm", {"LIST": "1,3,5"}),
    "taps-out-of-range": (
        lambda f: drafts.sglang(f, eagle_config={IDS: [-2, 2, 4]}), "vllm", {"LIST": "1,3,5"},
    ),
    "taps-reordered": (
        lambda f: drafts.sglang(f, eagle_config={IDS: [4, 0, 2]}), "vllm", {"LIST": "5,1,3"},
    ),
    "ids-empty": (lambda f: drafts.sglang(f, eagle_config={IDS: []}), "vllm", {"LIST": "1,3,5"}),
    "ids-disagree": (
        lambda f: drafts.sglang(f, **{IDS: [2, 3, 5]}), "vllm", {"LIST": "1,3,5"},
    ),
    "default-taps": (
        lambda f: drafts.vllm(f, **{IDS: ABSENT}), "vllm", {"LIST": "1,3,5"},
    ),
    "read-as-sglang": (lambda f: drafts.sglang(f), "vllm", {"LIST": "1,3,5"}),
    "nested-ids": (
        lambda f: drafts.vllm(f, **{IDS: ABSENT}, eagle_config={"layer_ids": [1, 3, 5]}),
        "vllm", {"LIST": "1,3,5"},
    ),
    "ids-were-options": (exported("specforge/plain"), "vllm", {"LIST": "1,4,7"}),
    "plain-rule": (lambda f: drafts.sglang(f), "vllm", {}),
    # Flags.
    "residual-default": (lambda f: drafts.sglang(f), "vllm", {}),
    "residual-unread": (lambda f: drafts.sglang(f, norm_before_residual=True), "vllm", {}),
    "norm-output-meaning": (
        lambda f: drafts.sglang(f, norm_output=True, norm_before_residual=False), "vllm", {},
    ),
    "layer-count-short": (
        lambda f: drafts.sglang(f, drafts.flat_tensors(2), num_hidden_layers=1), "vllm", {"N": "2"},
    ),
    "no-mask-token": (unmasked, "vllm", {"N": "9"}),
    "unused-tensor": (
        lambda f: drafts.sglang(f, drafts.flat_tensors() | BIASES, attention_bias=True), "vllm", {},
    ),
    "absent-qk-norms": (
        lambda f: drafts.vllm(f, architectures=["Qwen3ForCausalLM"], model_type="qwen3"), "vllm", {},
    ),
    # Rotation and windows.
    "unknown-rope": (
        lambda f: drafts.vllm(f, rope_scaling={"rope_type": "proportional", "factor": 2.0}), "vllm", {},
    ),
    "rope-disagrees": (
        lambda f: drafts.vllm(f, rope_theta=1e4, rope_parameters={"rope_type": "default", "rope_theta": 1e6}),
        "vllm", {"VALUE": "1e6"},
    ),
    "nested-rope": (
        lambda f: layered(f, rope_parameters=NESTED_ROPE), "vllm", {"VALUE": "1e6"},
    ),
    "mrope": (
        lambda f: drafts.vllm(
            f, rope_theta=ABSENT,
            rope_scaling={"rope_type": "default", "rope_theta": 1e4, "mrope_section": SECTIONS},
        ),
        "speculators", {},
    ),
    "scaled-mrope": (
        lambda f: drafts.vllm(f, rope_theta=ABSENT, rope_scaling={**YARN, "mrope_section": SECTIONS}),
        "sglang", {},
    ),
    "partial-rotary": (lambda f: drafts.vllm(f, partial_rotary_factor=0.5), "speculators", {}),
    "mixed-windows": (two_layers, "vllm", {"N": "64"}),
    "window-unread": (lambda f: drafts.sglang(f, **SLIDING), "vllm", {}),
    "half-rotation-unread": (lambda f: mla.vllm(f, rope_interleave=False), "vllm", {}),
    "latent-rope": (
        lambda f: mla.sglang(f, rope_scaling={**mla.YARN, "type": "linear"}), "sglang", {},
    ),
    # Heads, tables, names.
    "missing-head": (
        lambda f: drafts.sglang(f, without(drafts.flat_tensors(), "lm_head.weight")), "vllm", {},
    ),
    "unused-head": (lambda f: drafts.sglang(f, tie_word_embeddings=True), "vllm", {}),
    "tied-head": (lambda f: drafts.sglang(f, tie_word_embeddings=True), "vllm", {}),
    "head-needs-target": (
        lambda f: drafts.sglang(f, without(drafts.flat_tensors(), *UNMAPPED), **TIED | {"draft_vocab_size": drafts.V}),
        "vllm", {},
    ),
    "embeddings-unverified": (lambda f: drafts.sglang(f), "speculators", {}),
    "no-verifier": (lambda f: drafts.sglang(f), "speculators", {"ORG/NAME": "org/target"}),
    # Numbers.
    "cast-overflow": (large, "vllm", {}),
    "dtype-disagrees": (lambda f: drafts.sglang(f, torch_dtype="bfloat16"), "vllm", {}),
    # Trainers.
    "rope-base-untold": (exported("torchspec/latent"), "vllm", {}),
    "trained-otherwise": (exported("eagle/theta"), "vllm", {"NAME": "eagle"}),
    "no-final-norm": (exported("specforge/no_norm_output"), "vllm", {}),
    "double-norm": (exported("modelopt/default"), "vllm", {}),
}  # fmt: skip
"""By code: a folder in which it arises, where that is converted to, and values for words in capitals."""

ELSEWHERE = {
    "embeddings-need-target": "test_embeddings.py",
    "engine-on-a-cpu": "of an engine",
    "engine-text": "of an engine",
    "half-rotation": "test_latent.py",
    "layers-not-tried": "of recordings",
    "local-path": "of a push",
    "needs-target": "test_latent.py",
    "not-a-draft": "the two folders change places",
    "quantised-cut": "test_quantised.py",
    "quantised-names-unsure": "test_quantised.py",
    "quantised-unmatched": "test_quantised.py",
    "target-embeddings": "test_embeddings.py",
    "target-window": "test_windows.py",
    "taps-not-recorded": "of recordings",
    "absolute-map": "test_folders.py",
    "map-looks-absolute": "test_folders.py",
    "misplaced-key": "test_folders.py",
    "mrope-sections": "test_folders.py",
    "sections-rescaled": "test_folders.py",
    "shifted-ids": "test_folders.py",
    "target-head-absent": "as that of head-needs-target",
    "target-unnamed": "test_releases.py",
    "verifier-name": "test_choices.py",
    "wrong-streams": "of recordings",
}
"""Codes whose advice is run by other tests, or is not for a conversion."""

BEFORE = {
    "cast-overflow": ("--dtype", "float16"),
    "mixed-windows": ("--set", "layers.windows=[8, 16]"),
}
"""What the user had said already."""

OTHERWISE = {("taps-out-of-range", "--target")}
"""Alternatives for a folder that is wrong in another way."""

_OPTION = re.compile(r"--(set|taps|trainer|allow|dtype|target-name|target)\b(?: ([^\s;,]+))?")
_CAPITALS = re.compile(r"\b[A-Z]+(?:/[A-Z]+)?$")


def advised(text):
    """The options that an advice names, as (option, word)."""
    found = [(f"--{option}", word.removesuffix(".")) for option, word in _OPTION.findall(text)]
    return [(option, word) for option, word in found if option != "--set" or "=" in word]


def said(option, word, values, target):
    """An advised option as a user gives it."""
    if option == "--target":
        return option, target
    if option == "--dtype" and word not in ("bfloat16", "float16", "float32"):
        word = "float32"
    return option, _CAPITALS.sub(lambda match: values[match[0]], word)


def found_in(words, code):
    """What a conversion says by this code."""
    result = CliRunner().invoke(app, [*map(str, words), "--json", "--overwrite"])
    assert result.exit_code in (0, 3), result.output
    findings = json.loads(result.stdout)["findings"]
    return [item for item in findings if item["code"] == code]


@pytest.mark.parametrize("code", CASES)
def test_an_advice_settles_what_was_found(code, tmp_path):
    build, destination, values = CASES[code]
    source = build(tmp_path / "draft")
    of_a_trainer = json.loads((source / "config.json").read_text()).get("hidden_size") == 32
    target = TRAINERS_TARGET if of_a_trainer else drafts.target(tmp_path / "target")
    command = (f"auto-to-{destination}", source, tmp_path / "out")
    first, *_ = found_in((*command, *BEFORE.get(code, ())), code)
    options = advised(first["fix"])
    assert options, first["fix"]
    for option, word in options:
        if (code, option) in OTHERWISE:
            continue
        words = said(option, word, values, target)
        left = found_in((*command, *words), code)
        # A loss that is allowed is still told.
        left = [item for item in left if option != "--allow" or item["severity"] == "error"]
        assert not left, (words, left)


def test_every_advice_with_an_option_is_run():
    advising = {
        code
        for code, row in CODES.items()
        if not code.startswith("serve-") and (advised(row.fix) or "--set" in row.fix)
    }
    assert advising - {*CASES, *ELSEWHERE} == set()
