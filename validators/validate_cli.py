"""``eagle3-validate``: a thin shell over `validate`; ``--help`` imports neither torch nor transformers."""

import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

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
from eagle3_interop.validators.asking import check_alone, check_request, require_extra
from eagle3_interop.validators.options import (
    AllowOpt,
    CsvOpt,
    DeviceOpt,
    DraftArg,
    EngineArgOpt,
    EnginePythonOpt,
    HtmlOpt,
    JsonOpt,
    PromptsOpt,
    RemoteCodeFlag,
    StreamsOpt,
    StreamTapsOpt,
    TargetOpt,
    TrainerOpt,
)

STDOUT = Path("-")

if TYPE_CHECKING:
    from eagle3_interop.schemas.findings import Finding
    from eagle3_interop.schemas.report import Report
    from eagle3_interop.validators.accept.shape import Shape
    from eagle3_interop.validators.prove.request import Judge, Request

app = typer.Typer(
    name="eagle3-validate",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings=SETTINGS,
)


@app.command(no_args_is_help=True)
def validate(
    checkpoint: DraftArg,
    target: TargetOpt,
    against: Annotated[
        str | None,
        typer.Option(
            metavar="SOURCE", help="Gate: a draft, in any layout, that must be the same network."
        ),
    ] = None,
    prompts: PromptsOpt = None,
    num_draft_tokens: Annotated[
        int | None,
        typer.Option(
            metavar="K",
            min=1,
            help="Draft tokens a step, as vLLM counts them [the draft's recommendation, else 3].",
        ),
    ] = None,
    tree: Annotated[
        str | None,
        typer.Option(
            metavar="STEPS,TOPK,TOKENS",
            help="Draft trees as SGLang does; TOKENS includes the root.",
        ),
    ] = None,
    sweep: Annotated[
        bool, typer.Option("--sweep", help="Also measure a grid of chains and trees.")
    ] = False,
    max_new_tokens: Annotated[
        int | None,
        typer.Option(
            metavar="N", min=2, help="Tokens that the target writes after each prompt [128]."
        ),
    ] = None,
    streams: StreamsOpt = None,
    trainer: TrainerOpt = None,
    allow: AllowOpt = None,
    stream_taps: StreamTapsOpt = None,
    stop_at_eos: Annotated[
        bool, typer.Option("--stop-at-eos", help="End each text at its end-of-sequence token.")
    ] = False,
    temperature: Annotated[
        float,
        typer.Option(
            metavar="T",
            min=0.0,
            help="Also measure acceptance on texts sampled at this temperature.",
        ),
    ] = 0.0,
    cost_ratio: Annotated[
        float | None,
        typer.Option(
            metavar="R",
            min=0.0,
            help="A guess of the time of a draft step divided by that of a target step, for the expected speed-up; --engine measures it.",
        ),
    ] = None,
    device: DeviceOpt = "auto",
    dtype: Annotated[Dtype, typer.Option(help="Dtype in which target and draft run.")] = "float32",
    seed: Annotated[int, typer.Option(metavar="S", help="Seed of sampling and intervals.")] = 0,
    engine: Annotated[
        Literal["vllm", "sglang"] | None,
        typer.Option(help="Gate: start this engine and require the same acceptance counters."),
    ] = None,
    engine_python: EnginePythonOpt = None,
    engine_arg: EngineArgOpt = None,
    server: Annotated[
        str | None,
        typer.Option(metavar="URL", help="Gate: the same, using a running vLLM or SGLang server."),
    ] = None,
    baseline_server: Annotated[
        str | None,
        typer.Option(
            metavar="URL", help="The same server without the draft, for the speed-up of --server."
        ),
    ] = None,
    batch: Annotated[
        str | None,
        typer.Option(
            metavar="LIST",
            help="Texts at a time at which --engine or --server is timed, as 1,4,16 [1].",
        ),
    ] = None,
    speed: Annotated[
        bool | None,
        typer.Option(
            "--speed/--no-speed",
            help="Time --engine or --server (an engine starts once more, without the draft) [--speed].",
        ),
    ] = None,
    min_accept_length: Annotated[
        float | None,
        typer.Option(metavar="X", help="Gate: the smallest accept length that passes."),
    ] = None,
    max_logit_diff: Annotated[
        float | None,
        typer.Option(
            metavar="E",
            min=0.0,
            help="Gate: largest logit difference allowed against --against [rounding error].",
        ),
    ] = None,
    json: JsonOpt = None,
    html: HtmlOpt = None,
    csv: CsvOpt = None,
    trust_remote_code: RemoteCodeFlag = False,
    quiet: QuietFlag = False,
    version: VersionFlag = False,  # noqa: ARG001 - eager
) -> None:
    """Measure how many tokens of an EAGLE-3 draft its target accepts; with --against, prove a conversion.

    Exit codes: 0 passed, 1 a gate failed, 2 wrong usage, 3 refused, 4 disk, network, engine or extra failed.
    """
    console = Console(as_json=json == STDOUT, quiet=quiet)

    def refused(found: "tuple[Finding, ...]") -> dict[str, Any]:
        from eagle3_interop.schemas.report import Report

        report = Report(verdict="fail", findings=found)
        if json is not None and json != STDOUT:
            for message in try_report(json, report.model_dump_json(indent=2) + "\n"):
                console.error(message)
        return report.model_dump(mode="json")

    with console.outcomes(refused):
        from eagle3_interop.convert.read.folders import hub_id
        from eagle3_interop.convert.write.places import check_files
        from eagle3_interop.validators.engines.options import check_options, check_timing
        from eagle3_interop.validators.prove.request import Request

        reads = (checkpoint, target, against, prompts, engine_python, streams)
        check_files({"--json": json, "--html": html, "--csv": csv}, reads)
        request = Request(
            checkpoint=hub_id(checkpoint),
            target=hub_id(target),
            against=None if against is None else hub_id(against),
            prompts=prompts,
            shape=_shape(num_draft_tokens, tree),
            sweep=sweep,
            new_tokens=max_new_tokens,
            stop_at_eos=stop_at_eos,
            temperature=temperature,
            cost_ratio=cost_ratio,
            device=device,
            dtype=dtype_named(dtype),
            seed=seed,
            min_accept_length=min_accept_length,
            max_logit_diff=max_logit_diff,
            agreement=html is not None,
            trust_remote_code=trust_remote_code,
            streams=streams,
            trainer=trainer,
            allow=tuple(allow or ()),
            stream_taps=taps_of(stream_taps, "--stream-taps"),
            speed=speed is not False,
            batches=_batches(batch or "1"),
        )
        check_request(request)
        check_timing(speed, batch is not None, engine or server)
        asked = (engine, engine_python, engine_arg or [], server, request.shape, baseline_server)
        check_options(*asked)
        check_alone(streams, engine or server)
        require_extra()
        from eagle3_interop.validators.engines.judge import judge_of

        judge = judge_of(*asked)
        report, failed = _run(console, request, judge, {"json": json, "html": html, "csv": csv})
        for message in failed:
            console.error(message)
    if failed:
        raise typer.Exit(EXIT_UNAVAILABLE)
    if report.verdict == "fail":
        raise typer.Exit(EXIT_DIFFERENT)


