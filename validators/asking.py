"""What is looked at before anything is measured. Free of torch: wrong usage is said before it is imported."""

from importlib.util import find_spec
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from eagle3_interop.validators.prove.request import Request
    from eagle3_interop.validators.record.wish import Wish

EXTRA = ("torch", "transformers", "accelerate")
"""What the ``validate`` extra brings, and a base install lacks."""


def require_extra() -> None:
    """Name the extra rather than fail in an import.

    Raises:
        Unavailable: a package of it is not installed.
    """
    from eagle3_interop.schemas.findings import Unavailable

    missing = [name for name in EXTRA if find_spec(name) is None]
    if missing:
        raise Unavailable(
            f"{', '.join(missing)} not installed; validating runs the networks: "
            "pip install 'eagle3-interop[validate]'"
        )


def check_request(request: "Request | Wish") -> None:
    """Find wrong usage before torch is imported, which takes seconds.

    Raises:
        Usage: a number is out of range, there is no such folder, or the prompts do not parse.
    """
    from eagle3_interop.validators.target.prompts import read_prompts

    request.check()
    prompts = request.prompts
    if prompts is not None and (prompts.is_file() or not prompts.exists()):  # a pipe is read once
        read_prompts(prompts)


def check_alone(streams: str | None, engine: str | None) -> None:
    """Refuse a real engine beside recordings: its own texts were not recorded.

    Raises:
        Usage: both are asked for.
    """
    from eagle3_interop.schemas.findings import Usage

    if streams is not None and engine is not None:
        raise Usage("--engine and --server need the target itself: leave --streams out.")
