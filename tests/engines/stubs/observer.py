"""Writes down what SGLang does not print: which layers' inputs feed the draft.

With ``EAGLE3_ENGINE_REPORT=FILE`` in the environment, the function that configures the capture is
wrapped; it is called as it is, and what it then left on the target model is written to the file as
JSON.
"""

import functools
import json
import os
from pathlib import Path
from types import ModuleType
from typing import Any

from after_import import after_import

REPORT = "EAGLE3_ENGINE_REPORT"
MODULE = "sglang.srt.model_executor.model_runner_components.attention_backend_setup"


def _observe(module: ModuleType) -> None:
    configure = module.configure_aux_hidden_state_capture
    module.configure_aux_hidden_state_capture = _reporting(configure)


def _reporting(configure: Any) -> Any:
    @functools.wraps(configure)
    def configure_and_report(*, model: Any, **kwargs: Any) -> None:
        configure(model=model, **kwargs)
        layers = getattr(getattr(model, "model", None), "layers_to_capture", None)
        if layers and kwargs.get("eagle_use_aux_hidden_state"):
            Path(os.environ[REPORT]).write_text(json.dumps({"aux_layers": list(layers)}))

    return configure_and_report


def install() -> None:
    """Observe, if the environment asks for it."""
    if os.environ.get(REPORT):
        after_import(MODULE, _observe)
