"""What a release's own code makes of folders, and what our rules predict. Nothing is called seen that was not run."""

import hashlib
import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import build_env
import numpy as np
import run_engine
import trained
import wheels
from release_grid import STEPS, Case, Grid, logits_of

from eagle3_interop.convert.decide import inspection
from eagle3_interop.convert.serve.sglang_configs import needs_plugin
from eagle3_interop.schemas.engines.release import Release
from eagle3_interop.schemas.engines.releases import RELEASES

HERE = Path(__file__).resolve().parent
TOLERANCE = 2e-5
"""Of the largest logit, as in `test_classes`."""

SAME, OTHER, FAILS = "same", "different", "does-not-load"


@dataclass(frozen=True)
class Seen:
    """What a release did with a folder.

    Attributes:
        verdict: one of the three.
        detail: the error, or how far its logits are from the reference's, relative to the largest.
    """

    verdict: str
    detail: str


def see(engine: str, version: str, grid: Grid, *, kept: bool = False) -> dict[str, Seen] | str:
    """Run one release on all its folders, with the plugin on those that need it.

    Args:
        engine: a key of ``VERSIONS``.
        version: any that `wheels` finds.
        grid: the folders.
        kept: take what the last run of the same rigs on the same folders left, where it is there.

    Returns:
        By the name of the case; or the error that kept the release from running at all.
    """
    cases = grid.of(engine)
    plugin = [case for case in cases if engine == "sglang" and needs_plugin(config_of(case))]
    stock = [case for case in cases if case not in plugin]
    found = _see(engine, version, grid, stock, {}, kept=kept) if stock else {}
    if isinstance(found, str) or not plugin:
        return found
    variables = trained.plugin_variables(grid.root)
    more = _see(engine, version, grid, plugin, variables, kept=kept)
    if isinstance(more, str):
        if not (said := REFUSAL.search(more)):
            return more
        more = {case.name: Seen(FAILS, said[0]) for case in plugin}
    return found | more


REFUSAL = re.compile(r"UntestedSGLangError: .*")
"""The plugin stops an SGLang that it was not run with, before anything is loaded."""


def config_of(case: Case) -> dict[str, Any]:
    """The config.json of a folder."""
    return json.loads((case.folder / "config.json").read_text())


def _see(
    engine: str,
    version: str,
    grid: Grid,
    cases: Sequence[Case],
    variables: Mapping[str, str],
    *,
    kept: bool,
) -> dict[str, Seen] | str:
    """One process of a release, with further variables; a ``PYTHONPATH`` comes after the release."""
    kept_in = build_env.environments_home() / "releases" / "seen" / f"{engine}-{version}"
    kept_in.mkdir(parents=True, exist_ok=True)
    stems = {case.name: kept_in / _digest(engine, case, grid, variables) for case in cases}
    missing = [
        case for case in cases if not kept or not stems[case.name].with_suffix(".json").exists()
    ]
    if missing:
        asked = [
            {
                "draft": str(case.folder),
                "inputs": str(case.inputs),
                "output": str(stems[case.name].with_suffix(".safetensors")),
            }
            for case in missing
        ]
        request = {"target": str(grid.target), "steps": STEPS, "cases": asked}
        path = [wheels.path_of(engine, version), *filter(None, [variables.get("PYTHONPATH")])]
        needed = {"PYTHONPATH": os.pathsep.join(path), "EAGLE3_ABSENT": ABSENT[engine]}
        try:
            found = run_engine.run_engine(
                f"{engine}-release", request, variables={**variables, **needed}, timeout_s=1800
            )
        except run_engine.EngineError as error:
            return str(error)
        for case, said in zip(missing, found["cases"], strict=True):
            stems[case.name].with_suffix(".json").write_text(json.dumps(said, indent=1))
    return {case.name: _judged(grid, case, stems[case.name]) for case in cases}


ABSENT = {"vllm": "gguf diskcache", "sglang": "triton torchvision torchaudio sgl_kernel"}
"""What a release imports and its environment, today's, has not."""


def _digest(engine: str, case: Case, grid: Grid, variables: Mapping[str, str]) -> str:
    """Of all that decides what is seen of a case."""
    found = hashlib.sha256("".join(sorted(variables)).encode())
    sources = [HERE / f"{engine}_release.py", HERE / "draft_steps.py", case.inputs]
    for folder in (case.folder, grid.target):
        sources += [folder / "config.json", folder / "model.safetensors"]
    for path in sources:
        found.update(hashlib.sha256(path.read_bytes()).digest())
    return found.hexdigest()[:16]


def _judged(grid: Grid, case: Case, stem: Path) -> Seen:
    said = json.loads(stem.with_suffix(".json").read_text())
    if "error" in said:
        return Seen(FAILS, said["error"].splitlines()[0])
    found, wanted = logits_of(stem.with_suffix(".safetensors")), grid.wanted(case)
    if found.shape != wanted.shape or not np.isfinite(found).all():
        return Seen(OTHER, "not finite" if found.shape == wanted.shape else "another shape")
    apart = float(np.abs(found - wanted).max() / np.abs(wanted).max())
    return Seen(SAME if apart < TOLERANCE else OTHER, f"{apart:.0e}")


def rules_of(engine: str, version: str) -> Release:
    """The release that covers a version; the newest for one that is newer than all."""
    known = RELEASES[engine]
    return next((release for release in known if release.covers(version)), known[-1])


def predict(case: Case, grid: Grid, release: Release) -> Seen:
    """What the rules of a release say of a folder."""
    verdict = inspection.verdict(grid.loaded(case), release)
    codes = ", ".join(dict.fromkeys(item.code for item in verdict.findings))
    return Seen(verdict.as_is, ", ".join(verdict.differences) or codes)


@dataclass(frozen=True)
class Cell:
    """A release and a folder: what was predicted and what was seen."""

    case: Case
    predicted: Seen
    seen: Seen

    @property
    def agrees(self) -> bool:
        """The rules are right."""
        return self.predicted.verdict == self.seen.verdict

    def report(self) -> dict[str, str]:
        """What is kept of it, without where the folder lay."""
        detail = self.seen.detail.replace(str(self.case.folder), "the folder")
        return {
            "predicted": self.predicted.verdict,
            "seen": self.seen.verdict,
            "why": self.predicted.detail,
            "detail": detail[:160],
        }


def judge(engine: str, release: Release, seen: dict[str, Seen], grid: Grid) -> Iterator[Cell]:
    """All cells of one release."""
    for case in grid.of(engine):
        yield Cell(case, predict(case, grid, release), seen[case.name])
