"""Whole engines of older releases on trained drafts: their counters are the reference's, to the last token.

vLLM's wheels are unpacked whole before today's environment, where they want its torch. SGLang's Python files are,
with the stand-ins of `stubs` for what is compiled.
"""

import json
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import release_seen
import release_trained
import run_engine
import trained
import wheels
from release_grid import Case, Grid
from release_page import TITLES
from release_rows import NOT_WHOLE, WHOLE
from release_seen import SAME

from eagle3_interop.convert.serve.sglang_configs import needs_plugin

DRAFTS = ("plain", "fc_norm", "four_taps", "qwen3", "library_defaults")
"""The one that nearly every release runs, and those of the features that tell releases apart."""

EQUAL, OTHER, STOPPED = "equal", "other", "stopped"


def run(root: Path, engines: Sequence[str]) -> tuple[dict[str, Any], list[str]]:
    """Run each release on the drafts that it runs right by its rules.

    Args:
        root: a new folder.
        engines: whose releases.

    Returns:
        By engine, version and draft what was counted; and a line for each count that is not the reference's.
    """
    root.mkdir()
    found: dict[str, Any] = {}
    failed: list[str] = []
    for engine in (one for one in WHOLE if one in engines):
        found[engine] = {}
        for version in (*NOT_WHOLE[engine], *WHOLE[engine]):
            title = f"{TITLES[engine]} {version}"
            drafts = DRAFTS if version in WHOLE[engine] else DRAFTS[:1]
            cells = {
                name: counted(engine, version, name, folder, root)
                for name, folder in right(engine, version, drafts, root)
            }
            found[engine][version] = cells
            if version in WHOLE[engine]:
                failed += [
                    f"{title}, {name}: {cell}"
                    for name, cell in cells.items()
                    if cell["state"] != EQUAL
                ]
            print(f"{title}, whole: {len(cells)} trained drafts", flush=True)
    return found, failed


def right(
    engine: str, version: str, drafts: Sequence[str], root: Path
) -> Iterator[tuple[str, Path]]:
    """The drafts that a release runs right by its rules, as a conversion writes them for it."""
    rules = release_seen.rules_of(engine, version)
    for name in drafts:
        one = release_trained.Asked(name, engine, release_trained.CONVERTED, "newest", version)
        folder = one.folder(root / "converted")
        case = Case(name, engine, folder, root / "none")
        if release_seen.predict(case, Grid(root, trained.TARGET, [case]), rules).verdict == SAME:
            yield name, folder


def counted(engine: str, version: str, name: str, folder: Path, root: Path) -> dict[str, str]:
    """What one release counted of one draft, beside what the reference counts; or why it stopped."""
    wanted = trained.expected(trained.source(name), "speculators")
    try:
        found = generate(engine, version, folder, root)
    except run_engine.EngineError as error:
        return {"state": STOPPED, "detail": reason(str(error))}
    if not trained.wrote_the_targets_text(found):
        detail = "it wrote another text than the target does"
        return {"state": STOPPED, "detail": detail}
    state = EQUAL if trained.same(found, wanted) else OTHER
    figures = trained.figures(found)
    return {
        "state": state,
        "detail": figures if state == EQUAL else f"{figures} for {trained.figures(wanted)}",
    }


def reason(log: str) -> str:
    """The last error of a log."""
    lines = [line.rpartition("]:")[2].strip() for line in log.splitlines()]
    errors = [line for line in lines if line.partition(":")[0].endswith("Error")]
    return errors[-1] if errors else lines[-1]


def generate(engine: str, version: str, folder: Path, scratch: Path) -> dict[str, Any]:
    """A run of one release, with the plugin where the folder needs it."""
    path = [wheels.path_of(engine, version, compiled=engine == "vllm")]
    variables: dict[str, str] = {}
    if engine == "sglang" and needs_plugin(json.loads((folder / "config.json").read_text())):
        variables = trained.plugin_variables(scratch)
        path.append(variables["PYTHONPATH"])
    variables["PYTHONPATH"] = os.pathsep.join(path)
    request = trained.generation(folder)
    return run_engine.run_engine(engine, request, variables=variables, timeout_s=600)
