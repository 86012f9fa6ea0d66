"""Convert the tiny trained drafts of this repository everywhere and back, and show what was checked.

    make demo

Each draft was trained and saved by the real speculators library (``tests/data/README.md``). Each row of
the table is one conversion: the weight file compared by its sha256, the way back to speculators by
description and bit for bit, and the acceptance of the converted draft, measured against the source's on the
same texts of the target. It ends with the card that a push would publish.
"""

import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table
from transformers.utils import logging

from eagle3_interop.convert import api
from eagle3_interop.convert.decide import inspection
from eagle3_interop.convert.write.stream import sha256_of
from eagle3_interop.recipes.publish.hub import Place
from eagle3_interop.recipes.publish.publication import push
from eagle3_interop.schemas.report import Report
from eagle3_interop.validators.accept.shape import Shape
from eagle3_interop.validators.prove.request import Request
from eagle3_interop.validators.prove.validate import validate

DATA = Path(__file__).resolve().parents[1] / "tests" / "data"
TARGET = str(DATA / "target")
DESTINATIONS = ("sglang", "vllm", "universal")
OPTIONS = api.Options(target=TARGET, target_name="your-org/your-target")


@dataclass(frozen=True)
class Row:
    """One conversion, and what was found."""

    draft: str
    destination: str
    folder: Path
    weights: str
    runs: str
    same: bool
    report: Report

    @property
    def good(self) -> bool:
        """The way back ended where it began, and the counters are equal."""
        return self.same and self.report.verdict == "pass"

    def cells(self) -> list[str]:
        """The row of the table."""
        acceptance = self.report.acceptance
        counted = "" if acceptance is None else f"{acceptance.accept_length:.3f}"
        return [
            self.draft,
            self.destination,
            self.weights,
            self.runs,
            "the same network" if self.same else "DIFFERENT",
            f"{counted} {self.report.verdict}",
        ]


def convert(source: Path, destination: str, output: Path) -> api.Conversion:
    """One conversion, from whatever layout the source is in."""
    conversion = api.convert(api.load(str(source), "auto", OPTIONS), destination, OPTIONS)
    api.write(conversion, output)
    return conversion


def measure(draft: Path, source: Path) -> Report:
    """Logits and counters of a converted draft against its source's."""
    request = Request(
        checkpoint=str(draft),
        target=TARGET,
        against=str(source),
        prompts=DATA / "prompts.jsonl",
        shape=Shape.chain(4),
        new_tokens=96,
    )
    report, _ = validate(request)
    return report


def rows(workspace: Path) -> Iterator[Row]:
    """Convert each draft there and back, and measure it."""
    for source in sorted(path for path in (DATA / "drafts").iterdir() if path.is_dir()):
        for destination in DESTINATIONS:
            there = workspace / f"{source.name}-{destination}"
            back = workspace / f"{source.name}-{destination}-back"
            conversion = convert(source, destination, there)
            convert(there, "speculators", back)
            ours, theirs = (api.load(str(path), "auto", OPTIONS) for path in (source, back))
            kept = len({sha256_of(path / "model.safetensors") for path in (source, there)}) == 1
            changed = sum(bool(output.note) for output in conversion.fitted.outputs)
            plugin = conversion.fitted.writing.plugin
            yield Row(
                source.name,
                destination,
                there,
                "same file (sha256)" if kept else f"{changed} changed",
                "with the plugin" if plugin else "stock",
                inspection.compare(ours, theirs)["same"],
                measure(there, source),
            )


def card(row: Row, report: Path) -> str:
    """The card that a push would publish with this draft."""
    report.write_text(row.report.model_dump_json())
    allow = {item.code for item in row.report.findings if item.severity == "warning"}
    place = Place("your-org/your-draft")
    return push(row.folder, place, report, allow=sorted(allow), dry_run=True).card


def main() -> int:
    """Print the table and one card; exit code 1 if anything changed on the way."""
    logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    table = Table(title="speculators drafts, converted and back", box=None)
    for column in ("draft", "to", "weights", "runs", "back to speculators", "accept length"):
        table.add_column(column, no_wrap=True)
    console = Console(width=110)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        found = []
        for row in rows(folder):
            found.append(row)
            table.add_row(*row.cells())
        console.print(table)
        first = next(row for row in found if row.draft == "plain")
        print("eagle3-push --dry-run, for plain converted to SGLang:\n")
        print(card(first, folder / "report.json"))
    return int(not all(row.good for row in found))


if __name__ == "__main__":
    raise SystemExit(main())
