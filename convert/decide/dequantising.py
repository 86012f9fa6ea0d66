"""A quantised draft as the plain one that it stands for: what the reference computes, and ``--dequantize`` writes."""

from collections.abc import Mapping
from dataclasses import replace

from eagle3_interop.convert.decide.loaded import Loaded
from eagle3_interop.convert.decide.rewrites.work import SAFE
from eagle3_interop.convert.read.decoded import Decoded
from eagle3_interop.convert.read.stored import Stored
from eagle3_interop.schemas.dialects.quantised import KEY
from eagle3_interop.schemas.findings import finding
from eagle3_interop.schemas.parameters import Shape, shapes
from eagle3_interop.schemas.quantisation import Scheme

_INPUTS = "What their inputs are rounded to at each pass is no part of it."


def dequantised(loaded: Loaded) -> Loaded:
    """The same source, its quantised weights plain; itself where there are none."""
    quantisation = loaded.reading.draft.quantisation
    if quantisation is None:
        return loaded
    draft = loaded.reading.draft.model_copy(update={"quantisation": None})
    names, stored = dict(loaded.reading.names), dict(loaded.checkpoint.stored)
    wanted, dtype = shapes(draft), SAFE[draft.dtype]
    for module, scheme in quantisation.modules.items():
        weight = f"{module}.weight"
        path, plain = _plain(module, scheme, names, stored, wanted[weight], dtype)
        for name, part in plain.parts:
            del names[f"{module}.{name}"], stored[part.name]
        names[weight], stored[path] = path, plain
    rounded = any(scheme.input_activations for scheme in quantisation.modules.values())
    rounded = rounded or quantisation.method == "modelopt"
    message = f"{len(quantisation.modules)} quantised matrices were taken as the {draft.dtype} numbers that they stand for ({quantisation})."
    said = finding("dequantised", "weights", f"{message} {_INPUTS}" if rounded else message)
    reading = replace(
        loaded.reading,
        draft=draft,
        names=names,
        findings=(*loaded.reading.findings, said),
        extras={key: value for key, value in loaded.reading.extras.items() if key != KEY},
    )
    return replace(loaded, checkpoint=replace(loaded.checkpoint, stored=stored), reading=reading)


def _plain(
    module: str,
    scheme: Scheme,
    names: Mapping[str, str],
    stored: Mapping[str, Stored],
    shape: Shape,
    dtype: str,
) -> tuple[str, Decoded]:
    """What a plain weight is called beside the others of its file, and where its parts lie."""
    parts = tuple(
        (piece.suffix, stored[names[f"{module}.{piece.suffix}"]]) for piece in scheme.pieces
    )
    holder = dict(parts)[scheme.holder]
    path = holder.name.removesuffix(scheme.holder) + "weight"
    place = (holder.file, holder.name, dtype, shape, holder.start, holder.stop)
    return path, Decoded(*place, parts=parts, scheme=scheme)
