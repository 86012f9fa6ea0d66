"""Writes down what SGLang does not print: which layers' inputs feed the draft.

With ``EAGLE3_ENGINE_REPORT=FILE`` in the environment, the function that configures the capture is
wrapped; it is called as it is, and what it then left on the target model is written to the file as
JSON.
"""

# ruff: noqa: ARG002 - the signatures are the import system's

import functools
import importlib.abc
import importlib.machinery
import json
import os
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

REPORT = "EAGLE3_ENGINE_REPORT"
MODULE = "sglang.srt.model_executor.model_runner_components.attention_backend_setup"


class _Observer(importlib.abc.MetaPathFinder):
    """Lets one module load as it always does, then wraps one function in it."""

    def find_spec(
        self, name: str, path: Any = None, target: Any = None
    ) -> importlib.machinery.ModuleSpec | None:
        if name != MODULE:
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path)
        execute = spec.loader.exec_module

        def execute_and_wrap(module: ModuleType) -> None:
            execute(module)
            configure = module.configure_aux_hidden_state_capture
            module.configure_aux_hidden_state_capture = _reporting(configure)

        spec.loader.exec_module = execute_and_wrap
        return spec


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
        sys.meta_path.insert(0, _Observer())
