"""Whole engines of older releases on trained drafts: their counters are the reference's, to the last token.

vLLM's wheels are unpacked whole before today's environment, where they want its torch. SGLang's Python files are,
with the stand-ins of `stubs` for what is compiled.
"""

import json
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import build_env
import release_seen
import run_engine
import trained
import wheels
from release_grid import Case, Grid
from release_page import TITLES
from release_rows import NOT_WHOLE, WHOLE
from release_seen import SAME

from eagle3_interop.convert.serve.sglang_configs import needs_plugin
from eagle3_interop.schemas.dialects.keys import parallel_signs

PARALLEL = "peagle"
DRAFTS = ("plain", "fc_norm", "four_taps", "qwen3", "library_defaults", PARALLEL)
"""The one that nearly every release runs, those of the features that tell releases apart, and a P-EAGLE one."""

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
    for engine in engines:
        found[engine] = {}
        for version in (*NOT_WHOLE[engine], *WHOLE[engine]):
            cells = {
                name: counted(engine, version, name, folder, root)
                for name, folder in right(engine, version, root)
            }
            found[engine][version] = cells
            title = f"{TITLES[engine]} {version}"
            for name, cell in cells.items():
                if version in WHOLE[engine] and cell["state"] != EQUAL:
                    failed.append(f"{title}, whole, {name}: {cell}")
            print(f"{title}, whole: {len(cells)} trained drafts", flush=True)
    return found, failed


def source(name: str) -> Path:
    """The folder that speculators wrote."""
    return trained.DATA / "parallel" / name if name == PARALLEL else trained.source(name)


def right(engine: str, version: str, root: Path) -> Iterator[tuple[str, Path]]:
    """The drafts that a release runs right by its rules, converted; of one that stops, the first."""
    rules = release_seen.rules_of(engine, version)
    for name in DRAFTS if version in WHOLE[engine] else DRAFTS[:1]:
        if engine == "sglang" and name == PARALLEL:
            continue  # refused: SGLang drafts token by token
        folder = trained.convert(source(name), engine, root)
        case = Case(name, engine, folder, root / "none")
        if release_seen.predict(case, Grid(root, trained.TARGET, [case]), rules).verdict == SAME:
            yield name, folder


def counted(engine: str, version: str, name: str, folder: Path, root: Path) -> dict[str, str]:
    """What one release counted of one draft, beside what the reference counts; or why it stopped."""
    wanted = trained.expected(source(name), "speculators")
    try:
        found = generate(engine, version, folder, root)
    except run_engine.EngineError as error:
        return {"state": STOPPED, "detail": reason(str(error))}
    if not trained.wrote_the_targets_text(found):
        return {"state": STOPPED, "detail": "it writes another text than the target alone"}
    figures = trained.figures(found)
    if trained.same(found, wanted):
        return {"state": EQUAL, "detail": figures}
    return {"state": OTHER, "detail": f"{figures} for {trained.figures(wanted)}"}


def reason(log: str) -> str:
    """The last error of a log."""
    lines = [line.rpartition("]:")[2].strip() for line in log.splitlines()]
    errors = [line for line in lines if line.partition(":")[0].endswith("Error")]
    return errors[-1] if errors else lines[-1]


def generate(engine: str, version: str, folder: Path, scratch: Path) -> dict[str, Any]:
    """A run of one release, with the plugin where the folder needs it."""
    config = json.loads((folder / "config.json").read_text())
    path, variables = [], {}
    if version != build_env.version_of(engine):
        path.append(wheels.path_of(engine, version, compiled=engine == "vllm"))
    if engine == "sglang" and needs_plugin(config):
        variables = trained.plugin_variables(scratch)
        path.append(variables["PYTHONPATH"])
    variables["PYTHONPATH"] = os.pathsep.join(path)
    request = trained.generation(folder)
    if parallel_signs(config):
        asked = {"method": "eagle3", "model": str(folder), "num_speculative_tokens": 4}
        request["engine_args"] = {"speculative_config": asked | {"parallel_drafting": True}}
    return run_engine.run_engine(engine, request, variables=variables, timeout_s=600)
