"""Layers that SGLang up to 0.5.9 takes from vLLM where there are no kernels: its own, in torch, instead."""

import sys
import types
from importlib import metadata
from typing import Any

TAKES_FROM_VLLM = tuple(f"0.5.{patch}" for patch in range(3, 10))


class Own(types.ModuleType):
    """A module of vLLM's that answers with SGLang's classes of the same names."""

    def __getattr__(self, name: str) -> Any:
        """Look where SGLang itself defines it, which is the module that is being imported."""
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(sys.modules[f"sglang.srt.layers.{self.__name__}"], name)


if metadata.version("sglang").partition(".post")[0] in TAKES_FROM_VLLM:
    for package in ("vllm", "vllm.model_executor", "vllm.model_executor.layers"):
        sys.modules[package] = types.ModuleType(package)
        sys.modules[package].__path__ = []
    kernels = sys.modules["vllm._custom_ops"] = types.ModuleType("vllm._custom_ops")
    kernels.rotary_embedding = kernels.rms_norm = kernels.fused_add_rms_norm = None  # never called
    for layers in ("layernorm", "activation"):
        sys.modules[f"vllm.model_executor.layers.{layers}"] = Own(layers)
