"""Every release that is known, by engine, oldest first. A new one is one value and its place in its engine's tuple."""

from eagle3_interop.schemas.engines.release import Release
from eagle3_interop.schemas.engines.sglang_releases import SGLANG
from eagle3_interop.schemas.engines.speculators import SPECULATORS_0_9
from eagle3_interop.schemas.engines.vllm_releases import VLLM

RELEASES: dict[str, tuple[Release, ...]] = {
    "speculators": (SPECULATORS_0_9,),
    "sglang": SGLANG,
    "vllm": VLLM,
}


def newest(engine: str) -> Release:
    """The newest known release of an engine."""
    return RELEASES[engine][-1]
