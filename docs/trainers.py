"""Write ``docs/trainers.md`` by running every export of ``tests/data/trainers`` (``make docs``; tests compare its rows)."""

import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests"))

import exports  # noqa: E402
from conversions import convert  # noqa: E402
from torch import Tensor  # noqa: E402

from eagle3_interop.convert import api  # noqa: E402
from eagle3_interop.schemas.findings import Refused, errors  # noqa: E402
from eagle3_interop.schemas.trainers.table import TRAINERS  # noqa: E402

Computed = Mapping[str, Tensor]
"""What a trainer's own forward computed."""

PAGE = Path(__file__).with_suffix(".md")
DESTINATIONS = ("sglang", "vllm", "speculators", "universal")
ANSWERS = {one.code for trainer in TRAINERS.values() for one in trainer.uncarried}
"""What ``--allow`` accepts."""

ROWS: dict[str, dict[str, str]] = {
    "specforge": {
        "plain": "plain",
        "nested_ids": "ids in `eagle_config`",
        "full_vocabulary": "full vocabulary",
        "yarn": "yarn",
        "llama3": "llama3 rope",
        "sections": "rope with sections (mrope)",
        "norm_output": "`norm_output: true`",
        "no_norm_output": "`norm_output: false`",
        "ids_as_option": "ids as an option of the run",
        "parallel": "P-EAGLE",
        "parallel_yarn": "P-EAGLE, yarn",
    },
    "modelopt": {
        "default": "default recipe",
        "no_export_rope": "no exported rope scaling",
        "llama3": "llama3 rope",
        "ids": "ids [6, 0, 3]",
        "full_vocabulary": "full vocabulary",
        "two_layers": "two layers",
        "biases": "`attention_bias`",
    },
    "automodel": {
        "plain": "plain",
        "norm_output": "`norm_output: true`",
        "sliding_target": "target with sliding windows",
        "latent": "MLA, plain rope",
        "latent_yarn": "MLA, yarn",
    },
    "eagle": {
        "plain": "no rope keys",
        "linear": "linear rope",
        "theta": "`rope_theta` 5e5",
    },
    "angelslim": {
        "theta": "`rope_theta` 1e6",
        "linear": "linear rope",
        "mrope": "interleaved sections",
    },
    "torchspec": {
        "linear": "linear rope",
        "yarn": "yarn, transformers 5",
        "latent": "MLA, plain rope, transformers 5",
        "latent_yarn": "MLA, yarn",
        "latent_vllm": "MLA, yarn, exported for vLLM",
        "latent_linear": "MLA, linear rope",
        "pruned": "vocabulary pruned at export",
    },
    "speculators": {
        "plain": "plain",
        "norm_before_residual": "`norm_before_residual`",
        "norm_output": "`fc_norm`, `norm_output`",
        "input_norm": "`norm_before_fc`",
        "sliding": "sliding window",
        "parallel": "P-EAGLE",
        "parallel_yarn": "P-EAGLE, yarn",
    },
}
"""By trainer, each export's folder and what it is."""

GIVEN: dict[str, dict[str, Any]] = {
    "specforge/ids_as_option": {"taps": (1, 4, 7)},
    "torchspec/latent": {"sets": {"rope.theta": 10000.0}},
}
"""What the user has to say of an export that does not say it."""
_FLAGS = {"sets": "set"}

HEAD = """# Trainers

Engines compute a network from a folder. The code that trained the draft may have computed another one from the same config.
Where a trainer is recognised by a **certain** sign, `auto-to-...`, `inspect` and `eagle3-diagnose` read the draft as it was trained
and say so (`read-as-trained`); `A-to-B` asks (`trained-otherwise`), for it names an engine. A **likely** sign that would change the network
always asks. The answer is `--trainer NAME` (what was trained), `--trainer none` (what engines compute), or `--set` for the one path that differs.
What was written as trained carries no key of that trainer, and reads back as the same network.

`eagle3-validate` measures what engines compute, says `served-otherwise`, and measures what was trained beside it (`as_trained`): the
difference is what serving the folder costs. What no engine computes cannot be written: a finding of its own refuses, and `--allow CODE`
accepts the loss, which is then a warning.

## What was run

This table is written by `make docs` (`python docs/trainers.py`), which runs every row. Each is an export by the trainer's own code
(`tests/data/trainers/`, whose page names versions and producers), random weights, a llama target of eight layers. Numbers are the largest
difference of logits from the trainer's own forward over the largest logit, first draft step / second; **same** is at most 2e-6, float32
rounding. *As engines read it*: the folder as it is, read by its layout's rules. *to ...*: `auto-to-...` with `--target`, its output read
back and run. `make trainers` lets SpecForge, ModelOpt and speculators export all of theirs again.

| trainer | variant | recognised by | as trained | as engines read it | to SGLang | to vLLM | to speculators | universal |
|---|---|---|---|---|---|---|---|---|
"""

