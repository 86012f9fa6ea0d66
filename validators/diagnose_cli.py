"""``eagle3-diagnose``: a thin shell over `diagnose`; ``--help`` imports neither torch nor transformers."""

from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from eagle3_interop.convert.console import (
    EXIT_DIFFERENT,
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
    AllowOpt,
    DeviceOpt,
    DraftArg,
    HtmlOpt,
    JsonOpt,
    PromptsOpt,
    RemoteCodeFlag,
    StreamsOpt,
    StreamTapsOpt,
    TargetOpt,
    TrainerOpt,
)
from eagle3_interop.validators.validate_cli import (
    STDOUT,
    taps_of,
    try_report,
)

if TYPE_CHECKING:
    from eagle3_interop.schemas.findings import Finding
    from eagle3_interop.validators.diagnose.run import Answer
    from eagle3_interop.validators.prove.request import Request

SHOWN = 10
"""Rows of the table."""

app = typer.Typer(
    name="eagle3-diagnose",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings=SETTINGS,
)


@app.command(no_args_is_help=True)
def diagnose(
    checkpoint: DraftArg,
    target: TargetOpt,
    prompts: PromptsOpt = None,
    json: JsonOpt = None,
    html: HtmlOpt = None,
    budget: Annotated[
        float | None,
        typer.Option(
            metavar="SECONDS", min=0.0, help="End the search after so many seconds [no limit]."
        ),
    ] = None,
    write: Annotated[
        Path | None,
        typer.Option(
            metavar="OUTPUT", help="Write a corrected checkpoint there, if another wiring is found."
        ),
    ] = None,
    max_new_tokens: Annotated[
        int | None,
        typer.Option(
            metavar="N", min=2, help="Tokens that the target writes after each prompt [64]."
        ),
    ] = None,
    streams: StreamsOpt = None,
    trainer: TrainerOpt = None,
    allow: AllowOpt = None,
    stream_taps: StreamTapsOpt = None,
    device: DeviceOpt = "auto",
    dtype: Annotated[Dtype, typer.Option(help="Dtype in which target and draft run.")] = "float32",
    seed: Annotated[int, typer.Option(metavar="S", help="Seed of the intervals.")] = 0,
    trust_remote_code: RemoteCodeFlag = False,
    quiet: QuietFlag = False,
    version: VersionFlag = False,  # noqa: ARG001 - eager
) -> None:
    """Find the layers and flags that these weights were trained with, and compare them with the config.

    Exit codes: 0 the config is right, 1 another wiring fits better or none fits, 2 wrong usage, 3 refused, 4 disk,
    network or extra failed.
    """
    console = Console(as_json=json == STDOUT, quiet=quiet)

    def refused(found: "tuple[Finding, ...]") -> dict[str, Any]:
        report = {
            "verdict": "refused",
            "configured": None,
            "best": None,
            "tried": 0,
            "candidates": [],
            "findings": [item.model_dump() for item in found],
        }
        if json is not None and json != STDOUT:
            for message in try_report(json, _dumped(report)):
                console.error(message)
        return report

    with console.outcomes(refused):
        from eagle3_interop.convert.read.folders import hub_id
        from eagle3_interop.convert.write.places import check_files, check_folder
        from eagle3_interop.schemas.findings import Usage
        from eagle3_interop.validators.prove.request import DIAGNOSED, Request

        reads = (checkpoint, target, prompts, streams)
        if write is not None:
            check_folder(write, reads)
        check_files({"--json": json, "--html": html}, reads, folder=write)
        request = Request(
            checkpoint=hub_id(checkpoint),
            target=hub_id(target),
            prompts=prompts,
            new_tokens=max_new_tokens if max_new_tokens or streams else DIAGNOSED,
            device=device,
            dtype=dtype_named(dtype),
            seed=seed,
            trust_remote_code=trust_remote_code,
            streams=streams,
            trainer=trainer,
            allow=tuple(allow or ()),
            stream_taps=taps_of(stream_taps, "--stream-taps"),
        )
        check_request(request)
        if budget is not None and not isfinite(budget):
            raise Usage("--budget: give a number of seconds, or leave it out for no limit.")
        require_extra()
        answer = _run(console, request, budget, write, heat=html is not None)
        failed = [answer.failure] if answer.failure else []
        if html is not None:
            from eagle3_interop.validators.report.heatmap import page

            failed += try_report(html, page(answer))
        if json is not None and json != STDOUT:
            failed += try_report(json, _dumped(answer.report))
        console.data(answer.report)
        _show(console, answer)
        for message in failed:
            console.error(message)
    if failed:
        raise typer.Exit(EXIT_UNAVAILABLE)
    if answer.diagnosis.verdict != "configured-is-best":
        raise typer.Exit(EXIT_DIFFERENT)


def _run(
    console: Console, request: "Request", budget: float | None, write: Path | None, *, heat: bool
) -> "Answer":
    from transformers.utils import logging

    from eagle3_interop.validators.diagnose.run import run
    from eagle3_interop.validators.report import terminal

    logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    logging.set_verbosity_error()  # type: ignore[no-untyped-call]
    limit = "" if budget is None else f", at most {budget:g} s"
    return run(
        request,
        budget=budget,
        write=write,
        heat=heat,
        watch=terminal.watch(console),
        searching=lambda: console.progress(f"searching{limit}", 0, "wirings"),
    )


def _show(console: Console, answer: "Answer") -> None:
    console.findings(answer.findings, notes=False)
    from eagle3_interop.convert.tables import Figures
    from eagle3_interop.validators.diagnose.run import answer as sentence
    from eagle3_interop.validators.report.heatmap import SCORE, foremost, rows

    if console.talks:
        first = foremost(rows(answer.report), SHOWN)
        shown = [(f"{row.score:.3f}", row.gain, row.length, row.text) for row in first]
        columns = ("score (nats)", "gain", "accept length", "wiring")
        console.show(Figures("wirings, the best first", columns, shown, prose=True))
        console.line(f"score: {SCORE}")
    if answer.report["written"]:
        console.result(f"written: {answer.report['written']}")
    console.result(sentence(answer.diagnosis))


def _dumped(report: dict[str, Any]) -> str:
    from json import dumps

    return dumps(report, indent=2, ensure_ascii=False) + "\n"


def main() -> None:
    """Entry point of ``eagle3-diagnose``."""
    launch(app, json_to_file=True)
