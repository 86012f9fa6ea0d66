"""The trainers' own code, run now: what it exports is what is kept here, and our network is its forward."""

import json
import os
import subprocess
from pathlib import Path

import build_env
import pytest
import torch
from exports import DATA, TARGET, distance, equal
from safetensors.torch import load_file

from eagle3_interop.convert import api
from eagle3_interop.schemas.trainers.table import TRAINERS

pytestmark = pytest.mark.trainer

HERE = Path(__file__).parent
ENVIRONMENTS = {"specforge": "specforge", "modelopt": "modelopt", "speculators": "speculators"}
VARIANTS = [
    pytest.param(trainer, path.parent.name, id=f"{trainer}/{path.parent.name}")
    for trainer in ENVIRONMENTS
    for path in sorted((DATA / trainer).glob("*/config.json"))
]
GIVEN = {"specforge/ids_as_option": (1, 4, 7)}
LOSSES = tuple(one.code for trainer in TRAINERS.values() for one in trainer.uncarried)


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    """By trainer, the folder that its producer wrote, in one process."""
    done = {}

    def of(trainer):
        if trainer not in done:
            out = tmp_path_factory.mktemp(trainer)
            python = build_env.build(ENVIRONMENTS[trainer])
            left_out = ("PYTHONPATH", "PYTHONHOME")
            variables = {key: x for key, x in os.environ.items() if key not in left_out}
            subprocess.run(
                [python, HERE / f"{trainer}_drafts.py", out],
                check=True,
                timeout=600,
                env=variables | {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"},
            )
            done[trainer] = out
        return done[trainer]

    return of


@pytest.mark.parametrize(("trainer", "variant"), VARIANTS)
def test_a_trainer_exports_what_is_kept_here(exported, trainer, variant):
    found, kept = exported(trainer) / variant, DATA / trainer / variant
    assert json.loads((found / "config.json").read_text()) == json.loads(
        (kept / "config.json").read_text()
    )
    ours, theirs = (load_file(one / "model.safetensors") for one in (found, kept))
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)


@pytest.mark.parametrize(("trainer", "variant"), VARIANTS)
def test_our_network_is_the_trainers_own_forward(exported, trainer, variant):
    folder = exported(trainer) / variant
    options = api.Options(
        target=str(TARGET),
        trainer=trainer,
        allow=LOSSES,
        taps=GIVEN.get(f"{trainer}/{variant}"),
    )
    read = api.load(str(folder), "auto", options)
    theirs = load_file(folder.with_name(f"{variant}.forward.safetensors"))
    assert equal(distance(read, theirs, read.trainer.switches))
