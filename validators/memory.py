"""Running out of memory is the outside world's fault, and has a way out."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from eagle3_interop.schemas.findings import Unavailable


@contextmanager
def enough_memory(less: str = "a shorter --max-new-tokens") -> Iterator[None]:
    """Tell lack of memory, in whatever way it shows, in one sentence.

    Args:
        less: what to ask less of.

    Raises:
        Unavailable: there was not enough.
    """
    try:
        yield
    except (torch.OutOfMemoryError, MemoryError, RuntimeError) as error:
        # Torch on a CPU has no class of its own for it.
        known = isinstance(error, torch.OutOfMemoryError | MemoryError)
        if not known and "can't allocate memory" not in str(error):
            raise
        message = f"out of memory; try --dtype bfloat16, {less} or --device cpu"
        raise Unavailable(f"{message}: {str(error).partition(chr(10))[0]}") from error
