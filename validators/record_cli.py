"""``eagle3-record``: a thin shell over `record`; ``--help`` imports neither torch nor transformers."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from eagle3_interop.convert.console import (
    EXIT_UNAVAILABLE,
    SETTINGS,
    Console,
    Dtype,
    QuietFlag,
    VersionFlag,
    dtype_named,
    launch,
)
from eagle3_interop.validators.asking import check_request, require_extra
from eagle3_interop.validators.options import (
    DeviceOpt,
    EngineArgOpt,
    EnginePythonOpt,
    PromptsOpt,
    RemoteCodeFlag,
)
from eagle3_interop.validators.validate_cli import (
    STDOUT,
    taps_of,
    try_report,
)

if TYPE_CHECKING:
    from eagle3_interop.schemas.findings import Finding
    from eagle3_interop.schemas.streams import StreamsManifest
    from eagle3_interop.validators.record.record import Recorder
    from eagle3_interop.validators.record.wish import Wish

app = typer.Typer(
    name="eagle3-record",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings=SETTINGS,
)


@app.command(no_args_is_help=True)
def record(
    target: Annotated[str, typer.Argument(help="The target: folder, or Hub id ORG/NAME[@REV].")],
    out: Annotated[Path, typer.Option(metavar="DIR", help="Folder to write the recordings to.")],
    prompts: PromptsOpt = None,
    max_new_tokens: Annotated[
        int, typer.Option(metavar="N", min=2, help="Tokens of each text that count.")
    ] = 128,
    lookahead: Annotated[
        int,
        typer.Option(
            metavar="M",
            min=1,
            help="Further tokens of each text: the longest draft that can be measured.",
        ),
    ] = 16,
    taps: Annotated[
        str | None,
        typer.Option(
            metavar="LIST|all",
            help="Hidden states to record: 0 the embedding, k the input of layer k, L the last output [the default triple and its neighbours].",
        ),
    ] = None,
    device: DeviceOpt = "auto",
    dtype: Annotated[
        Dtype, typer.Option(help="Dtype of the target and of the recordings.")
    ] = "float32",
    seed: Annotated[
        int,
        typer.Option(metavar="S", help="Has no effect on greedy texts; all commands take it."),
    ] = 0,
    engine: Annotated[
        Literal["vllm", "sglang"] | None,
        typer.Option(help="Let this engine record, in its own environment [transformers]."),
    ] = None,
    engine_python: EnginePythonOpt = None,
    engine_arg: EngineArgOpt = None,
    server: Annotated[
        str | None,
        typer.Option(
            metavar="URL", help="Record from a running SGLang server that was started for it."
        ),
    ] = None,
    last_state: Annotated[
        bool,
        typer.Option(
            help="With --engine sglang: start twice, to record the last hidden state too."
        ),
    ] = True,
    json: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Write the manifest as JSON ('-' for stdout)."),
    ] = None,
    trust_remote_code: RemoteCodeFlag = False,
    quiet: QuietFlag = False,
    version: VersionFlag = False,  # noqa: ARG001 - eager
) -> None:
    """Record a target's hidden states once; drafts are then validated and diagnosed without running it.

    Exit codes: 0 recorded, 2 wrong usage, 3 refused, 4 disk, network, engine or extra failed.
    """
    console = Console(as_json=json == STDOUT, quiet=quiet)

    def refused(found: "tuple[Finding, ...]") -> dict[str, Any]:
        return {"status": "refused", "findings": [item.model_dump() for item in found]}

    with console.outcomes(refused):
        from eagle3_interop.convert.read.folders import hub_id
        from eagle3_interop.convert.write.places import check_apart, check_files
        from eagle3_interop.validators.record.asking import check_engine, recorder_of
        from eagle3_interop.validators.record.wish import Wish

        reads = (target, prompts, engine_python)
        check_apart(out, reads)
        check_files({"--json": json}, reads, folder=out)
        wish = Wish(
            target=hub_id(target),
            out=out,
            prompts=prompts,
            new_tokens=max_new_tokens,
            lookahead=lookahead,
            taps=_taps(taps, target),
            device=device,
            dtype=dtype_named(dtype),
            seed=seed,
            trust_remote_code=trust_remote_code,
        )
        check_request(wish)
        check_engine(engine, engine_python, engine_arg or [], server, last_state=last_state)
        require_extra()
        recorder = recorder_of(
            wish, engine, engine_python, engine_arg or [], server, last_state=last_state
        )
        manifest = _run(console, wish, recorder)
        failed = []
        if json is not None and json != STDOUT:
            failed = try_report(json, manifest.model_dump_json(indent=2) + "\n")
        console.data(manifest.model_dump(mode="json"))
        console.line(f"recorded: {out}")
        console.line(f"  eagle3-validate DRAFT --target {target} --streams {out}")
        for message in failed:
            console.error(message)
    if failed:
        raise typer.Exit(EXIT_UNAVAILABLE)


def _run(console: Console, wish: "Wish", recorder: "Recorder") -> "StreamsManifest":
    from transformers.utils import logging

    from eagle3_interop.validators.record.record import record
    from eagle3_interop.validators.report import terminal

    logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    logging.set_verbosity_error()  # type: ignore[no-untyped-call]

    def say(text: str) -> None:
        if console.talks:
            typer.echo(text, err=True)

    return record(wish, recorder, watch=terminal.watch(console), say=say)


def _taps(text: str | None, target: str) -> tuple[int, ...] | None:
    from eagle3_interop.validators.record.asking import tapped

    return tapped(target) if text == "all" else taps_of(text, "--taps")


def main() -> None:
    """Entry point of ``eagle3-record``."""
    launch(app, json_to_file=True)
