"""What every tensor of the output holds: its dtype, and zeros where a loader would leave chance."""

from dataclasses import replace

import numpy as np

from eagle3_interop.convert.decide.rewrites.work import SAFE, Tensor, Work
from eagle3_interop.convert.write.plan import Copy, Make, Rewrite
from eagle3_interop.schemas.parameters import MAPS, parameters, shapes

_FLOATS = frozenset(SAFE.values())


def choose_dtype(work: Work) -> Work:
    """Describe the network in the dtype that the user chose."""
    return work if work.options.dtype is None else work.describe(dtype=work.options.dtype)


def add_zeros(work: Work) -> Work:
    """Write out the zero biases that the destination creates and would leave uninitialised."""
    wanted = work.writing.zeros
    if not wanted:
        return work
    layers = work.draft.layers
    biased = layers.gqa.model_copy(update={"qkv_bias": True, "output_bias": True})
    layers = layers.model_copy(update={"attention": biased})
    sizes = shapes(work.draft.model_copy(update={"layers": layers}))
    for name in wanted:
        zeros = np.zeros(sizes[name], dtype=np.float32)
        work = work.put(name, Make(zeros, SAFE[work.draft.dtype]), "zeros")
    return work.say("zero-bias-added", wanted[0], f"{len(wanted)} tensors.")


def cast(work: Work) -> Work:
    """Cast every floating-point tensor to the dtype that the user chose."""
    if work.options.dtype is None:
        return work
    wanted = SAFE[work.options.dtype]
    kept = MAPS | {name for name, row in parameters(work.draft) if row.dtypes}
    changed = {
        name: _cast(tensor, wanted)
        for name, tensor in work.tensors.items()
        if name not in kept and tensor.dtype != wanted and tensor.dtype in _FLOATS
    }
    if not changed:
        return work
    work = replace(work, tensors={**work.tensors, **changed})
    return work.say("cast", "weights", f"{len(changed)} tensors to {work.options.dtype}.")


def _cast(tensor: Tensor, wanted: str) -> Tensor:
    note = f"{tensor.note}, {wanted}" if tensor.note else f"cast to {wanted}"
    if isinstance(tensor.op, Copy):
        return Tensor(Rewrite(tensor.op.source, dtype=wanted), note)
    return Tensor(replace(tensor.op, dtype=wanted), note)
