"""The same folders for every release: what its own code makes of them, and what our rules predict.

A draft with random weights a row, one feature each, spelled by hand; `vllm_release` and `sglang_release` run
what a release has of config reader, loader and draft class. Nothing is called seen that was not run.
"""

import hashlib
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import build_env
import numpy as np
import random_drafts
import run_engine
import torch
import wheels
from random_drafts import GRID, Spec, Tensors
from safetensors.numpy import load_file, save_file

from eagle3_interop.convert import api
from eagle3_interop.convert.decide import inspection
from eagle3_interop.convert.decide.loaded import Loaded
from eagle3_interop.schemas.draft import Draft
from eagle3_interop.schemas.engines.release import Release
from eagle3_interop.schemas.engines.releases import RELEASES
from eagle3_interop.validators.network.reference import Features, Network, rms_norm
from eagle3_interop.validators.network.weights import Tables, Weights

HERE = Path(__file__).resolve().parent
STEPS, LENGTH, LAYERS = 3, 16, 8
TOLERANCE = 2e-5
"""Of the largest logit, as in `test_classes`."""

VERSIONS = {
    "vllm": [
        "0.11.0",
        "0.11.2",
        "0.12.0",
        "0.13.0",
        "0.14.1",
        "0.15.1",
        "0.16.0",
        "0.17.1",
        "0.18.1",
        "0.19.0",
        "0.19.1",
        "0.20.2",
        "0.21.0",
        "0.22.1",
        "0.23.0",
        "0.24.0",
        "0.25.1",
        "0.26.0",
        "0.27.1",
        "0.28.0",
        "0.29.0",
        "0.30.0",
        "0.31.0",
        "0.32.0",
        "0.33.0",
    ],
    "sglang": [
        "0.5.3.post3",
        "0.5.4.post3",
        "0.5.5.post3",
        "0.5.6.post2",
        "0.5.7",
        "0.5.8.post1",
        "0.5.9",
        "0.5.10.post1",
        "0.5.11",
        "0.5.12.post1",
        "0.5.13.post1",
        "0.5.14",
        "0.5.15.post1",
        "0.5.16",
        "0.5.17",
        "0.5.18",
        "0.5.19",
        "0.5.20",
        "0.5.21",
        "0.5.22",
        "0.5.23",
    ],
}
"""Run by ``make releases``: the last patch of each, and those where a patch is another release."""

IN_CI = {"vllm": ("0.21.0", "0.24.0"), "sglang": ("0.5.11", "0.5.16")}
FORMS = {"vllm": ("vllm", "speculators", "sglang"), "sglang": ("sglang",)}
FORM_TITLES = {
    "vllm": "vLLM's flat form",
    "speculators": "speculators' form",
    "sglang": "SGLang's flat form",
}

SAME, OTHER, FAILS = "same", "different", "does-not-load"

Change = Callable[[dict[str, Any], Tensors], None]


@dataclass(frozen=True)
class Row:
    """A folder's feature.

    Attributes:
        spec: the draft.
        forms: in which it is written.
        change: made to config and tensors after that.
        core: CI runs it.
    """

    spec: Spec
    forms: tuple[str, ...] = ()
    change: Change = lambda _config, _tensors: None
    core: bool = False


def _no_ids(config: dict[str, Any], _tensors: Tensors) -> None:
    config.pop("eagle_aux_hidden_state_layer_ids", None)
    config.get("eagle_config", {}).pop("eagle_aux_hidden_state_layer_ids", None)


def _nested_ids(config: dict[str, Any], _tensors: Tensors) -> None:
    ids = config.pop("eagle_aux_hidden_state_layer_ids")
    config["eagle_config"] = {"eagle_aux_hidden_state_layer_ids": ids}


def _old_rope(config: dict[str, Any], _tensors: Tensors) -> None:
    rope = dict(config.pop("rope_parameters"))
    config["rope_theta"] = rope.pop("rope_theta")
    config["rope_scaling"] = None if rope["rope_type"] == "default" else rope


def _both_ropes(config: dict[str, Any], tensors: Tensors) -> None:
    rope = config["rope_parameters"]
    _old_rope(config, tensors)
    config["rope_parameters"] = rope


def _named_by_number(_config: dict[str, Any], tensors: Tensors) -> None:
    for name in list(tensors):
        tensors[name.replace("midlayer.", "layers.0.")] = tensors.pop(name)


def _identity_map(config: dict[str, Any], tensors: Tensors) -> None:
    tensors["d2t"] = np.zeros(config["draft_vocab_size"], np.int64)


MILLION = {"rope_parameters": {"rope_type": "default", "rope_theta": 1e6}}
FLAT = ("vllm", "sglang")
ALL_ON = {"fc_norm": True, "norm_output": True}

