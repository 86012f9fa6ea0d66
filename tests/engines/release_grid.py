"""The same folders for every release: what its own code makes of them, and what our rules predict.

A draft with random weights a row, one feature each, spelled by hand; `vllm_release` and `sglang_release` run
what a release has of config reader, loader and draft class. Nothing is called seen that was not run.
"""

import json
from collections.abc import Container, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import random_drafts
import torch
from release_rows import FORMS, LAYERS, ROWS, TO, Change
from safetensors.numpy import load_file, save_file
from safetensors.torch import load_file as load_torch_file

from eagle3_interop.convert import api
from eagle3_interop.convert.decide.loaded import Loaded
from eagle3_interop.schemas.draft import Draft
from eagle3_interop.schemas.findings import Refused
from eagle3_interop.validators.network.reference import Features, Network, rms_norm
from eagle3_interop.validators.network.weights import Tables, Weights

STEPS, LENGTH = 3, 16


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
        forms: by engine, those that it is given.
    """

    root: Path
    target: Path
    cases: list[Case]
    forms: Mapping[str, Container[str]] = field(default_factory=lambda: FORMS)
    _loaded: dict[Path, Loaded] = field(default_factory=dict)
    _sources: dict[Path, Case] = field(default_factory=dict)
    _wanted: dict[Path, np.ndarray[Any, Any]] = field(default_factory=dict)

    @classmethod
    def write(cls, root: Path, *, core: bool = False, rows: Container[str] = ROWS) -> "Grid":
        """Write target, inputs and drafts.

        Args:
            root: a new folder.
            core: only what CI runs.
            rows: only these.
        """
        target = write_target(root / "target")
        cases = []
        inputs = write_inputs(root / "inputs.safetensors")
        for row, spec in ROWS.items():
            if row not in rows or (core and not spec.core):
                continue
            for form in spec.forms or spec.spec.layouts:
                folder = root / f"{len(cases):03}"
                random_drafts.write(spec.spec, form, folder, target)
                _alter(folder, spec.change)
                cases.append(Case(row, form, folder, inputs))
        grid = cls(root, target, cases)
        if not core:
            grid.convert()
        return grid

    def convert(self) -> None:
        """Add what the conversions write of each row, from the first of its forms; not what they refuse."""
        sources = {case.row: case for case in reversed(self.cases)}
        for case in reversed(sources.values()):
            for engine, form in TO.items():
                folder = self.root / form / case.folder.name
                options = api.Options(target=str(self.target), trainer="none")
                try:
                    conversion = api.convert(self.loaded(case), engine, options)
                except Refused:
                    continue
                api.write(conversion, folder)
                written = Case(case.row, form, folder, case.inputs)
                self.means_as(written, case)
                self.cases.append(written)

    def of(self, engine: str) -> list[Case]:
        """The cases that an engine is given."""
        return [case for case in self.cases if case.form in self.forms[engine]]

    def loaded(self, case: Case) -> Loaded:
        """A folder as its own dialect means it."""
        if case.folder not in self._loaded:
            options = api.Options(target=str(self.target), trainer="none")
            self._loaded[case.folder] = api.load(str(case.folder), "auto", options)
        return self._loaded[case.folder]

    def wanted(self, case: Case) -> np.ndarray[Any, Any]:
        """The reference's logits of the network that is meant."""
        if source := self._sources.get(case.folder):
            return self.wanted(source)
        if case.folder not in self._wanted:
            self._wanted[case.folder] = self.reference(case, self.loaded(case).reading.draft)
        return self._wanted[case.folder]

    def means_as(self, case: Case, source: Case) -> None:
        """Let a folder mean the network of another one, which it was made from."""
        if source.folder != case.folder:
            self._sources[case.folder] = source

    def reference(self, case: Case, draft: Draft) -> np.ndarray[Any, Any]:
        """The reference's logits of a network with the folder's weights, as `logits_of` orders them."""
        loaded = self.loaded(case)
        stored = load_torch_file(self.target / "model.safetensors")
        table, head, norm = (
            stored[name].float()
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


def write_inputs(path: Path, layers: int = LAYERS, length: int = LENGTH) -> Path:
    """Token ids, and the residual streams of a target of so many layers."""
    rng = np.random.default_rng(1)
    shape = (layers + 1, length, random_drafts.TARGET_WIDTH)
    streams = rng.standard_normal(shape).astype(np.float32)
    save_file({"token_ids": rng.integers(0, random_drafts.V, length), "streams": streams}, path)
    return path


def logits_of(path: Path) -> np.ndarray[Any, Any]:
    """[steps, positions, draft vocabulary], columns ascending by target id; what means nothing is zero."""
    tensors = load_file(path)
    return _ordered(tensors["logits"], tensors["target_ids"])


def _ordered(logits: np.ndarray[Any, Any], ids: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    ordered = logits[:, :, np.argsort(ids)].copy()
    for depth, at_depth in enumerate(ordered):
        at_depth[len(at_depth) - depth :] = 0
    return ordered
