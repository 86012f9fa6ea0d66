"""A stand-in for SGLang's compiled CPU kernels, in plain torch.

SGLang 0.5.23 with ``SGLANG_USE_CPU_ENGINE=1`` imports these names from ``sgl_kernel`` and calls
these two operators. What each must compute is defined by how SGLang calls it; speed and numerics of
the compiled ones are not reproduced.
"""

from importlib import metadata

import torch

from sgl_kernel import allreduce, attention
from sgl_kernel.cache import (
    assign_draft_cache_locs_contiguous_cpu,
    assign_extend_cache_locs_cpu,
    assign_req_to_token_pool_cpu,
    build_draft_decode_metadata_cpu,
    copy_all_layer_kv_cache_cpu,
    fill_accept_out_cache_loc_cpu,
)
from sgl_kernel.tree import (
    build_tree_kernel_efficient_cpu,
    fill_bonus_tokens_cpu,
    rotate_input_ids_cpu,
    verify_tree_greedy_cpu,
)

__version__ = "0.0.0+plain.torch"
__all__ = [
    "allreduce",
    "assign_draft_cache_locs_contiguous_cpu",
    "assign_extend_cache_locs_cpu",
    "assign_req_to_token_pool_cpu",
    "build_draft_decode_metadata_cpu",
    "build_tree_kernel_efficient_cpu",
    "copy_all_layer_kv_cache_cpu",
    "fill_accept_out_cache_loc_cpu",
    "fill_bonus_tokens_cpu",
    "rotate_input_ids_cpu",
    "verify_tree_greedy_cpu",
]

# SGLang takes AMX paths only where `convert_weight_packed` exists beside these: it must stay
# undefined.
decode, extend = attention.decode_attention, attention.extend_attention
try:
    passes_scales = tuple(map(int, metadata.version("sglang").split(".")[:3])) >= (0, 5, 20)
except metadata.PackageNotFoundError:  # without an engine, as test_stand_ins.py imports it
    passes_scales = True
if not passes_scales:
    decode, extend = attention.without_scales(decode, 3), attention.without_scales(extend, 6)
torch.ops.sgl_kernel.decode_attention_cpu = decode
torch.ops.sgl_kernel.extend_attention_cpu = extend
