"""What the runs of releases found: kept in ``releases.json``, shown in ``docs/releases.md``."""

import json
import textwrap
from pathlib import Path
from typing import Any

from release_rows import FORM_TITLES, FORMS, NOT_WHOLE, ROWS, VERSIONS

ROOT = Path(__file__).resolve().parents[2]
RESULTS = Path(__file__).resolve().parent / "releases.json"
PAGE = ROOT / "docs" / "releases.md"
TITLES = {"vllm": "vLLM", "sglang": "SGLang"}
WORDS = {"same": "runs", "different": "other", "does-not-load": "fails", "": "did not run"}

Found = dict[str, dict[str, str]]
"""By case: ``predicted``, ``seen``, ``why`` (the rules' reason) and ``detail`` (of the run)."""


def wrong(found: Found) -> list[str]:
    """A line for each cell where rules and run disagree."""
    return [
        f"{name}: predicted {cell['predicted']} ({cell['why']}), seen {cell['seen']} ({cell['detail']})"
        for name, cell in found.items()
        if cell["predicted"] != cell["seen"]
    ]


def save(section: str, found: dict[str, Any], *, merged: bool = False) -> None:
    """Put what was found into what is known, and write data and page.

    Args:
        section: an engine, or another part of the page.
        found: by version, or what else the section is made of.
        merged: each entry holds a part alone: what it does not hold stays as it was.
    """
    known = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    entries = known.setdefault(section, {})
    for name, entry in found.items():
        entries[name] = {**entries.get(name, {}), **entry} if merged else entry
    if section in VERSIONS:
        known[section] = {name: entries[name] for name in VERSIONS[section] if name in entries}
    RESULTS.write_text(_dumped(known) + "\n")
    PAGE.write_text(page(known))


def _dumped(value: Any, indent: str = "") -> str:
    """JSON, a cell a line."""
    if not isinstance(value, dict) or not any(isinstance(x, dict) for x in value.values()):
        return json.dumps(value, sort_keys=True)
    inner = f"{indent} "
    lines = (f"{inner}{json.dumps(k)}: {_dumped(value[k], inner)}" for k in sorted(value))
    return "{\n" + ",\n".join(lines) + f"\n{indent}}}"


def page(known: dict[str, Any]) -> str:
    """The page."""
    lines = [
        "# Releases",
        "",
        *_wrapped(
            "Written by `make releases`: do not edit. Every release ran its own config reader, loader, sharing of "
            "tables, capture of hidden states and draft class on every folder: drafts with random weights, one "
            "feature a row, beside a llama target of 8 layers, three draft steps deep, in float32. Old wheels are "
            "unpacked side by side and imported by today's Python and torch, with the transformers that they pin; "
            "what is compiled in them stands still, and torch code of the engine's own computes in its place."
        ),
        "",
        *_wrapped(
            "*runs*: the logits are those of the reference for the network that the folder means, to float32 "
            "rounding. *other*: it loads without an error and computes another network, in parentheses what of it "
            "differs by our rules. *fails*: an error, at loading or at the first step. Each cell was predicted by "
            "the rules of `schemas/engines` and then seen; where the two differ it says **WRONG**. Neighbours that "
            "agree in every cell share a column. A row that is missing among what a conversion writes, it refuses."
        ),
        "",
        *_wrapped(
            "Every cell was run; none was only read. What is cached of latent attention (MLA) vLLM's class expands "
            "by its own projection, SGLang's attends to it as it is. In a P-EAGLE row vLLM's proposer looked for the "
            "mask token and put the hidden state that stands for it through fc, and each later position took both; "
            "for SGLang no conversion writes such a draft. SGLang has this package's plugin where a folder names it: "
            "external packages are read from 0.5.6 on, and the plugin refuses what it was not run with."
        ),
    ]
    for engine in VERSIONS:
        if engine not in known:
            continue
        for form in FORMS[engine]:
            lines += ["", f"## {TITLES[engine]}, {FORM_TITLES[form]}", ""]
            lines += table(engine, form, known[engine])
    if "trained" in known:
        lines += trained(known["trained"])
    if "whole" in known:
        lines += whole(known["whole"])
    return "\n".join(lines) + "\n"


