"""``--device`` as it is written. Free of torch: a wrong word is said before torch is imported."""

import re

from eagle3_interop.schemas.findings import Usage


def device_parts(name: str) -> tuple[str, int]:
    """``auto``, ``cpu``, ``cuda`` or ``cuda:N`` as kind and index.

    Raises:
        Usage: it is none of these.
    """
    match = re.fullmatch(r"(auto|cpu|cuda)|cuda:(\d{1,9})", name, re.ASCII)
    if match is None:
        raise Usage(f"--device {name[:80]}: expected auto, cpu, cuda or cuda:N")
    return match[1] or "cuda", int(match[2] or 0)
