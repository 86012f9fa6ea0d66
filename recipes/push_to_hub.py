"""From somebody's draft to a published one, in one file: take, convert, validate, gate, card, push.

    python recipes/push_to_hub.py ORG/DRAFT --to sglang --target ORG/TARGET --repo-id ME/NAME --dry-run

Each step is one function below and one command outside: eagle3-convert, eagle3-validate, eagle3-push.
Run it again after an interruption: what is up is not sent twice.
"""

from pathlib import Path
from typing import Annotated, Literal

import typer

from eagle3_interop.convert import api
from eagle3_interop.convert.console import EXIT_DIFFERENT, Console
from eagle3_interop.convert.write.places import check_files, check_folder
from eagle3_interop.recipes.publish.hub import Place
from eagle3_interop.recipes.publish.publication import Failed, Outcome, push
from eagle3_interop.schemas.report import Report


def convert(
    source: str, layout: str, target: str, target_name: str | None, output: Path
) -> api.Conversion:
    """Take the source (a folder, or ORG/NAME[@REVISION], downloaded now) and write it anew."""
    options = api.Options(target=target, target_name=target_name)
    loaded = api.load(source, "auto", options)
    conversion = api.convert(loaded, layout, options)
    api.write(conversion, output, overwrite=True)
    return conversion


def validate(
    draft: Path, source: str, target: str, prompts: Path | None, minimum: float | None
) -> Report:
    """Prove that it is the source's network, and count what the target accepts.

    Two gates: the same logits and counters as the source's, and the accept length where one is asked for.
    """
    from eagle3_interop.validators.prove.request import Request
    from eagle3_interop.validators.prove.validate import validate as run

    report, _ = run(
        Request(
            checkpoint=str(draft),
            target=target,
            against=source,
            prompts=prompts,
            min_accept_length=minimum,
        )
    )
    return report


def publish(draft: Path, report: Path, place: Place, allow: list[str], *, dry_run: bool) -> Outcome:
    """Gate, card, one commit, and the look whether it arrived as it was sent."""
    return push(draft, place, report, allow=allow, dry_run=dry_run)


def chain(
    source: Annotated[str, typer.Argument(help="Folder, or Hub id ORG/NAME[@REVISION].")],
    target: Annotated[str, typer.Option(help="The target it drafts for: folder or Hub id.")],
    repo_id: Annotated[str, typer.Option(metavar="ORG/NAME", help="Where to publish it.")],
    to: Annotated[
        Literal["vllm", "sglang", "speculators", "universal"], typer.Option(help="Layout.")
    ] = "universal",
    target_name: Annotated[
        str | None, typer.Option(help="The target's Hub id, where --target is a folder.")
    ] = None,
    prompts: Annotated[Path | None, typer.Option(help="For the validation.")] = None,
    min_accept_length: Annotated[float | None, typer.Option(help="Below it, no push.")] = None,
    allow: Annotated[list[str] | None, typer.Option(metavar="CODE")] = None,
    create_pr: Annotated[bool, typer.Option("--create-pr")] = False,
    work: Annotated[Path, typer.Option(help="Where draft and report are kept.")] = Path(
        "published"
    ),
    dry_run: Annotated[bool, typer.Option("--dry-run", help="All but the push.")] = False,
) -> None:
    """Take a draft, convert it, validate it against its source and publish it if that passed."""
    console = Console()
    draft, report_file = work / "draft", work / "report.json"
    with console.outcomes(lambda _: {}):
        reads = (source, target, prompts)
        check_folder(draft, reads, overwrite=True)
        work.mkdir(parents=True, exist_ok=True)
        check_files({"report": report_file}, reads)
        conversion = convert(source, to, target, target_name, draft)
        console.findings(conversion.fitted.findings, notes=False)
        console.line(f"converted from {conversion.loaded.layout} to {to}: {draft}")

        report = validate(draft, source, target, prompts, min_accept_length)
        report_file.write_text(report.model_dump_json(indent=2), encoding="utf-8")
        console.line(f"validated: {report.verdict} ({report_file})")

        place = Place(repo_id, create_pr=create_pr)
        try:
            outcome = publish(draft, report_file, place, allow or [], dry_run=dry_run)
        except Failed as failed:
            console.error("not published: " + "; ".join(failed.reasons))
            raise typer.Exit(EXIT_DIFFERENT) from None
        console.line(f"published: {outcome.pushed.url}" if outcome.pushed else outcome.card)


if __name__ == "__main__":
    typer.run(chain)
