"""The order of the target's hidden states, and of the two halves that layer 0 takes."""

from typing import Any

import numpy as np

from eagle3_interop.convert.decide.rewrites.quantised import whole
from eagle3_interop.convert.decide.rewrites.work import Work
from eagle3_interop.convert.write.plan import Make, Rewrite
from eagle3_interop.schemas.parameters import ENTRY, TAPS, along, numbered, scheme_of

_SUMMED = "fc.weight"
"""The projection of the taps: blocks of its columns that read the same stream can be added up."""

Groups = tuple[tuple[int, ...], ...]


def exchange_halves(work: Work) -> Work:
    """Put [hidden, embedding] into the order that every framework feeds, where a diagnosis found it."""
    if work.loaded.exchanged:
        whole(work, ENTRY, "the halves of layer 0's input change places")
    for name in along(work.draft, ENTRY) if work.loaded.exchanged else ():
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
    divided = [name for name in along(work.draft, TAPS) if name in work.tensors]
    whole(work, TAPS, "the blocks of fc are put in order")
    if merged and scheme_of(work.draft, _SUMMED) is not None:
        message = (
            f"taps {list(taps)} repeat one, and blocks of quantised numbers cannot be added up."
        )
        raise work.refused("quantised-cut", _SUMMED, message)
    if merged and (kept := [name for name in divided if name != _SUMMED]):
        message = f"taps {list(taps)} repeat one, and blocks of {kept[0]} cannot be added up."
        raise work.refused("taps-unmergeable", "taps", message)
    scale = _block_scales(work, groups) if merged and fc.block_norms else None
    note = f"blocks {', '.join('+'.join(map(str, group)) for group in groups)}"
    message = f"from taps {list(taps)} to {fed}: {note}."
    for name in divided:
        factors = scale if name == _SUMMED else None
        op = Rewrite(work.loaded.stored(name), scale=factors, blocks=groups)
        work = work.put(name, op, note)
    if fc.block_norms:
        work = _order_block_norms(work, groups)
    work = work.say("taps-merged" if merged else "taps-permuted", "fc.weight", message)
    return work.describe(taps=tuple(fed), fc=fc.model_copy(update={"blocks": len(fed)}))


def _block_scales(work: Work, groups: Groups) -> np.ndarray[Any, Any]:
    """Norm weights of every block that is merged, as factors on fc's columns; ones elsewhere."""
    width, loaded, norms = work.draft.target.hidden_size, work.loaded, _norms(work)
    scale = np.ones(width * sum(map(len, groups)), dtype=np.float32)
    for block in (block for group in groups if len(group) > 1 for block in group):
        values = loaded.checkpoint.values(loaded.reading.names[norms[block]])
        scale[block * width : (block + 1) * width] = values.astype(np.float32)
    return scale


def _order_block_norms(work: Work, groups: Groups) -> Work:
    """Each block's norm follows it; those of merged blocks were folded into fc, and ones stand there."""
    old, norms = work.tensors, _norms(work)
    work = work.without(*norms)
    for new, group in enumerate(groups):
        first = norms[group[0]]
        tensor = old[first]
        if len(group) > 1:
            ones = np.ones(work.draft.target.hidden_size, dtype=np.float32)
            op = Make(ones, work.loaded.stored(first).dtype)
            work = work.put(norms[new], op, "folded into fc")
        else:
            note = tensor.note if group[0] == new else f"was block {group[0]}"
            work = work.put(norms[new], tensor.op, note)
    return work


def _norms(work: Work) -> list[str]:
    """The name of each block's norm."""
    return [name for (name,) in numbered(work.draft, TAPS)]
