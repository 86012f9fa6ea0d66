"""Trained drafts, their conversions and variants, and what the reference says that engines must count."""

import functools
import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import run_engine
from safetensors.numpy import load_file, save_file

from eagle3_interop.convert import api
from eagle3_interop.convert.serve.sglang_configs import needs_plugin
from eagle3_interop.validators.accept.acceptance import Acceptance, measure
from eagle3_interop.validators.accept.shape import Shape
from eagle3_interop.validators.network.reference import Network
from eagle3_interop.validators.network.weights import Weights
from eagle3_interop.validators.target.running import Target
from eagle3_interop.validators.target.texts import Text
from eagle3_interop.validators.target.writing import write_texts

ROOT = Path(__file__).resolve().parents[2]
DATA = ROOT / "tests" / "data"
TARGET = DATA / "target"
MLA = DATA / "mla"
MLA_TARGET = MLA / "target"
NEW_TOKENS = 96
CHAIN = Shape.chain(4)
OPTIONS = api.Options(target=str(TARGET), target_name="org/target")

Tensors = dict[str, np.ndarray[Any, Any]]


def names() -> list[str]:
    """Every trained draft, those first whose conversions are all run."""
    found = sorted(path.parent.name for path in (DATA / "drafts").glob("*/model.safetensors"))
    first = ["plain", "norm_before_residual"]
    return [*first, *(name for name in found if name not in first)]


def source(name: str) -> Path:
    """The folder that speculators wrote."""
    return DATA / "drafts" / name


@functools.cache
def prompts() -> list[list[int]]:
    """The prompts of tests/data."""
    lines = (DATA / "prompts.jsonl").read_text().splitlines()
    return [json.loads(line)["token_ids"] for line in lines]


@functools.cache
def target(folder: Path = TARGET) -> Target:
    """A target, in float32."""
    return Target.load(folder)


@functools.cache
def texts(folder: Path = TARGET) -> tuple[Text, ...]:
    """What a target writes, with room for the deepest tree."""
    return write_texts(target(folder), prompts(), NEW_TOKENS, 8).texts


def options(folder: Path) -> api.Options:
    """Those of every conversion for a target."""
    return replace(OPTIONS, target=str(folder))


def expected(
    folder: Path,
    layout: str = "auto",
    shape: Shape = CHAIN,
    change: Callable[[Any], Any] = lambda draft: draft,
    of: Path = TARGET,
) -> Acceptance:
    """The counters of the reference walk.

    Args:
        folder: a draft.
        layout: how it is read.
        shape: what is drafted a step.
        change: flips a feature of the description.
        of: the target.
    """
    loaded = api.load(str(folder), layout, options(of))
    draft = change(loaded.reading.draft)
    weights = Weights.read(loaded.reading, loaded.checkpoint, tables=target(of).tables)
    weights.draft = draft
    return measure(Network(draft, weights), target(of), texts(of), [shape])[shape]


def convert(folder: Path, destination: str, output: Path, of: Path = TARGET) -> Path:
    """Convert a draft, the target given."""
    loaded = api.load(str(folder), "auto", options(of))
    conversion = api.convert(loaded, destination, options(of))
    api.write(conversion, output / f"{folder.name}-{destination}", overwrite=True)
    return output / f"{folder.name}-{destination}"


def changed(
    folder: Path,
    output: Path,
    config: Callable[[dict[str, Any]], None] = lambda _config: None,
    tensors: Callable[[Tensors], None] = lambda _tensors: None,
) -> Path:
    """A copy of a folder with another config or other tensors."""
    output.mkdir(parents=True)
    keys = json.loads((folder / "config.json").read_text())
    config(keys)
    (output / "config.json").write_text(json.dumps(keys, indent=2))
    weights = load_file(folder / "model.safetensors")
    tensors(weights)
    save_file(weights, output / "model.safetensors", metadata={"format": "pt"})
    return output


def as_stock(folder: Path, output: Path) -> Path:
    """The folder under the name of SGLang's stock class."""
    return changed(
        folder, output, lambda keys: keys.update(architectures=["LlamaForCausalLMEagle3"])
    )


def noise(shape: tuple[int, ...], scale: float, seed: int = 0) -> np.ndarray[Any, Any]:
    """Normal noise in bfloat16."""
    values = np.random.default_rng(seed).standard_normal(shape) * scale
    return values.astype(ml_dtypes.bfloat16)


def generate(engine: str, folder: Path, **request: Any) -> dict[str, Any]:
    """Run a whole engine on a draft, SGLang with the plugin where the folder names it."""
    config = json.loads((folder / "config.json").read_text())
    plugin = engine == "sglang" and needs_plugin(config)
    variables = plugin_variables(folder.parent) if plugin else None
    asked = generation(folder, **request)
    return run_engine.run_engine(engine, asked, variables=variables, timeout_s=600)


def generation(folder: Path, **request: Any) -> dict[str, Any]:
    """What an engine is asked for, with a draft."""
    return {
        "target": str(TARGET),
        "draft": str(folder),
        "prompts": prompts(),
        "max_new_tokens": NEW_TOKENS,
        "num_draft_tokens": 4,
        **request,
    }


def plugin_variables(scratch: Path) -> dict[str, str]:
    """The environment of an SGLang with the two folders of the plugin, nothing else of ours being importable."""
    package = scratch / "plugin" / "eagle3_interop"
    if not package.exists():
        shutil.copytree(ROOT / "convert" / "sglang_plugin", package / "sglang_plugin")
        shutil.copytree(ROOT / "schemas", package / "schemas")
    return {
        "PYTHONPATH": str(package.parent),
        "SGLANG_EXTERNAL_MODEL_PACKAGE": "eagle3_interop.sglang_plugin",
    }


def counters(found: dict[str, Any] | Acceptance) -> tuple[int, int, list[int]]:
    """Drafts, accepted, and accepted per position."""
    if isinstance(found, Acceptance):
        return found.drafts, found.accepted, list(found.per_position)
    return found["drafts"], found["accepted"], found["per_position"]


def same(one: dict[str, Any] | Acceptance, other: dict[str, Any] | Acceptance) -> bool:
    """Whether two runs counted the same, at every position."""
    return counters(one) == counters(other)


def figures(found: dict[str, Any] | Acceptance) -> str:
    """Drafts / accepted."""
    return "{} / {}".format(*counters(found)[:2])


def wrote_the_targets_text(found: dict[str, Any], of: Path = TARGET) -> bool:
    """Whether an engine's text is the one that the reference walked."""
    return found["outputs"] == [list(text.completion[:NEW_TOKENS]) for text in texts(of)]