CORE = {
    "one llama layer",
    "two layers",
    "norm_before_residual",
    "norm_before_fc",
    "fc_norm",
    "norm_output",
    "four taps",
    "two taps",
    "own embeddings",
    "full vocabulary",
    "no fc",
    "qwen3 layer",
}

ROWS = {
    **{name: Row(spec, core=name in CORE) for name, spec in GRID.items()},
    "the default triple, no ids": Row(Spec(taps=(2, 4, 5)), change=_no_ids, core=True),
    "ids in eagle_config alone": Row(Spec(), ("vllm",), _nested_ids, core=True),
    "tap after the last layer": Row(Spec(taps=(1, 3, LAYERS))),
    "layers.0 for midlayer": Row(Spec(), ("sglang",), _named_by_number, core=True),
    "full vocabulary and its d2t": Row(Spec(draft_vocab=random_drafts.V), FLAT, _identity_map),
    "rope theta of a million, old keys": Row(Spec(decoder=MILLION), FLAT, _old_rope, core=True),
    "rope theta of a million, old and new keys": Row(Spec(decoder=MILLION), FLAT, _both_ropes),
    "yarn rope, old keys": Row(GRID["yarn rope"], FLAT, _old_rope),
    "all on": Row(
        Spec(layers=2, taps=(1, 2, 4, 5), flags=ALL_ON),
        core=True,
    ),
    "all on, residual after the norm": Row(
        Spec(
            random_drafts.NO_SGLANG,
            kind="qwen3",
            layers=2,
            taps=(1, 2, 4, 5),
            flags={**ALL_ON, "norm_before_residual": True},
            own_embeddings=True,
        ),
        core=True,
    ),
}


@dataclass(frozen=True)
class Case:
    """One folder of the grid."""

    row: str
    form: str
    folder: Path
    inputs: Path

    @property
    def name(self) -> str:
        """Its key."""
        return f"{self.row} ({self.form})"


@dataclass
class Grid:
    """All folders, written once, and the reference's logits of each.

    Attributes:
        root: where they lie.
        target: the folder of the target.
        cases: of every form.
    """

    root: Path
    target: Path
    cases: list[Case]
    _loaded: dict[Path, Loaded] = field(default_factory=dict)
    _wanted: dict[Path, np.ndarray[Any, Any]] = field(default_factory=dict)

    @classmethod
    def write(cls, root: Path, *, core: bool = False) -> "Grid":
        """Write target, inputs and drafts.

        Args:
            root: a new folder.
            core: only what CI runs.
        """
        target = write_target(root / "target")
        cases = []
        inputs = write_inputs(root / "inputs.safetensors")
        for row, spec in ROWS.items():
            if core and not spec.core:
                continue
            for form in spec.forms or spec.spec.layouts:
                folder = root / f"{len(cases):03}"
                random_drafts.write(spec.spec, form, folder, target)
                _alter(folder, spec.change)
                cases.append(Case(row, form, folder, inputs))
        return cls(root, target, cases)

    def of(self, engine: str) -> list[Case]:
        """The cases that an engine is given."""
        return [case for case in self.cases if case.form in FORMS[engine]]

    def loaded(self, case: Case) -> Loaded:
        """A folder as its own dialect means it."""
        if case.folder not in self._loaded:
            options = api.Options(target=str(self.target), trainer="none")
            self._loaded[case.folder] = api.load(str(case.folder), "auto", options)
        return self._loaded[case.folder]

    def wanted(self, case: Case) -> np.ndarray[Any, Any]:
        """The reference's logits of the network that is meant."""
        if case.folder not in self._wanted:
            self._wanted[case.folder] = self.reference(case, self.loaded(case).reading.draft)
        return self._wanted[case.folder]

    def reference(self, case: Case, draft: Draft) -> np.ndarray[Any, Any]:
        """The reference's logits of a network with the folder's weights, as `logits_of` orders them."""
        loaded = self.loaded(case)
        stored = load_file(self.target / "model.safetensors")
        table, head, norm = (
            torch.from_numpy(stored[name])
            for name in ("model.embed_tokens.weight", "lm_head.weight", "model.norm.weight")
        )
        weights = Weights.read(
            loaded.reading, loaded.checkpoint, tables=lambda: Tables(table, head)
        )
        weights.draft = draft
        network = Network(draft, weights)
        given = load_file(case.inputs)
        tokens = torch.from_numpy(given["token_ids"])
        streams = torch.from_numpy(given["streams"])
        taps = {tap: stream[None] for tap, stream in enumerate(streams)}
        with torch.no_grad():
            features = Features(taps, rms_norm(streams[-1][None], norm, 1e-5))
            out, cache = network.begin(tokens[None], network.fuse(features))
            logits = [network.logits(out.normed)[0]]
            for depth in range(1, STEPS):
                fed = torch.cat([tokens[depth:], tokens.new_zeros(depth)])
                out = network.step(fed[None], out.feedback, cache)
                logits.append(network.logits(out.normed)[0])
            ids = network.to_target(torch.arange(logits[0].shape[-1]))
        return _ordered(torch.stack(logits).numpy(), ids.numpy())


