"""The conformance matrix: what runs found, kept as data and rendered to ``docs/conformance.md``.

A run replaces the rows that it ran and keeps the others, each with the versions that it was found with.
"""

import json
import textwrap
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
RESULTS = Path(__file__).resolve().parent / "results.json"
PAGE = ROOT / "docs" / "conformance.md"

EQUAL, REFUSED, DIFFERS, HOLDS = "equal", "refused", "differs", "holds"
FAILS = "does not load"
TITLES = {"sglang": "SGLang", "speculators": "speculators", "vllm": "vLLM"}
WRONG = "**WRONG**"
"""Recorded where a run contradicts what the cell claims; the test fails as well."""

SECTIONS = {
    "trained": (
        "Trained drafts in whole engines",
        "Every cell is a run of the engine itself on the folder that the column names: 24 prompts of 48 "
        "tokens, 96 new tokens each, greedy, float32, end-of-sequence ignored, four draft tokens a step. "
        "*equal*: text and counters are those of the reference walk, to the last token. The figures are "
        "drafts / accepted. *flipped* is the same walk with the row's feature switched off or over: what a "
        "framework that ignores it would count. *does not load*: the engine fails on it, as `inspect` says of "
        "the folder.",
    ),
    "parallel": (
        "A trained P-EAGLE draft",
        "As above, of the draft class that proposes all tokens in one pass, with vLLM's `parallel_drafting`. "
        "*flipped* drafts token by token, which vLLM does without that flag, to the last token.",
    ),
    "trainers": (
        "Trained drafts in the forms of trainers",
        "As above. Each row is the form of a real export (`tests/data/trainers`: its keys, its names of tensors) "
        "around the trained weights. *as trained* is the reference walk of what the trainer's own code computes, as far as "
        "an engine can compute it; *as the folder is*, of what engines make of that very folder. *converted*: the engine "
        "itself on `auto-to-...`, with `--trainer` and `--allow` where they are asked for. See [trainers](trainers.md).",
    ),
    "mla": (
        "Trained drafts for a target with latent attention (MLA)",
        "As above, of a target of DeepSeek-V3's class with experts and yarn, and drafts with latent attention (`mla`) "
        "and without (`gqa`). *source*: the folder as its trainer published it for SGLang, whose ids vLLM takes for "
        "taps one layer lower. *flipped*: `mla` with the other pairs of its rope, `gqa` with those lower taps.",
    ),
    "stock": (
        "The same drafts forced into SGLang's stock class",
        "Where the plugin is needed, the folder was renamed to `LlamaForCausalLMEagle3` and run all the "
        "same. *differs*: it starts, drafts, and computes another network.",
    ),
    "trees": (
        "Trees in SGLang",
        "Steps, top-k and draft tokens as SGLang's flags say them; figures are drafts / accepted.",
    ),
    "classes": (
        "Random drafts in the draft classes",
        "Weights at random, one feature a row, four draft steps deep, float32. Truth is the source "
        "framework's own class on the source folder; each other column is that framework's class on our "
        "conversion (`universal`: all three). *equal*: logits of every step agree to float32 rounding, the "
        "largest difference in parentheses, relative to the largest logit. *refused*: our converter says "
        "no, by the code in parentheses; forced through, the destination's class gave another network (by "
        "how much) or failed.",
    ),
    "latent": (
        "Random drafts with latent attention (MLA) in the draft classes",
        "As above. *reference*: our forward of the source, held against its framework's class. speculators has no such "
        "class, so `universal` is SGLang and vLLM here. Which streams a target hands over no class tells: see the "
        "trained drafts.",
    ),
    "quantised": (
        "Quantised drafts in the draft classes",
        "Sources in SGLang's layout, quantised by their formats' definitions, converted. *vllm*, *universal*: vLLM's "
        "class in bfloat16 on a CPU, its logits against those of the plain draft that `--dequantize` writes, "
        "relative, in the mean square: what is left is the rounding of inputs and kernels. *SGLang's class*: its "
        "loader alone, since its kernels are CUDA's; every part of the file lies in the parameter that it belongs "
        "to, bit for bit. *numbers*: what source and outputs stand for, dequantised, bit for bit.",
    ),
    "facts": (
        "Facts",
        "What the conversions rest on, each shown by running the framework: *class*, two folders give its "
        "draft class the same logits, or one is refused by it; *engine*, a whole run.",
    ),
    "plugin": (
        "What the plugin refuses",
        "Folders that are not the network of their config, given to the plugin inside SGLang.",
    ),
}

