"""`vllm_release` for drafts with latent attention (MLA): what is cached is expanded by the class's own ``kv_b_proj``.

No backend is asked for: on a CPU there is none in older releases, and a packing of weights in newer ones.
"""

import sys
from typing import Any

import draft_steps
import torch
import vllm_release

try:
    from vllm.model_executor.layers.attention import mla_attention
    from vllm.model_executor.layers.attention.mla_attention import MLAAttention
except ImportError:  # no draft class with it
    mla_attention = MLAAttention = None


class Attention(draft_steps.DraftAttention):
    """The one of the case that runs."""

    now: "Attention"

    def __init__(self) -> None:
        super().__init__()
        Attention.now = self


class Kernel(vllm_release.Absent):
    """What a backend would compute with: the layer's scale, on one device."""

    dcp_world_size = 1

    def __init__(self, *_: Any, scale: float = 0, **__: Any) -> None:
        self.scale = scale


class Backend(vllm_release.Absent):
    """None of vLLM's own."""

    def get_name(self) -> str:
        """Its name."""
        return "CPU_MLA"

    def get_impl_cls(self) -> type[Kernel]:
        """Its kernel."""
        return Kernel


def expand(
    layer: Any,
    query: torch.Tensor,
    latent: torch.Tensor,
    rotated: torch.Tensor,
    *_: Any,
    **__: Any,
) -> torch.Tensor:
    """Attention over keys and values of every head."""
    sizes = [layer.qk_nope_head_dim, layer.v_head_dim]
    expanded = layer.kv_b_proj(latent)[0].view(-1, layer.num_heads, sum(sizes))
    plain, value = expanded.split(sizes, dim=-1)
    key = torch.cat([plain, rotated.expand(-1, layer.num_heads, -1)], dim=-1)
    attention = Attention.now.attend(layer.layer_name, query, key, value, layer.impl.scale, 0)
    return attention.flatten(1)


if __name__ == "__main__":
    draft_steps.DraftAttention = Attention
    if MLAAttention is not None:
        mla_attention.get_attn_backend = lambda *_, **__: Backend()
        mla_attention.get_mla_prefill_backend = lambda *_, **__: Kernel
        MLAAttention.forward = expand
        MLAAttention.process_weights_after_loading = lambda *_, **__: None
    sys.exit(vllm_release.main())
