"""``eagle3-push``: publish a draft that was validated, and nothing else. A thin shell over `publish`."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from eagle3_interop.convert.console import (
    EXIT_DIFFERENT,
    SETTINGS,
    Console,
    JsonFlag,
    QuietFlag,
    VersionFlag,
    launch,
)

if TYPE_CHECKING:
    from eagle3_interop.recipes.publish.hub import Place
    from eagle3_interop.recipes.publish.publication import Failed, Outcome
    from eagle3_interop.schemas.findings import Finding

app = typer.Typer(
    name="eagle3-push",
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings=SETTINGS,
)


@app.command()
def run(
    checkpoint: Annotated[Path, typer.Argument(help="The local folder that was validated.")],
    repo_id: Annotated[str, typer.Option(metavar="ORG/NAME", help="Where to publish it.")],
    report: Annotated[
        Path, typer.Option(metavar="FILE", help="What eagle3-validate --json FILE wrote about it.")
    ],
    min_accept_length: Annotated[
        float | None, typer.Option(metavar="X", help="Accept length that the report must reach.")
    ] = None,
    allow: Annotated[
        list[str] | None,
        typer.Option(metavar="CODE", help="Accept this warning; the card says so."),
    ] = None,
    private: Annotated[
        bool, typer.Option("--private", help="Make a new repository private.")
    ] = False,
    create_pr: Annotated[
        bool, typer.Option("--create-pr", help="Propose a pull request instead of committing.")
    ] = False,
    revision: Annotated[
        str | None, typer.Option(metavar="BRANCH", help="Branch to commit to, or to propose for.")
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print the card; the Hub is not asked anything.")
    ] = False,
    json: JsonFlag = False,
    quiet: QuietFlag = False,
    version: VersionFlag = False,  # noqa: ARG001
) -> None:
    """Publish a validated EAGLE-3 draft: only with a report that passed, about these very files."""
    console = Console(as_json=json, quiet=quiet)

    def refused(found: "tuple[Finding, ...]") -> dict[str, Any]:
        return {"status": "refused", "findings": [item.model_dump() for item in found]}

    with console.outcomes(refused):
        from eagle3_interop.recipes.publish.publication import Failed, push

        place = _place(repo_id, revision, create_pr=create_pr, private=private)
        _quieten(console)
        try:
            outcome = push(
                checkpoint,
                place,
                report,
                min_accept_length=min_accept_length,
                allow=allow or (),
                dry_run=dry_run,
            )
        except Failed as failed:
            _show_failure(console, failed)
            raise typer.Exit(EXIT_DIFFERENT) from None
        _show(console, outcome, place)


def _place(repo_id: str, revision: str | None, *, create_pr: bool, private: bool) -> "Place":
    from eagle3_interop.convert.read.folders import hub_id
    from eagle3_interop.recipes.publish.hub import Place
    from eagle3_interop.schemas.findings import Usage
    from eagle3_interop.schemas.hub import is_hub_id

    repo_id = hub_id(repo_id)
    if not is_hub_id(repo_id):
        raise Usage(f"--repo-id {repo_id!r} is not of the form ORG/NAME.")
    return Place(repo_id, revision, create_pr, private)


def _quieten(console: Console) -> None:
    if not console.talks:
        import logging

        from huggingface_hub.utils.tqdm import disable_progress_bars

        disable_progress_bars()
        logging.getLogger("huggingface_hub").setLevel(logging.ERROR)


def _show_failure(console: Console, failed: "Failed") -> None:
    console.error("Not published. These checks failed:")
    for reason in failed.reasons:
        console.remark(f"  {reason}")
    console.data({"status": "failed", "reasons": list(failed.reasons), "exit_code": 1})


def _show(console: Console, outcome: "Outcome", place: "Place") -> None:
    pushed = outcome.pushed
    remarks = [
        *(f"stays here: {name}" for name in outcome.left),
        *(f"note: {note}" for note in outcome.notes),
        *([] if pushed else [f"dry run: nothing was sent to {place.repo_id}; the card:"]),
    ]
    for remark in remarks if console.talks else ():
        console.remark(remark)
    if pushed is None:
        console.result(outcome.card)
    else:
        console.result(
            f"{len(outcome.files)} files and the card, read back and equal: {pushed.url}"
        )
    console.data(
        {
            "status": "dry-run" if pushed is None else "pushed",
            "repo_id": place.repo_id,
            "commit": pushed and pushed.commit,
            "url": pushed and pushed.url,
            "pull_request": pushed and pushed.pull_request,
            "files": outcome.files,
            "left": list(outcome.left),
            "notes": list(outcome.notes),
            "card": outcome.card,
        }
    )


def main() -> None:
    """The console script."""
    launch(app)


if __name__ == "__main__":
    main()
