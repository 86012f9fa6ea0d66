"""Attention of many drafts over one text: shared keys up to each one's start, and its own after it."""

from dataclasses import dataclass, field

import torch
from torch import Tensor

_SCORES = 1 << 22
"""Attention scores held at once; queries are taken in chunks so that they never exceed it."""


@dataclass
class LayerCache:
    """Keys and values of one layer: shared [B, kv, T, d] and, a step each, own [B, Q, kv, d].

    Values may have another width than keys.
    """

    keys: Tensor
    values: Tensor
    own_keys: list[Tensor] = field(default_factory=list)
    own_values: list[Tensor] = field(default_factory=list)


@dataclass
class Cache:
    """What the steps of B x Q drafts have left behind.

    Attributes:
        layers: keys and values of every layer.
        starts: [B, Q], the position p that each draft starts at.
        depth: steps taken; a query of the next one stands at position p + depth.
    """

    layers: list[LayerCache]
    starts: Tensor
    depth: int = 1

    def select(self, rows: Tensor, columns: Tensor) -> "Cache":
        """The drafts at ``[rows, columns]`` (both [B, Q'], rows as in ``arange(B)[:, None]``).

        The shared keys stay as they are: a draft never leaves its text.
        """
        layers = [
            LayerCache(
                layer.keys,
                layer.values,
                [own[rows, columns] for own in layer.own_keys],
                [own[rows, columns] for own in layer.own_values],
            )
            for layer in self.layers
        ]
        return Cache(layers, self.starts[rows, columns], self.depth)


def attend(
    q: Tensor, layer: LayerCache, starts: Tensor, window: int | None, *, moves: bool = True
) -> Tensor:
    """Attention of Q drafts a text: over the shared keys up to each one's start, and its own keys.

    Args:
        q: [B, Q, heads, d], scaled: their products with keys are the scores.
        layer: keys and values; own ones include the present step's.
        starts: [B, Q].
        window: positions that are seen, the current one included; None for all.
        moves: the window is that of each step's position; else that of its start, and own keys are all seen.

    Returns:
        [B, Q, heads, width of a value]. Scores exist for a chunk of queries at a time.
    """
    rows, queries, heads, _ = q.shape
    chunk = max(1, _SCORES // (rows * heads * max(1, layer.keys.shape[2])))
    parts = []
    for first in range(0, queries, chunk):
        piece = slice(first, first + chunk)
        own = [k[:, piece] for k in layer.own_keys], [v[:, piece] for v in layer.own_values]
        parts.append(_attend(q[:, piece], layer, own, starts[:, piece], window, moves=moves))
    return torch.cat(parts, dim=1) if parts else q


def _attend(
    q: Tensor,
    layer: LayerCache,
    own: tuple[list[Tensor], list[Tensor]],
    starts: Tensor,
    window: int | None,
    *,
    moves: bool,
) -> Tensor:
    rows, queries, heads, width = q.shape
    kv, depth = layer.keys.shape[1], len(own[0])
    used = int(starts.max()) + 1
    keys, values = layer.keys[:, :, :used], layer.values[:, :, :used]
    grouped = q.reshape(rows, queries, kv, heads // kv, width)
    flat = grouped.permute(0, 2, 3, 1, 4).reshape(rows, kv, -1, width)
    scores = (flat @ keys.transpose(2, 3)).view(rows, kv, heads // kv, queries, used)
    positions = torch.arange(used, device=q.device)
    hidden = positions > starts[..., None]
    if window is not None:
        hidden |= positions <= starts[..., None] + (depth if moves else 0) - window
    scores = scores.masked_fill(hidden[:, None, None], float("-inf"))
    if depth:
        scores = torch.cat(
            [scores, _own_scores(grouped, own[0], window if moves else None)], dim=-1
        )
    weights = scores.softmax(dim=-1, dtype=torch.float32).to(q.dtype)
    mixed = weights[..., :used].reshape(rows, kv, -1, used) @ values
    mixed = mixed.view(rows, kv, heads // kv, queries, -1).permute(0, 3, 1, 2, 4)
    if depth:
        mine = torch.stack(own[1], dim=3)
        mixed = mixed + torch.einsum("bkgqj,bqkjd->bqkgd", weights[..., used:], mine)
    result: Tensor = mixed.reshape(rows, queries, heads, -1)
    return result


def _own_scores(grouped: Tensor, keys: list[Tensor], window: int | None) -> Tensor:
    """Scores [B, kv, group, Q, depth] of own keys; the oldest may have left the window."""
    scores: Tensor = torch.einsum("bqkgd,bqkjd->bkgqj", grouped, torch.stack(keys, dim=3))
    if window is not None and window < len(keys):
        scores[..., : len(keys) - window] = float("-inf")
    return scores
