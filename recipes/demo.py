"""Convert the tiny trained drafts of this repository to every layout and back, and show what was checked.

    make demo

Each draft was trained and saved by the real speculators library (``tests/data/README.md``). Each row is
one conversion: the weight file is compared by its sha256, and the way back to speculators by description
and bit for bit.
"""

import tempfile
import time
from pathlib import Path

from rich.console import Console
from rich.table import Table

from eagle3_interop.convert import api, inspection, serve
from eagle3_interop.convert.stream import sha256_of

DATA = Path(__file__).resolve().parents[1] / "tests" / "data"
TARGET = DATA / "target"
DESTINATIONS = ("sglang", "vllm", "universal")


def convert(source: Path, destination: str, output: Path) -> api.Conversion:
    """One conversion, from whatever layout the source is in."""
    options = api.Options(target=str(TARGET), target_name="tests/data/target")
    conversion = api.convert(api.load(str(source), "auto", options), destination, options)
    api.write(conversion, output)
    return conversion


def row(draft: Path, destination: str, workspace: Path) -> list[str]:
    """Convert there and back, and say what was found."""
    there, back = (
        workspace / f"{draft.name}-{destination}",
        workspace / f"{draft.name}-{destination}-back",
    )
    began = time.perf_counter()
    conversion = convert(draft, destination, there)
    seconds = time.perf_counter() - began
    convert(there, "speculators", back)
    options = api.Options(target=str(TARGET))
    same = inspection.compare(
        api.load(str(draft), "auto", options), api.load(str(back), "auto", options)
    )["same"]
    weights = "model.safetensors"
    kept = sha256_of(draft / weights) == sha256_of(there / weights)
    changed = sum(bool(output.note) for output in conversion.fitted.outputs)
    plugin = serve.needs_plugin(conversion.fitted.writing.config) and destination != "vllm"
    return [
        draft.name,
        destination,
        "same file (sha256)" if kept else f"{changed} tensors changed",
        "with the plugin" if plugin else "stock",
        "the same network" if same else "DIFFERENT",
        f"{1000 * seconds:.0f} ms",
    ]


def main() -> int:
    """Print the table; exit code 1 if a way back did not end where it began."""
    table = Table(title="speculators drafts, converted and back")
    for column in ("draft", "to", "weights", "runs", "back to speculators", "time"):
        table.add_column(column)
    with tempfile.TemporaryDirectory() as folder:
        rows = [
            row(draft, destination, Path(folder))
            for draft in sorted(path for path in (DATA / "drafts").iterdir() if path.is_dir())
            for destination in DESTINATIONS
        ]
    for cells in rows:
        table.add_row(*cells)
    Console(width=110).print(table)
    return int(any(cells[4] != "the same network" for cells in rows))


if __name__ == "__main__":
    raise SystemExit(main())