COLUMNS = (
    "reference",
    "flipped",
    "vLLM: source",
    "vLLM: vllm",
    "vLLM: universal",
    "SGLang: sglang",
    "SGLang: universal",
    "speculators",
    "sglang",
    "vllm",
    "universal",
)
"""Their order; any other column stands after these."""


@dataclass
class Matrix:
    """Cells found in this run.

    Attributes:
        cells: section, row, column to what was found.
    """

    cells: dict[tuple[str, str, str], dict[str, Any]] = field(default_factory=dict)

    def record(
        self, section: str, row: str, column: str, verdict: str, detail: str = "", **versions: str
    ) -> None:
        """Keep one cell.

        Args:
            section: a key of ``SECTIONS``.
            row: what was run.
            column: where.
            verdict: one of the words above.
            detail: figures or codes.
            versions: engine to version.
        """
        self.cells[section, row, column] = {
            "verdict": verdict,
            "detail": detail,
            "versions": versions,
        }

    def claim(
        self,
        section: str,
        row: str,
        column: str,
        verdict: str,
        holds: bool,
        detail: str = "",
        **versions: str,
    ) -> None:
        """Keep one cell, as wrong where its verdict does not hold, and fail then.

        Raises:
            AssertionError: it does not hold.
        """
        self.record(section, row, column, verdict if holds else WRONG, detail, **versions)
        self.save()  # what an hour has found survives an interruption
        assert holds, f"{row}, {column}: not {verdict} ({detail})"

    def save(self) -> None:
        """Merge this run's cells with the last known ones, and write data and page."""
        if not self.cells:
            return
        known = json.loads(RESULTS.read_text()) if RESULTS.exists() else []
        cells = {(cell["section"], cell["row"], cell["column"]): cell for cell in known}
        for key, found in self.cells.items():
            section, row, column = key
            cells[key] = {"section": section, "row": row, "column": column, **found}
        ordered = [cells[key] for key in sorted(cells)]
        RESULTS.write_text(json.dumps(ordered, indent=1) + "\n")
        PAGE.write_text(render(ordered))


def render(cells: list[dict[str, Any]]) -> str:
    """The page."""
    versions: dict[str, set[str]] = {}
    for cell in cells:
        for engine, version in cell["versions"].items():
            versions.setdefault(engine, set()).add(version)
    said = ", ".join(
        f"{name} {', '.join(sorted(found))}" for name, found in sorted(versions.items())
    )
    lines = [
        "# Conformance",
        "",
        *_wrapped(
            "Written by `make engines` (a fixed part) and `make conformance` (all of it): do not edit. How the "
            "engines are run on a CPU, and what that does not prove, stands in `tests/engines/README.md`."
        ),
        "",
        f"Run with {said}.",
    ]
    for section, (title, preface) in SECTIONS.items():
        mine = [cell for cell in cells if cell["section"] == section]
        if mine:
            lines += ["", f"## {title}", "", *_wrapped(preface), "", *_table(mine)]
    return "\n".join(lines) + "\n"


def _wrapped(text: str) -> list[str]:
    return textwrap.wrap(text, 118, break_long_words=False)


def _table(cells: list[dict[str, Any]]) -> list[str]:
    columns = sorted({cell["column"] for cell in cells}, key=_column_order)
    found: dict[str, dict[str, str]] = {}
    for cell in cells:
        found.setdefault(cell["row"], {})[cell["column"]] = _text(cell)
    return [
        "| | " + " | ".join(columns) + " |",
        "|---" * (len(columns) + 1) + "|",
        *(
            f"| {row} | " + " | ".join(texts.get(column, "") for column in columns) + " |"
            for row, texts in found.items()
        ),
    ]


def _column_order(column: str) -> tuple[int, str]:
    return COLUMNS.index(column) if column in COLUMNS else len(COLUMNS), column


def _text(cell: Mapping[str, Any]) -> str:
    detail = f" ({cell['detail']})" if cell["detail"] else ""
    return f"{cell['verdict']}{detail}"


if __name__ == "__main__":
    PAGE.write_text(render(json.loads(RESULTS.read_text())))
