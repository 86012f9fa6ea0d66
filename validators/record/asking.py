"""Who records, and whether that can be asked. Free of torch until a recorder is made."""

from importlib import import_module
from typing import TYPE_CHECKING, Literal

from eagle3_interop.convert.read.target_tables import open_target
from eagle3_interop.schemas.findings import Usage
from eagle3_interop.validators.engines.options import check_options

if TYPE_CHECKING:
    from eagle3_interop.validators.record.record import Recorder
    from eagle3_interop.validators.record.wish import Wish


def tapped(target: str) -> tuple[int, ...]:
    """Every tap that a target has.

    Raises:
        Refused: it is no model.
        Usage: its config names no number of layers.
        Unavailable: the disk or the Hub failed.
    """
    layers = open_target(target, weights=False).facts.layers
    if layers is None:
        raise Usage(f"--taps all: the config of {target} names no number of layers.")
    return tuple(range(layers + 1))


def check_engine(
    engine: str | None,
    python: str | None,
    arguments: list[str],
    server: str | None,
    *,
    last_state: bool,
) -> None:
    """Refuse options that do not go together.

    Raises:
        Usage: with which.
    """
    check_options(engine, python, arguments, server, None)
    if not last_state and engine is None:
        raise Usage("--no-last-state spares the second start of --engine sglang; leave it out.")


def recorder_of(
    wish: "Wish",
    engine: Literal["vllm", "sglang"] | None,
    python: str | None,
    arguments: list[str],
    server: str | None,
    *,
    last_state: bool,
) -> "Recorder":
    """Who records.

    Args:
        wish: what.
        engine: ``--engine``.
        python: ``--engine-python``.
        arguments: ``--engine-arg``, each.
        server: ``--server``.
        last_state: start SGLang twice, for the last hidden state.

    Raises:
        Unavailable: the engine or the server is not there.
    """
    if server is not None:
        from eagle3_interop.validators.record.sglang import SGLangServer

        return SGLangServer(wish, server)
    if engine is None:
        from eagle3_interop.validators.record.library import Library

        return Library(wish)
    from eagle3_interop.validators.engines.started import StartedEngine

    module = import_module(f"eagle3_interop.validators.record.{engine}")
    made: Recorder = module.started(
        wish, StartedEngine.found(engine, python, arguments), last_state=last_state
    )
    return made
