"""What of a quantised draft every rewrite has to heed, and the lists by which its destination finds it."""

from dataclasses import replace

from eagle3_interop.convert.decide.rewrites.work import Work
from eagle3_interop.schemas.dialects import quantised
from eagle3_interop.schemas.engines.naming import told
from eagle3_interop.schemas.engines.releases import newest
from eagle3_interop.schemas.findings import Refused, finding
from eagle3_interop.schemas.parameters import Axis, cut
from eagle3_interop.schemas.registry import serving

_PLAIN = "--dequantize writes the plain draft."


def whole(work: Work, axis: Axis, what: str) -> None:
    """Raise where an entry of a quantised weight stands for more than one step along an axis that is rewritten.

    Raises:
        Refused: naming the part.
    """
    if name := cut(work.draft, axis):
        message = f"{what}, and one of its entries stands for values on both sides of a cut."
        raise work.refused("quantised-cut", name, message)


def write_lists(work: Work) -> Work:
    """Write ``quantization_config`` in words that the destination's engines match, or refuse."""
    if work.draft.quantisation is None:
        return work
    _, wrong = quantised.leaves(work.draft)
    if work.writing.plugin:
        message = "the SGLang plugin, which this draft needs, computes with plain weights alone."
        wrong.append(finding("quantised-unmatched", "quantisation", message))
    if wrong:
        raise Refused([*work.findings, *work.writing.findings, *wrong])
    raw = quantised.write(work.draft, work.wishes.extras.get(quantised.KEY, {}))
    said = quantised.listed(raw)
    for engine in dict.fromkeys((*work.place.engines, *serving(work.destination))):
        naming = newest(engine).naming
        if missed := list(naming.misreads(work.draft, said, None)):
            message = told(naming.title, missed)
            wrong.append(finding("quantised-unmatched", "quantisation", message))
    if wrong:
        raise Refused([*work.findings, *work.writing.findings, *wrong])
    config = {**work.writing.config, quantised.KEY: raw}
    entries = ", ".join(said.ignore) or "nothing"
    message = f"written anew, for the names by which engines ask; left out are {entries}."
    work = replace(work, written=replace(work.writing, config=config))
    return work.say("quantised-names-written", f"config.json: {quantised.KEY}", message)
