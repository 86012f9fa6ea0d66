"""Exports of real trainers (``data/trainers``), and how far a network of ours is from the trainer's own forward."""

import json
import shutil
from functools import cache
from pathlib import Path

import torch
from conversions import loaded
from safetensors.torch import load_file

from eagle3_interop.validators.network.reference import Network
from eagle3_interop.validators.network.switched import Switched
from eagle3_interop.validators.network.weights import Weights
from eagle3_interop.validators.target.running import Target

DATA = Path(__file__).parent / "data/trainers"
TARGET = DATA / "target"
ROUNDING = 2e-6
"""Of logits, by the largest of them: sums of float32 in another order."""


@cache
def target():
    return Target.load(str(TARGET))


@cache
def forward(name):
    """What the trainer's own code computed of its export."""
    return load_file(DATA / f"{name}.forward.safetensors")


def read(name, **options):
    return loaded(DATA / name, target=TARGET, **options)


def off(name, switches=None, **options):
    """How far our logits are from the trainer's at each depth; ``switches`` that no description has."""
    return distance(read(name, **options), forward(name), switches)


def distance(read_draft, theirs, switches=None):
    draft = read_draft.reading.draft
    weights = Weights.read(read_draft.reading, read_draft.checkpoint, tables=target().tables)
    network = Switched(draft, weights, switches or {})
    return network_distance(network, theirs)


@torch.no_grad()
def network_distance(network: Network, theirs):
    draft, weights = network.draft, network.weights
    tokens = theirs["x"].long()[None]
    count = len(theirs["logits.0"])
    features = target().features(tokens[:, :count], draft.fed_taps(8), final=True)
    out, cache = network.begin(tokens[:, 1 : count + 1], network.fuse(features))
    second = network.step(
        torch.nn.functional.pad(tokens[:, 2 : count + 1], (0, 1)), out.feedback, cache
    )
    # A conversion may put the head's rows into another order: logits are compared token by token.
    ids = torch.arange(draft.vocabulary.draft_size)
    ids = ids if weights.target_ids is None else weights.target_ids
    assert torch.equal(ids.sort().values, theirs["d2t"].long().sort().values)
    found = []
    for depth, ours in enumerate((out, second)):
        logits = theirs[f"logits.{depth}"][:, theirs["d2t"].argsort()]
        got = network.logits(ours.normed)[0, : len(logits), ids.argsort()]
        found.append(float((got - logits).abs().max() / logits.abs().max()))
    return found


def equal(distances):
    return max(distances) < ROUNDING


def written_as(result):
    """A conversion's output, read back without its provenance file."""
    (result.folder / "eagle3_interop.json").unlink()
    return loaded(result.folder, target=TARGET)


def copied(name, folder):
    return Path(shutil.copytree(DATA / name, folder))


def edited(name, folder, **keys):
    """A trainer's folder with other keys in its config."""
    made = copied(name, folder)
    config = json.loads((made / "config.json").read_text()) | keys
    (made / "config.json").write_text(json.dumps(config))
    return made
