"""From a network and a destination to its tensors, one by one: a list of exact rewrites."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from eagle3_interop.convert.decide.loaded import Loaded
from eagle3_interop.convert.decide.rewrites.maps import settle_maps
from eagle3_interop.convert.decide.rewrites.pages import compare_kv_shape
from eagle3_interop.convert.decide.rewrites.quantised import write_lists
from eagle3_interop.convert.decide.rewrites.rope import check_rope, raise_positions
from eagle3_interop.convert.decide.rewrites.rotation import pair_neighbours
from eagle3_interop.convert.decide.rewrites.tables import (
    own_head,
    replace_embeddings,
    settle_embeddings,
)
from eagle3_interop.convert.decide.rewrites.taps import exchange_halves, order_taps
from eagle3_interop.convert.decide.rewrites.values import add_zeros, cast, choose_dtype
from eagle3_interop.convert.decide.rewrites.work import Work, begin, write
from eagle3_interop.convert.write.plan import Copy, Output
from eagle3_interop.schemas.dialects.base import Writing
from eagle3_interop.schemas.draft import Draft
from eagle3_interop.schemas.findings import Finding, Refused, errors, unmended
from eagle3_interop.schemas.options import Options
from eagle3_interop.schemas.parameters import shapes

REWRITES: tuple[Callable[[Work], Work], ...] = (
    exchange_halves,
    order_taps,
    pair_neighbours,
    raise_positions,
    check_rope,
    settle_embeddings,
    choose_dtype,
    own_head,
    write,
    write_lists,
    settle_maps,
    add_zeros,
    cast,
    compare_kv_shape,
    replace_embeddings,
)
"""In this order. Before `write` stands what the config speaks of; after it, what the writer asks of the tensors."""


@dataclass(frozen=True)
class Fitted:
    """A network in a destination's dialect.

    Attributes:
        draft: the network as the destination's own loader shall read it back.
        writing: the destination's config and names.
        outputs: every tensor of the output, in the order of the source.
        findings: everything said since the source was opened.
    """

    draft: Draft
    writing: Writing
    outputs: tuple[Output, ...]
    findings: tuple[Finding, ...]


def fit(loaded: Loaded, destination: str, options: Options) -> Fitted:
    """Decide how a destination writes this network, tensor by tensor.

    Args:
        loaded: the source, checked.
        destination: a layout's name.
        options: the user's.

    Returns:
        The destination's config and tensors.

    Raises:
        Refused: the destination cannot express the network exactly.
    """
    work = begin(loaded, destination, options)
    for rewrite in REWRITES:
        work = rewrite(work)
    findings = tuple(unmended(dict.fromkeys((*work.findings, *work.writing.findings))))
    if errors(findings):
        raise Refused(findings)
    return Fitted(work.draft, work.writing, tuple(_outputs(work)), findings)


def _outputs(work: Work) -> Iterator[Output]:
    wanted, writing = shapes(work.draft), work.writing
    for canonical, tensor in work.tensors.items():
        stored = work.loaded.reading.names.get(canonical)
        copied = isinstance(tensor.op, Copy)
        shape = tensor.shape if copied else wanted.get(canonical) or tensor.shape
        name = writing.spelling.write(canonical)
        kept = stored is not None and writing.spelling.accepts(stored, canonical)
        if kept and not work.options.canonical_names and stored is not None:
            name = stored
        renamed = "renamed" if stored not in (None, name) else ""
        note = ", ".join(part for part in (renamed, tensor.note) if part)
        yield Output(name, tensor.dtype, shape, tensor.op, note)
        layer = canonical.removeprefix("layers.").partition(".")
        if writing.later_norms_twice and layer[2] == "input_layernorm.weight" and layer[0] != "0":
            twin = canonical.replace("input_layernorm", "hidden_norm")
            yield Output(twin, tensor.dtype, shape, tensor.op, "second name")