def table(engine: str, form: str, known: dict[str, Found]) -> list[str]:
    """One form of folder in all releases of an engine."""
    versions = [version for version in VERSIONS[engine] if version in known]
    ending = f" ({form})"
    found = {name for cells in known.values() for name in cells}
    rows = [f"{row}{ending}" for row in ROWS if f"{row}{ending}" in found]
    columns: list[tuple[list[str], list[str]]] = []
    for version in versions:
        cells = [_cell(known[version].get(name)) for name in rows]
        if columns and columns[-1][1] == cells:
            columns[-1][0].append(version)
        else:
            columns.append(([version], cells))
    titles = [f"{names[0]} to {names[-1]}" if len(names) > 1 else names[0] for names, _ in columns]
    lines = ["| | " + " | ".join(titles) + " |", "|---" * (len(titles) + 1) + "|"]
    for index, name in enumerate(rows):
        shown = [cells[index] for _, cells in columns]
        lines.append(f"| {name.removesuffix(ending)} | " + " | ".join(shown) + " |")
    return lines


def _cell(found: dict[str, str] | None) -> str:
    if found is None:
        return ""
    seen, predicted = found["seen"], found["predicted"]
    if seen != predicted:
        return f"**WRONG**: predicted {WORDS[predicted]}, {WORDS[seen]}"
    return (
        f"{WORDS[seen]} ({found['why']})" if seen == "different" and found["why"] else WORDS[seen]
    )


def trained(known: dict[str, Any]) -> list[str]:
    """Where the releases of each engine begin to run the trained drafts."""
    lines = [
        "",
        "## Where the releases begin to run the trained drafts",
        "",
        *_wrapped(
            "The nine drafts of `tests/data/drafts` beside their own target, over 80 positions: as speculators wrote "
            "them (*as stored*), and as `auto-to-vllm` and `auto-to-sglang` write them "
            "(*converted*; for the first right release with `--for`). `inspect` names the first release that runs a "
            "folder right and the last that does not; these and the newest ran it. The logits are held against the "
            "reference of the draft as it is stored. SGLang has the plugin of this package where a folder needs it."
        ),
    ]
    for engine, title in TITLES.items():
        if engine not in known:
            continue
        lines += ["", f"### {title}", "", "| draft | folder | first right | last wrong | newest |"]
        lines += ["|---" * 5 + "|"]
        for name, forms in sorted(known[engine].items()):
            for form, turn in forms.items():
                told = (
                    _turned(turn["first"]) or "none",
                    _turned(turn["before"]),
                    _turned(turn["newest"]),
                )
                lines.append(f"| {name} | {form} | " + " | ".join(told) + " |")
    return lines


def _turned(found: dict[str, str] | None) -> str:
    return "" if found is None else f"{found['version']}: {_cell(found)}"


def whole(known: dict[str, Any]) -> list[str]:
    """What whole engines counted of the trained drafts."""
    lines = [
        "",
        "## Whole engines",
        "",
        *_wrapped(
            "Conversions of trained drafts in whole engines, 24 prompts, 96 new tokens each, four draft tokens a step, "
            "float32: drafting steps / accepted tokens, equal to the reference's at every position. Drafts that a "
            "release does not run right by its rules are left out. vLLM's wheels are unpacked whole before today's "
            "environment, whose torch they want; vLLM 0.30 gets C++ kernels of its own that it puts where nobody reads "
            "them. SGLang's Python files run on stand-ins for what is compiled. The first rows are the releases that "
            "do not run so, and what stops them."
        ),
    ]
    for engine, title in TITLES.items():
        if engine not in known:
            continue
        drafts = list(dict.fromkeys(name for cells in known[engine].values() for name in cells))
        lines += ["", f"### {title}, whole", "", "| | " + " | ".join(drafts) + " |"]
        lines += ["|---" * (len(drafts) + 1) + "|"]
        for version in sorted(known[engine], key=_numbers):
            cells = known[engine][version]
            note = NOT_WHOLE[engine].get(version, "")
            told = [_counted(cells.get(name), note) for name in drafts]
            lines.append(f"| {version} | " + " | ".join(told) + " |")
    return lines


def _numbers(version: str) -> list[int]:
    return [int(part) for part in version.split(".")]


def _counted(found: dict[str, str] | None, note: str) -> str:
    if found is None:
        return ""
    marks = {"equal": "", "other": "**OTHER**: ", "stopped": f"does not run; {note}: "}
    return marks[found["state"]] + found["detail"].replace("|", "\\|")


def _wrapped(text: str) -> list[str]:
    return textwrap.wrap(text, 118, break_long_words=False)
