"""What a release of vLLM forgot on a CPU; a rig calls this before it starts the engine."""

import inspect
from collections.abc import Callable
from typing import Any

import vllm


def complete() -> None:
    """Let vLLM 0.30 verify drafts and draft chains by its own C++ kernels.

    Its CPU runner puts C++ kernels in the place of Triton's; five of them under names that nobody reads any more, so
    that the first verification raises "Cannot inspect kernel parameters". Here they get to who does.
    """
    if not vllm.__version__.startswith("0.30."):
        return
    from vllm.utils import cpu_triton_utils
    from vllm.v1.sample import rejection_sampler
    from vllm.v1.spec_decode import utils

    for module in (rejection_sampler, utils):
        for owner in vars(module).values():
            forgotten = getattr(owner, "kernel", None)
            own = getattr(cpu_triton_utils, getattr(forgotten, "__name__", ""), None)
            if inspect.isfunction(forgotten) and own is not None:
                owner.kernel = type(own)(_called_as(forgotten, own.func))


def _called_as(forgotten: Callable[..., None], own: Callable[..., None]) -> Callable[..., None]:
    """A kernel, its arguments named as those of another one, in whose order they stand."""
    signature = inspect.signature(forgotten)

    def call(**given: Any) -> None:
        own(*(given[name] for name in signature.parameters))

    call.__signature__ = signature
    return call
