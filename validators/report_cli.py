"""``eagle3-report``: reports of several drafts and settings side by side. It imports neither torch nor transformers."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from eagle3_interop.convert.console import (
    EXIT_UNAVAILABLE,
    SETTINGS,
    Console,
    QuietFlag,
    VersionFlag,
    launch,
)
from eagle3_interop.validators.options import JsonOpt

STDOUT = Path("-")

if TYPE_CHECKING:
    from eagle3_interop.schemas.findings import Finding

app = typer.Typer(
    name="eagle3-report",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings=SETTINGS,
)


@app.command(no_args_is_help=True)
def report(
    reports: Annotated[
        list[Path],
        typer.Argument(metavar="REPORT...", help="What eagle3-validate --json FILE wrote."),
    ],
    csv: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write a row a setting as CSV.")
    ] = None,
    markdown: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write the tables as Markdown.")
    ] = None,
    html: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write the tables as one HTML page.")
    ] = None,
    json: JsonOpt = None,
    quiet: QuietFlag = False,
    version: VersionFlag = False,  # noqa: ARG001 - eager
) -> None:
    """Put reports of eagle3-validate side by side; each is compared with the first, prompt by prompt.

    Exit codes: 0 done, 2 wrong usage, 3 a file is no report, 4 the disk failed.
    """
    console = Console(as_json=json == STDOUT, quiet=quiet)

    def refused(found: "tuple[Finding, ...]") -> dict[str, Any]:
        return {"status": "refused", "findings": [item.model_dump() for item in found]}

    with console.outcomes(refused):
        from eagle3_interop.convert.write.places import check_files
        from eagle3_interop.validators.report import compared
        from eagle3_interop.validators.report.comparing import compare, read_report

        outputs = {"--csv": csv, "--markdown": markdown, "--html": html, "--json": json}
        check_files(outputs, reports)
        found = compare([(str(path), read_report(path)) for path in reports])
        texts = {
            csv: compared.as_csv(found),
            markdown: compared.markdown(found),
            html: compared.page(found),
            json: found.model_dump_json(indent=2) + "\n",
        }
        failed = []
        for path, text in texts.items():
            if path is not None and not (path == STDOUT and console.as_json):
                failed += _written(path, text)
        console.data(found.model_dump(mode="json"))
        if not console.as_json:
            console.show(*compared.parts(found))
        for message in failed:
            console.error(message)
    if failed:
        raise typer.Exit(EXIT_UNAVAILABLE)


def _written(path: Path, text: str) -> list[str]:
    """What failed, if it did."""
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        return [f"{path}: {error.strerror}"]
    return []


def main() -> None:
    """Entry point of ``eagle3-report``."""
    launch(app, json_to_file=True)
