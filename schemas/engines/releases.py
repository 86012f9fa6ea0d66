"""Every release that is known, by engine, oldest first. A new one is one value and its place here."""

from eagle3_interop.schemas.engines.release import Release
from eagle3_interop.schemas.engines.sglang import SGLANG_0_5_23
from eagle3_interop.schemas.engines.speculators import SPECULATORS_0_9
from eagle3_interop.schemas.engines.vllm import VLLM_0_32

RELEASES: dict[str, tuple[Release, ...]] = {
    "speculators": (SPECULATORS_0_9,),
    "sglang": (SGLANG_0_5_23,),
    "vllm": (VLLM_0_32,),
}


def newest(engine: str) -> Release:
    """The newest known release of an engine."""
    return RELEASES[engine][-1]