def _run(
    console: Console,
    request: "Request",
    judge: "Judge | None",
    files: dict[str, Path | None],
) -> "tuple[Report, list[str]]":
    """The report, and the files of it that the disk did not take."""
    from transformers.utils import logging

    from eagle3_interop.validators.prove.validate import validate
    from eagle3_interop.validators.report import breakdown, page, terminal

    logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    logging.set_verbosity_error()  # type: ignore[no-untyped-call]
    report, measured = validate(request, judge=judge, watch=terminal.watch(console))
    failed = []
    if (html := files["html"]) is not None:
        failed += try_report(html, page.page(report, measured.agreement))
    if (table := files["csv"]) is not None:
        failed += try_report(table, breakdown.prompts_csv(report))
    if (json := files["json"]) is not None and json != STDOUT:
        failed += try_report(json, report.model_dump_json(indent=2) + "\n")
    console.data(report.model_dump(mode="json"))
    console.findings(report.findings)
    terminal.show(console, report)
    return report, failed


def _shape(num_draft_tokens: int | None, tree: str | None) -> "Shape | None":
    from eagle3_interop.schemas.findings import Usage
    from eagle3_interop.validators.accept.shape import Shape

    if tree is None:
        return None if num_draft_tokens is None else Shape.chain(num_draft_tokens)
    if num_draft_tokens is not None:
        raise Usage("give --num-draft-tokens for a chain or --tree, not both.")
    parts = tree.split(",")
    if len(parts) != 3 or not all(re.fullmatch(r"\s*\d{1,9}\s*", part, re.ASCII) for part in parts):
        raise Usage(f"--tree {tree[:40]!r}: give STEPS,TOPK,TOKENS, such as 3,4,16.")
    return Shape(*map(int, parts)).checked()


def _batches(text: str) -> tuple[int, ...]:
    from eagle3_interop.schemas.findings import Usage

    parts = text.split(",")
    if not all(re.fullmatch(r"\s*\d{1,9}\s*", part, re.ASCII) for part in parts):
        raise Usage(f"--batch {text[:40]!r}: give sizes, such as 1,4,16.")
    return tuple(dict.fromkeys(map(int, parts)))


def taps_of(text: str | None, option: str) -> tuple[int, ...] | None:
    """A list of taps, ``embed`` for 0.

    Raises:
        Usage: it is none.
    """
    from eagle3_interop.schemas.findings import Usage

    if text is None:
        return None
    parts = ["0" if part.strip() == "embed" else part.strip() for part in text.split(",")]
    if not all(part.isdecimal() for part in parts):
        raise Usage(
            f"{option} {text!r}: give taps, such as 2,16,29 (embed or 0 for the embedding)."
        )
    return tuple(map(int, parts))


def try_report(path: Path, content: str) -> list[str]:
    """Write a file; the answer of long work outlives a disk that does not take it.

    Returns:
        What failed, if it did.
    """
    try:
        path.write_text(content, encoding="utf-8")
    except OSError as error:
        return [f"{path}: {error.strerror}"]
    return []


def main() -> None:
    """Entry point of ``eagle3-validate``."""
    launch(app, json_to_file=True)
