"""The layouts by name. A new framework is one page in this package and one row here."""

from collections.abc import Mapping
from typing import Any

from eagle3_interop.schemas.dialects import sglang, speculators, universal, vllm
from eagle3_interop.schemas.dialects.base import Layout
from eagle3_interop.schemas.dialects.keys import IDS, architecture

LAYOUTS: dict[str, Layout] = {
    "speculators": speculators,
    "sglang": sglang,
    "vllm": vllm,
    "universal": universal,
}

SOURCES = ("speculators", "sglang", "vllm")
"""Layouts that a command can name as its source."""

DESTINATIONS = ("speculators", "sglang", "vllm", "universal")
"""Layouts that a command can name as its destination."""


def recognise(config: Mapping[str, Any]) -> tuple[str, str] | None:
    """The layout that a folder is written in, and the sign by which it was recognised.

    A flat file with ids only in ``eagle_config`` counts as SGLang's: SpecForge, ModelOpt and SGLang all put
    them there, and count outputs.
    """
    stock = architecture(config) == sglang.STOCK and not config.get(IDS)
    order = SOURCES if stock else ("speculators", "vllm", "sglang")
    for layout in order:
        if (sign := LAYOUTS[layout].recognise(config)) is not None:
            return layout, sign
    return None
