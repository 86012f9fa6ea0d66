"""Which options of an engine go together. Free of torch: wrong ones are said before torch is imported."""

import shutil
from collections.abc import Sequence

from eagle3_interop.convert.read.folders import did_you_mean, local_path
from eagle3_interop.schemas.findings import Usage
from eagle3_interop.validators.accept.shape import Shape


def check_options(
    engine: str | None,
    python: str | None,
    arguments: Sequence[str],
    server: str | None,
    shape: Shape | None,
    baseline: str | None = None,
) -> None:
    """Refuse what no engine can be asked.

    Args:
        engine: ``--engine``.
        python: ``--engine-python``.
        arguments: ``--engine-arg``, each.
        server: ``--server``.
        shape: what the user wants to be drafted a step.
        baseline: ``--baseline-server``.

    Raises:
        Usage: options that do not go together, or a Python that is not there.
    """
    if engine is not None and engine not in ("vllm", "sglang"):
        raise Usage(f"no engine is called {engine!r}: there are vllm and sglang.")
    if engine is not None and server is not None:
        raise Usage("give --engine to start one or --server for one that runs, not both.")
    if engine is None and (python is not None or arguments):
        raise Usage("--engine-python and --engine-arg are for an engine that --engine starts.")
    if baseline is not None and server is None:
        raise Usage("--baseline-server is the one to compare --server with: give that, too.")
    if engine == "vllm" and shape is not None and not shape.is_chain:
        raise Usage("vLLM drafts chains only: leave out --tree, or take --engine sglang.")
    if python is not None and shutil.which(local_path(python)) is None:
        raise Usage(f"--engine-python {python}: no such program{did_you_mean(python)}")


def check_timing(speed: bool | None, batches: bool, engine: str | None) -> None:
    """Refuse words about a timing that is not done.

    Args:
        speed: ``--speed``, ``--no-speed`` or neither.
        batches: ``--batch`` was given.
        engine: ``--engine`` or ``--server``.

    Raises:
        Usage: they would be passed over.
    """
    if engine is None and (batches or speed):
        asked = "--batch" if batches else "--speed"
        raise Usage(f"{asked} is for an engine that is timed: give --engine or --server, too.")
    if batches and speed is False:
        raise Usage("--batch says at which sizes to time, --no-speed not to: give one of them.")
