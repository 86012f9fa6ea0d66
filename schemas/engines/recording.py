"""Which releases of the engines hand hidden states out, and with which flags.

Sources: SGLang 0.5.23 ``arg_groups/fields/exec_.py``, ``validation_hook.py`` ``handle_aux_hidden_state_capture``,
``managers/scheduler_components/output_streamer.py``; vLLM 0.32 ``v1/spec_decode/extract_hidden_states.py`` and the
``ExampleHiddenStatesConnector``.
"""

import re
from collections.abc import Sequence

SGLANG_SINCE = "0.5.23"
"""``--enable-return-aux-hidden-states`` (0.5.22 does not know it)."""

VLLM_SINCE = "0.32"
"""``extract_hidden_states`` with its connector's file form as it is read here."""

PIPELINE = ("pp-size", "pipeline-parallel-size")
"""Flags of pipeline parallelism, whose first ranks' layers no recorder sees."""

VLLM_CONNECTOR = "ExampleHiddenStatesConnector"


def at_least(version: str, wanted: str) -> bool:
    """Whether a release is this one or a later one, by its leading numbers."""
    return _numbers(version) >= _numbers(wanted)


def _numbers(version: str) -> tuple[int, ...]:
    found = re.match(r"\d+(?:\.\d+)*", version)
    return tuple(map(int, found[0].split("."))) if found else ()


def sglang_flags(ids: Sequence[int]) -> list[str]:
    """What makes SGLang return the hidden states at these ids, of every token.

    A cached prefix is not computed again, and what an unfinished chunk computed is dropped: both are off.
    """
    return [
        "--enable-return-aux-hidden-states",
        "--speculative-algorithm=EAGLE3",
        "--return-aux-hidden-state-layer-ids",
        *map(str, ids),
        *_WHOLE,
    ]


def sglang_last_flags() -> list[str]:
    """What makes SGLang return the last hidden state, after the norm, of every token."""
    return ["--enable-return-hidden-states", *_WHOLE]


_WHOLE = ("--disable-radix-cache", "--chunked-prefill-size=-1")


def vllm_settings(taps: Sequence[int], folder: str) -> dict[str, dict[str, object]]:
    """The two settings that make vLLM write hidden states into a folder; its ids are taps."""
    return {
        "speculative_config": {
            "method": "extract_hidden_states",
            "num_speculative_tokens": 1,
            "draft_model_config": {
                "hf_config": {"eagle_aux_hidden_state_layer_ids": list(taps)},
            },
        },
        "kv_transfer_config": {
            "kv_connector": VLLM_CONNECTOR,
            "kv_role": "kv_producer",
            "kv_connector_extra_config": {"shared_storage_path": folder},
        },
    }
