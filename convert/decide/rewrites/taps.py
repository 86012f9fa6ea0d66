"""The order of the target's hidden states, and of the two halves that layer 0 takes."""

from typing import Any

import numpy as np

from eagle3_interop.convert.decide.rewrites.work import Work
from eagle3_interop.convert.write.plan import Make, Rewrite

_CONCATENATED = ("fc.weight", "input_norm.weight")
"""Tensors whose columns are fc's blocks, one a tap."""

Groups = tuple[tuple[int, ...], ...]


def exchange_halves(work: Work) -> Work:
    """Put [hidden, embedding] into the order that every framework feeds, where a diagnosis found it."""
    for name in work.loaded.exchanged:
        halves = Rewrite(work.loaded.stored(name), blocks=((1,), (0,)))
        work = work.put(name, halves, "halves exchanged")
        work = work.say("halves-exchanged", name, "its halves of columns changed places.")
    return work


def order_taps(work: Work) -> Work:
    """Bring fc's blocks into the order that engines feed: ascending, each tap once."""
    taps, fc = work.draft.taps, work.draft.fc
    if taps is None or fc is None or list(taps) == sorted(set(taps)):
        return work
    fed = sorted(set(taps))
    groups = tuple(tuple(i for i, tap in enumerate(taps) if tap == one) for one in fed)
    merged = len(fed) < len(taps)
    if merged and fc.input_norm:
        message = f"taps {list(taps)} repeat one under norm_before_fc."
        raise work.refused("taps-unmergeable", "taps", message)
    scale = _block_scales(work, groups) if merged and fc.block_norms else None
    note = f"blocks {', '.join('+'.join(map(str, group)) for group in groups)}"
    message = f"from taps {list(taps)} to {fed}: {note}."
    for name in _CONCATENATED:
        if name in work.tensors:
            factors = scale if name == "fc.weight" else None
            op = Rewrite(work.loaded.stored(name), scale=factors, blocks=groups)
            work = work.put(name, op, note)
    if fc.block_norms:
        work = _order_block_norms(work, groups)
    work = work.say("taps-merged" if merged else "taps-permuted", "fc.weight", message)
    return work.describe(taps=tuple(fed), fc=fc.model_copy(update={"blocks": len(fed)}))


def _block_scales(work: Work, groups: Groups) -> np.ndarray[Any, Any]:
    """Norm weights of every block that is merged, as factors on fc's columns; ones elsewhere."""
    width, loaded = work.draft.target.hidden_size, work.loaded
    scale = np.ones(width * sum(map(len, groups)), dtype=np.float32)
    for block in (block for group in groups if len(group) > 1 for block in group):
        values = loaded.checkpoint.values(loaded.reading.names[_norm(block)])
        scale[block * width : (block + 1) * width] = values.astype(np.float32)
    return scale


def _order_block_norms(work: Work, groups: Groups) -> Work:
    """Each block's norm follows it; those of merged blocks were folded into fc, and ones stand there."""
    old = work.tensors
    work = work.without(*(_norm(block) for group in groups for block in group))
    for new, group in enumerate(groups):
        tensor = old[_norm(group[0])]
        if len(group) > 1:
            ones = np.ones(work.draft.target.hidden_size, dtype=np.float32)
            op = Make(ones, work.loaded.stored(_norm(group[0])).dtype)
            work = work.put(_norm(new), op, "folded into fc")
        else:
            note = tensor.note if group[0] == new else f"was block {group[0]}"
            work = work.put(_norm(new), tensor.op, note)
    return work


def _norm(block: int) -> str:
    return f"fc_norm.{block}.weight"