TAIL = """
MLA is latent attention. A plain rope of TorchSpec's was trained with its own base under transformers 4 and with 10000 under transformers 5,
which no folder tells: `rope-base-untold` asks. ModelOpt's template of Kimi's kind (`kimik2`) is recognised and not in the table, for its
decoder's code is on the Hub: its head's size, which its config does not name, is taken from its rows. Not described: exports of ModelOpt's
Megatron flow.
"""


def row(trainer: str, variant: str) -> str:
    """One row, as it is found now."""
    name = f"{trainer}/{variant}"
    theirs, given = exports.forward(name), GIVEN.get(name, {})
    cells = [
        TRAINERS[trainer].title,
        ROWS[trainer][variant],
        _sign(name),
        _as_trained(name, trainer, theirs),
        _as_served(name, theirs),
        *(_converted(name, destination, theirs, given) for destination in DESTINATIONS),
    ]
    return f"| {' | '.join(cells)} |"


def _sign(name: str) -> str:
    loaded = api.load(str(exports.DATA / name), describing=True)
    who = loaded.trainer
    return "nobody's sign" if who is None else f"{who.certainty}: {who.sign}"


def _as_trained(name: str, trainer: str, theirs: Computed) -> str:
    options = {"trainer": trainer, "allow": tuple(ANSWERS), **GIVEN.get(name, {})}
    try:
        loaded = exports.read(name, **options)
    except Refused as refused:
        return f"lost (`{'`, `'.join(_codes(refused))}`)"
    assert loaded.trainer is not None  # noqa: S101
    switches = loaded.trainer.switches
    found = _size(exports.distance(loaded, theirs, switches))
    with_ = [f"{key.replace('_', ' ')}: {value}" for key, value in switches.items()]
    with_ += [f"`--{_FLAGS.get(key, key)}`" for key in GIVEN.get(name, {})]
    return ", ".join([found, *with_])


def _as_served(name: str, theirs: Computed) -> str:
    options = api.Options(target=str(exports.TARGET))
    try:
        loaded = api.load(str(exports.DATA / name), "auto", options, served=True)
    except Refused as refused:
        return f"refused: `{'`, `'.join(_codes(refused))}`"
    return _size(exports.distance(loaded, theirs))


def _converted(name: str, destination: str, theirs: Computed, given: dict[str, Any]) -> str:
    """What `auto-to-...` does, and with the answers that its refusals ask for."""
    trainer = name.partition("/")[0]
    options: dict[str, Any] = dict(given)
    said = [f"`--{_FLAGS.get(key, key)}`" for key in given]
    while True:
        with tempfile.TemporaryDirectory() as work:
            source = exports.copied(name, Path(work) / "draft")
            try:
                result = convert(source, destination, target=exports.TARGET, **options)
            except Refused as refused:
                codes = _codes(refused)
                fresh = [code for code in codes if code in ANSWERS - set(options.get("allow", ()))]
                if fresh:
                    options["allow"] = (*options.get("allow", ()), *fresh)
                    said += [f"`--allow {code}`" for code in fresh]
                elif "trained-otherwise" in codes and "trainer" not in options:
                    options["trainer"] = trainer
                    said.append(f"`--trainer {trainer}`")
                else:
                    return f"refused: `{'`, `'.join(codes)}`"
                continue
            found = _size(exports.distance(exports.written_as(result), theirs))
            return f"{found} with {' '.join(said)}" if said else found


def _codes(refused: Refused) -> list[str]:
    return list(dict.fromkeys(item.code for item in errors(refused.findings)))


def _size(distances: Sequence[float]) -> str:
    words = ["same" if one < exports.ROUNDING else f"{one:.1e}" for one in distances]
    return words[0] if len(set(words)) == 1 else " / ".join(words)


def page() -> str:
    """The page."""
    rows = [row(trainer, variant) for trainer, found in ROWS.items() for variant in found]
    return HEAD + "\n".join(rows) + "\n" + TAIL


if __name__ == "__main__":
    PAGE.write_text(page())
