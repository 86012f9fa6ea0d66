"""Attention over the paged key/value buffers: ``decode`` for one query a row, ``extend`` for many.

Shapes: queries and outputs ``[tokens, heads, head_dim]``, buffers ``[slots, kv_heads, head_dim]``;
``req_to_token`` holds, for each row of the request pool, the buffer slot of each position. A window
of ``W > 0`` lets a query at position ``p`` see the positions ``p - W + 1 .. p``; ``W <= 0`` means
no window (SGLang passes its ``sliding_window_size + 1``, and its size counts only the positions
before the query).
"""

# ruff: noqa: ARG001 - the signatures are SGLang's

from collections.abc import Callable
from typing import Any

import torch


def decode_attention(
    q: torch.Tensor,
    k_buffer: torch.Tensor,
    v_buffer: torch.Tensor,
    k_scale: float,
    v_scale: float,
    out: torch.Tensor,
    k: torch.Tensor | None,
    v: torch.Tensor | None,
    loc: torch.Tensor,
    attn_logits: torch.Tensor,
    req_to_token: torch.Tensor,
    req_pool_indices: torch.Tensor,
    seq_lens: torch.Tensor,
    sm_scale: float,
    logit_cap: float,
    is_cross_attention: bool = False,
    window: int = 0,
    encoder_lens: torch.Tensor | None = None,
    sinks: torch.Tensor | None = None,
) -> None:
    """Store each row's new key and value, then let its query see the row's whole sequence."""
    _refuse(is_cross_attention, sinks, k_scale, v_scale)
    if k is not None and v is not None:
        k_buffer[loc] = k.view(-1, *k_buffer.shape[1:]).to(k_buffer.dtype)
        v_buffer[loc] = v.view(-1, *v_buffer.shape[1:]).to(v_buffer.dtype)
    for row, (request, length) in enumerate(
        zip(req_pool_indices.tolist(), seq_lens.tolist(), strict=True)
    ):
        first = max(0, length - window) if window > 0 else 0
        slots = req_to_token[request, first:length].long()
        out[row] = _attend(
            q[row : row + 1], k_buffer[slots], v_buffer[slots], sm_scale, logit_cap, None
        )[0]


def extend_attention(
    q: torch.Tensor,
    k: torch.Tensor | None,
    v: torch.Tensor | None,
    out: torch.Tensor,
    k_buffer: torch.Tensor,
    v_buffer: torch.Tensor,
    k_scale: float,
    v_scale: float,
    req_to_token: torch.Tensor,
    req_pool_indices: torch.Tensor,
    seq_lens: torch.Tensor,
    extend_seq_lens: torch.Tensor,
    extend_start_loc: torch.Tensor,
    max_extend_len: int,
    sm_scale: float,
    logit_cap: float,
    is_cross_attention: bool = False,
    window: int = 0,
    encoder_lens: torch.Tensor | None = None,
    sinks: torch.Tensor | None = None,
    tree_mask: torch.Tensor | None = None,
    causal: bool = True,
) -> None:
    """Let the last ``extend_seq_lens`` tokens of each row see its prefix and each other.

    The new keys and values lie in the buffers already, but for the first pass of latent attention (MLA): it
    computes with expanded ones, which are the call's own. ``tree_mask`` (flat ``[rows, new, new]``)
    says which new token sees which; a token's position is then its depth in the tree, which is what
    the window is counted in.
    """
    _refuse(is_cross_attention, sinks, k_scale, v_scale)
    rows = zip(
        req_pool_indices.tolist(),
        seq_lens.tolist(),
        extend_seq_lens.tolist(),
        extend_start_loc.tolist(),
        strict=True,
    )
    for row, (request, length, new, start) in enumerate(rows):
        if not new:
            continue
        prefix = length - new
        slots = req_to_token[request, :length].long()
        keys, values = k_buffer[slots], v_buffer[slots]
        if k is not None and k.shape[1:] != k_buffer.shape[1:]:
            if prefix:
                raise NotImplementedError("expanded latents behind a prefix that is cached")
            keys, values = k[start : start + new], v[start : start + new]
        if tree_mask is not None:
            among_new = tree_mask.view(-1, new, new)[row].bool()
            depth = among_new.sum(-1) - 1
        else:
            among_new = torch.ones(new, new, dtype=torch.bool)
            among_new = among_new.tril() if causal else among_new
            depth = torch.arange(new)
        visible = torch.cat([torch.ones(new, prefix, dtype=torch.bool), among_new], dim=1)
        if window > 0:
            key_positions = torch.cat([torch.arange(prefix), prefix + depth])
            visible &= (prefix + depth)[:, None] - key_positions < window
        out[start : start + new] = _attend(
            q[start : start + new], keys, values, sm_scale, logit_cap, visible
        )


def without_scales(operator: Callable[..., None], at: int) -> Callable[..., None]:
    """The operator as SGLang called it before 0.5.20: without ``k_scale`` and ``v_scale``, which stand here now."""

    def call(*given: Any) -> None:
        operator(*given[:at], 1.0, 1.0, *given[at:])

    return call


def _attend(
    q: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    scale: float,
    cap: float,
    visible: torch.Tensor | None,
) -> torch.Tensor:
    """Grouped-query attention in float32; ``visible`` is ``[queries, keys]``, None for all."""
    group = q.shape[1] // keys.shape[1]
    keys = keys.float().repeat_interleave(group, dim=1)
    values = values.float().repeat_interleave(group, dim=1)
    scores = torch.einsum("qhd,khd->hqk", q.float(), keys) * scale
    if cap > 0:
        scores = cap * torch.tanh(scores / cap)
    if visible is not None:
        scores = scores.masked_fill(~visible, float("-inf"))
    return torch.einsum("hqk,khd->qhd", scores.softmax(-1), values).to(q.dtype)


def _refuse(
    is_cross_attention: bool, sinks: torch.Tensor | None, k_scale: float, v_scale: float
) -> None:
    """Fail loudly on what no target or draft of the tests needs."""
    if is_cross_attention or sinks is not None or k_scale != 1.0 or v_scale != 1.0:
        raise NotImplementedError("cross attention, attention sinks or scaled key/value caches")
