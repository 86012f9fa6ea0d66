"""Which releases are run on which folders: one feature a row, spelled by hand."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import random_drafts
import random_mla
from random_drafts import GRID, Spec, Tensors

LAYERS = 8
"""Of the target."""

VERSIONS = {
    "vllm": [
        "0.11.0",
        "0.11.2",
        "0.12.0",
        "0.13.0",
        "0.14.1",
        "0.15.1",
        "0.16.0",
        "0.17.1",
        "0.18.1",
        "0.19.0",
        "0.19.1",
        "0.20.2",
        "0.21.0",
        "0.22.1",
        "0.23.0",
        "0.24.0",
        "0.25.1",
        "0.26.0",
        "0.27.1",
        "0.28.0",
        "0.29.0",
        "0.30.0",
        "0.31.0",
        "0.32.0",
        "0.33.0",
    ],
    "sglang": [
        "0.5.3.post3",
        "0.5.4.post3",
        "0.5.5.post3",
        "0.5.6.post2",
        "0.5.7",
        "0.5.8.post1",
        "0.5.9",
        "0.5.10.post1",
        "0.5.11",
        "0.5.12.post1",
        "0.5.13.post1",
        "0.5.14",
        "0.5.15.post1",
        "0.5.16",
        "0.5.17",
        "0.5.18",
        "0.5.19",
        "0.5.20",
        "0.5.21",
        "0.5.22",
        "0.5.23",
    ],
}
"""Run by ``make releases``: the last patch of each, and those where a patch is another release."""

IN_CI = {"vllm": ("0.21.0", "0.24.0"), "sglang": ("0.5.11", "0.5.16")}
WHOLE = {
    "vllm": ("0.27.1", "0.30.0", "0.32.0"),
    "sglang": ("0.5.19", "0.5.20", "0.5.21", "0.5.22", "0.5.23"),
}
"""Whose whole engines run here."""

NOT_WHOLE = {
    "vllm": {"0.26.0": "it wants torch 2.11.0+cpu, which does not install here"},
    "sglang": {
        "0.5.17": "without AMX its draft verifies by torch_native, which is not made for that",
        "0.5.18": "the stand-ins do not carry its verification",
    },
}
"""Those before them that were tried, and why they do not."""

TO = {"vllm": "to vllm", "sglang": "to sglang"}
"""By engine the form that this project's own conversion writes for it."""

FORMS = {
    "vllm": ("vllm", "speculators", "sglang", TO["vllm"]),
    "sglang": ("sglang", TO["sglang"]),
}
FORM_TITLES = {
    "vllm": "vLLM's flat form",
    "speculators": "speculators' form",
    "sglang": "SGLang's flat form",
    "to vllm": "what `auto-to-vllm` writes",
    "to sglang": "what `auto-to-sglang` writes, with the plugin where it needs it",
}

Change = Callable[[dict[str, Any], Tensors], None]


@dataclass(frozen=True)
class Row:
    """A folder's feature.

    Attributes:
        spec: the draft.
        forms: in which it is written.
        change: made to config and tensors after that.
        core: CI runs it.
    """

    spec: Spec
    forms: tuple[str, ...] = ()
    change: Change = lambda _config, _tensors: None
    core: bool = False


def _no_ids(config: dict[str, Any], _tensors: Tensors) -> None:
    config.pop("eagle_aux_hidden_state_layer_ids", None)
    config.get("eagle_config", {}).pop("eagle_aux_hidden_state_layer_ids", None)


def _nested_ids(config: dict[str, Any], _tensors: Tensors) -> None:
    ids = config.pop("eagle_aux_hidden_state_layer_ids")
    config["eagle_config"] = {"eagle_aux_hidden_state_layer_ids": ids}


def _old_rope(config: dict[str, Any], _tensors: Tensors) -> None:
    rope = dict(config.pop("rope_parameters"))
    config["rope_theta"] = rope.pop("rope_theta")
    config["rope_scaling"] = None if rope["rope_type"] == "default" else rope


def _both_ropes(config: dict[str, Any], tensors: Tensors) -> None:
    rope = config["rope_parameters"]
    _old_rope(config, tensors)
    config["rope_parameters"] = rope


