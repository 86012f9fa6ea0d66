"""Recorded hidden states as other trainers write them, made of one pass of the tiny target."""

import gzip

import torch
from conftest import TARGET
from safetensors.torch import save_file

from eagle3_interop.validators.target.running import Target

TAPS = (1, 3, 5)


def passed(rows):
    """[tokens, 3, H], the stream at the taps; the last hidden state before and after the norm."""
    target = Target.load(TARGET)
    for row in rows:
        found = target.features(torch.tensor([row]), (*TAPS, target.depth))
        taps = torch.stack([found.taps[tap][0] for tap in TAPS], dim=1)
        yield taps, found.taps[target.depth][0], found.final[0]


def as_speculators(folder, rows):
    """``hidden_states/hs_<i>.safetensors`` [tokens, taps + 1, H]."""
    inner = folder / "hidden_states"
    inner.mkdir(parents=True)
    for number, (row, (taps, last, _)) in enumerate(zip(rows, passed(rows), strict=True)):
        states = torch.cat([taps, last[:, None]], dim=1)
        tensors = {"hidden_states": states, "token_ids": torch.tensor(row)}
        save_file(tensors, inner / f"hs_{number}.safetensors")
    return folder


def as_specforge(folder, rows, masks, *, packed=False):
    """``rows_0-5000/data_<i>.ckpt``, or ``.ckpt.gz``."""
    inner = folder / "rows_0-5000"
    inner.mkdir(parents=True)
    for number, (row, mask, (taps, _, final)) in enumerate(
        zip(rows, masks, passed(rows), strict=True)
    ):
        data = {
            "input_ids": torch.tensor(row),
            "loss_mask": torch.tensor(mask),
            "hidden_state": final[None],
            "aux_hidden_state": taps.flatten(1)[None].clone(),
        }
        path = inner / f"data_{number}.ckpt"
        torch.save(data, path)
        if packed:
            (inner / f"{path.name}.gz").write_bytes(gzip.compress(path.read_bytes()))
            path.unlink()
    return folder
