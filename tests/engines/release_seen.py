"""What a release's own code makes of folders, and what our rules predict. Nothing is called seen that was not run."""

import hashlib
import json
import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import build_env
import numpy as np
import run_engine
import trained
import wheels
from release_grid import STEPS, Case, Grid, logits_of

from eagle3_interop.convert.decide import inspection
from eagle3_interop.convert.serve.sglang_configs import needs_plugin
from eagle3_interop.schemas.dialects.keys import parallel_signs
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
    found: dict[str, Seen] = {}
    by_how: dict[How, list[Case]] = {}
    for case in grid.of(engine):
        by_how.setdefault(How.of(engine, case), []).append(case)
    for how, cases in by_how.items():
        seen = _see(engine, version, grid, cases, how, kept=kept)
        if isinstance(seen, str):
            if not how.plugin or not (said := REFUSAL.search(seen)):
                return seen
            seen = {case.name: Seen(FAILS, said[0]) for case in cases}
        found |= seen
    return found


@dataclass(frozen=True)
class How:
    """In which process a folder is run.

    Attributes:
        rig: a key of ``RIGS``.
        plugin: with the plugin.
    """

    rig: str
    plugin: bool = False

    @classmethod
    def of(cls, engine: str, case: Case) -> "How":
        """What a folder needs."""
        config = json.loads((case.folder / "config.json").read_text())
        kind = "-latent" if "kv_lora_rank" in config else ""
        if engine == "vllm" and parallel_signs(config):
            kind = "-parallel"
        return cls(f"{engine}-release{kind}", engine == "sglang" and needs_plugin(config))

    @property
    def script(self) -> Path:
        """Of the rig."""
        return HERE / run_engine.RIGS[self.rig].script


REFUSAL = re.compile(r"UntestedSGLangError: .*")
"""The plugin stops an SGLang that it was not run with, before anything is loaded."""


def _see(
    engine: str,
    version: str,
    grid: Grid,
    cases: Sequence[Case],
    how: How,
    *,
    kept: bool,
) -> dict[str, Seen] | str:
    """One process of a release."""
    variables = trained.plugin_variables(grid.root) if how.plugin else {}
    kept_in = build_env.environments_home() / "releases" / "seen" / f"{engine}-{version}"
    kept_in.mkdir(parents=True, exist_ok=True)
    stems = {case.name: kept_in / _digest(engine, case, grid, how) for case in cases}
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
                how.rig, request, variables={**variables, **needed}, timeout_s=1800
            )
        except run_engine.EngineError as error:
            return str(error)
        for case, said in zip(missing, found["cases"], strict=True):
            stems[case.name].with_suffix(".json").write_text(json.dumps(said, indent=1))
    return {case.name: _judged(grid, case, stems[case.name]) for case in cases}


ABSENT = {"vllm": "gguf diskcache", "sglang": "triton torchvision torchaudio sgl_kernel"}
"""What a release imports and its environment, today's, has not."""


def _digest(engine: str, case: Case, grid: Grid, how: How) -> str:
    """Of all that decides what is seen of a case."""
    given = sorted(trained.plugin_variables(grid.root)) if how.plugin else []
    found = hashlib.sha256("".join(given).encode())
    sources = [HERE / f"{engine}_release.py", HERE / "draft_steps.py", case.inputs]
    if how.script not in sources:
        sources.append(how.script)
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