def _alter(folder: Path, change: Change) -> None:
    config = json.loads((folder / "config.json").read_text())
    tensors = load_file(folder / "model.safetensors")
    change(config, tensors)
    (folder / "config.json").write_text(json.dumps(config, indent=1))
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})


def write_target(folder: Path) -> Path:
    """A llama target deep enough that the default triple is three different layers."""
    folder.mkdir(parents=True)
    width, rng = random_drafts.TARGET_WIDTH, np.random.default_rng(2)
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": width,
        "intermediate_size": 64,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 32,
        "hidden_act": "silu",
        "rms_norm_eps": 1e-5,
        "max_position_embeddings": 2048,
        "vocab_size": random_drafts.V,
        "tie_word_embeddings": False,
        "torch_dtype": "float32",
        "bos_token_id": 0,
        "eos_token_id": 0,
        "rope_theta": 10000.0,
    }
    (folder / "config.json").write_text(json.dumps(config, indent=1))

    def matrix(rows: int, columns: int) -> np.ndarray[Any, Any]:
        return rng.standard_normal((rows, columns)).astype(np.float32)

    tensors = {
        "model.embed_tokens.weight": matrix(random_drafts.V, width),
        "lm_head.weight": matrix(random_drafts.V, width),
        "model.norm.weight": 1 + 0.3 * matrix(1, width)[0],
    }
    rows = {
        "q_proj": (width, width),
        "k_proj": (64, width),
        "v_proj": (64, width),
        "o_proj": (width, width),
    }
    for layer in range(LAYERS):
        at = f"model.layers.{layer}."
        tensors |= {f"{at}self_attn.{name}.weight": matrix(*shape) for name, shape in rows.items()}
        tensors |= {f"{at}mlp.{name}_proj.weight": matrix(64, width) for name in ("gate", "up")}
        tensors[f"{at}mlp.down_proj.weight"] = matrix(width, 64)
        for name in ("input_layernorm", "post_attention_layernorm"):
            tensors[f"{at}{name}.weight"] = np.ones(width, np.float32)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def write_inputs(path: Path) -> Path:
    """Token ids, and the target's residual streams."""
    rng = np.random.default_rng(1)
    shape = (LAYERS + 1, LENGTH, random_drafts.TARGET_WIDTH)
    streams = rng.standard_normal(shape).astype(np.float32)
    save_file({"token_ids": rng.integers(0, random_drafts.V, LENGTH), "streams": streams}, path)
    return path


def logits_of(path: Path) -> np.ndarray[Any, Any]:
    """[steps, positions, draft vocabulary], columns ascending by target id; what means nothing is zero."""
    tensors = load_file(path)
    return _ordered(tensors["logits"], tensors["target_ids"])


def _ordered(logits: np.ndarray[Any, Any], ids: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    ordered = logits[:, :, np.argsort(ids)].copy()
    for depth in range(STEPS):
        ordered[depth, LENGTH - depth :] = 0
    return ordered


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
    """Run one release on all its folders.

    Args:
        engine: a key of ``VERSIONS``.
        version: any that `wheels` finds.
        grid: the folders.
        kept: take what the last run of the same rigs on the same folders left, where it is there.

    Returns:
        By the name of the case; or the error that kept the release from running at all.
    """
    cases = grid.of(engine)
    kept_in = build_env.environments_home() / "releases" / "seen" / f"{engine}-{version}"
    kept_in.mkdir(parents=True, exist_ok=True)
    stems = {case.name: kept_in / _digest(engine, case, grid) for case in cases}
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
        variables = {"PYTHONPATH": wheels.path_of(engine, version), "EAGLE3_ABSENT": ABSENT[engine]}
        try:
            found = run_engine.run_engine(
                f"{engine}-release", request, variables=variables, timeout_s=1800
            )
        except run_engine.EngineError as error:
            return str(error)
        for case, said in zip(missing, found["cases"], strict=True):
            stems[case.name].with_suffix(".json").write_text(json.dumps(said, indent=1))
    return {case.name: _judged(grid, case, stems[case.name]) for case in cases}


ABSENT = {"vllm": "gguf diskcache", "sglang": "triton torchvision torchaudio sgl_kernel"}
"""What a release imports and its environment, today's, has not."""


def _digest(engine: str, case: Case, grid: Grid) -> str:
    """Of all that decides what is seen of a case."""
    found = hashlib.sha256()
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


def judge(engine: str, release: Release, seen: dict[str, Seen], grid: Grid) -> Iterator[Cell]:
    """All cells of one release."""
    for case in grid.of(engine):
        yield Cell(case, predict(case, grid, release), seen[case.name])
