"""Two places where SGLang's latent attention (MLA) takes for granted that there is a GPU.

Its MLA draft class waits for the device after it was given the target's tables. And its rope factory for a CPU
knows DeepSeek's yarn alone: a plain rope gets what it gets on every other device, ``get_rope``, whose forward is
plain torch.
"""

import functools
from types import ModuleType
from typing import Any

from after_import import after_import

DRAFT = "sglang.srt.models.kimi_k25_eagle3"
ROPE = "sglang.srt.layers.rotary_embedding.factory"


def _do_not_wait(module: ModuleType) -> None:
    module.torch.cuda.synchronize = lambda *_: None


def _plain_rope(module: ModuleType) -> None:
    stock = module.get_rope_wrapper

    @functools.wraps(stock)
    def get_rope_wrapper(
        *args: Any, rope_scaling: Any = None, device: str | None = None, **kwargs: Any
    ) -> Any:
        device = device if rope_scaling else None
        return stock(*args, rope_scaling=rope_scaling, device=device, **kwargs)

    module.get_rope_wrapper = get_rope_wrapper


def install() -> None:
    """Change both, once they are imported."""
    after_import(DRAFT, _do_not_wait)
    after_import(ROPE, _plain_rope)
