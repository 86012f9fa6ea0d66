"""A row of the registry of findings."""

from dataclasses import dataclass
from typing import Literal

Severity = Literal["error", "warning", "note"]
Effect = Literal["does-not-load", "computes-otherwise"]

PLUGIN = "Serve with the SGLang plugin, or with vLLM, which compute it."
WITH_PLUGIN = (
    "Install this package where SGLang runs (pip install eagle3-interop), and start SGLang with "
    "SGLANG_EXTERNAL_MODEL_PACKAGE=eagle3_interop.sglang_plugin."
)
ELSEWHERE = "Convert it for a framework that computes it, which eagle3-convert inspect names."


@dataclass(frozen=True)
class Code:
    """What is known of every finding with one code.

    Attributes:
        severity: an ``error`` refuses; a ``warning`` may cost acceptance; a ``note`` records a choice.
        meaning: what it means for acceptance.
        fix: the way out.
        effect: what it means for a reader that is run on this very folder: it does not load it, or it computes
            something else than the description says (a table left uninitialised, the target's window).
        effect_in: the one reader that has this effect; every one that says so, where empty.
        mended_by: the code of the finding that a writer says when its output no longer has this fault.
        answered_by_search: an error that does not hinder a diagnosis, whose search answers what it asks.
        tells_of_plugin: it says for which parts of the network SGLang needs the plugin.
        left_over: a tensor is in the file that the reader's class does not have.
        leaves_unwired: after it the config names no wiring that could be run.
        asks_for_target: whether a release runs the folder depends on the target, which nothing names.
        lists_extras: it lists the keys that are carried over, and is said anew where some are not.
    """

    severity: Severity
    meaning: str
    fix: str = ""
    effect: Effect | None = None
    effect_in: str = ""
    mended_by: str = ""
    answered_by_search: bool = False
    tells_of_plugin: bool = False
    left_over: bool = False
    leaves_unwired: bool = False
    asks_for_target: bool = False
    lists_extras: bool = False