def _named_by_number(_config: dict[str, Any], tensors: Tensors) -> None:
    for name in list(tensors):
        tensors[name.replace("midlayer.", "layers.0.")] = tensors.pop(name)


def _identity_map(config: dict[str, Any], tensors: Tensors) -> None:
    tensors["d2t"] = np.zeros(config["draft_vocab_size"], np.int64)


def _parallel(key: str) -> Change:
    """All tokens in one pass (P-EAGLE), the mask token under this key; speculators has one of its own."""

    def change(config: dict[str, Any], tensors: Tensors) -> None:
        width = tensors["fc.weight"].shape[1]
        tensors["mask_hidden"] = np.random.default_rng(3).standard_normal((1, 1, width))
        tensors["mask_hidden"] = tensors["mask_hidden"].astype(np.float32)
        if "speculators_model_type" in config:
            config["speculators_model_type"] = config["speculators_config"]["algorithm"] = "peagle"
            config |= {"architectures": ["PEagleDraftModel"], "mask_token_id": 4}
        else:
            config[key] = 4

    return change


MILLION = {"rope_parameters": {"rope_type": "default", "rope_theta": 1e6}}
FLAT = ("vllm", "sglang")
ALL_ON = {"fc_norm": True, "norm_output": True}

CORE = {
    "one llama layer",
    "two layers",
    "norm_before_residual",
    "norm_before_fc",
    "fc_norm",
    "norm_output",
    "four taps",
    "two taps",
    "own embeddings",
    "full vocabulary",
    "no fc",
    "qwen3 layer",
}

ROWS = {
    **{name: Row(spec, core=name in CORE) for name, spec in GRID.items()},
    **{name: Row(spec) for name, spec in random_mla.GRID.items()},
    "MLA, rope theta of a million, old keys": Row(
        random_mla.GRID["MLA, rope theta of a million"], change=_old_rope
    ),
    "MLA, yarn, old keys": Row(random_mla.GRID["MLA, yarn"], change=_old_rope),
    "the default triple, no ids": Row(Spec(taps=(2, 4, 5)), change=_no_ids, core=True),
    "ids in eagle_config alone": Row(Spec(), ("vllm",), _nested_ids, core=True),
    "tap after the last layer": Row(Spec(taps=(1, 3, LAYERS))),
    "layers.0 for midlayer": Row(Spec(), ("sglang",), _named_by_number, core=True),
    "full vocabulary and its d2t": Row(Spec(draft_vocab=random_drafts.V), FLAT, _identity_map),
    "rope theta of a million, old keys": Row(Spec(decoder=MILLION), FLAT, _old_rope, core=True),
    "rope theta of a million, old and new keys": Row(Spec(decoder=MILLION), FLAT, _both_ropes),
    "yarn rope, old keys": Row(GRID["yarn rope"], FLAT, _old_rope),
    "P-EAGLE": Row(Spec(), ("vllm", "speculators"), _parallel("ptd_token_id")),
    "P-EAGLE, mask_token_id": Row(Spec(), ("vllm",), _parallel("mask_token_id")),
    "P-EAGLE, pard_token": Row(Spec(), ("vllm",), _parallel("pard_token")),
    "P-EAGLE, two layers, norm_before_residual": Row(
        Spec(layers=2, flags={"norm_before_residual": True}),
        ("vllm", "speculators"),
        _parallel("ptd_token_id"),
    ),
    "P-EAGLE, norm_before_fc": Row(
        Spec(flags={"norm_before_fc": True}), ("vllm", "speculators"), _parallel("ptd_token_id")
    ),
    "P-EAGLE, fc_norm": Row(
        Spec(flags={"fc_norm": True}), ("vllm", "speculators"), _parallel("ptd_token_id")
    ),
    "P-EAGLE, four taps": Row(
        Spec(taps=(1, 2, 4, 5)), ("vllm", "speculators"), _parallel("ptd_token_id")
    ),
    "all on": Row(
        Spec(layers=2, taps=(1, 2, 4, 5), flags=ALL_ON),
        core=True,
    ),
    "all on, residual after the norm": Row(
        Spec(
            random_drafts.NO_SGLANG,
            kind="qwen3",
            layers=2,
            taps=(1, 2, 4, 5),
            flags={**ALL_ON, "norm_before_residual": True},
            own_embeddings=True,
        ),
        core=True,
    ),
}
