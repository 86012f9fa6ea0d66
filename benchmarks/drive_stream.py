"""Convert SOURCE to OUTPUT through `stream` alone, in one of the benchmark's MODES."""

import sys
from collections.abc import Mapping
from pathlib import Path

from eagle3_interop.convert import stream
from eagle3_interop.convert.checkpoint import open_checkpoint
from eagle3_interop.convert.plan import Copy, Output, Plan, Rewrite, Stored, Taken, Written

TEXTS = {"config.json": "{}\n"}


def main(mode: str, source: str, output: str) -> None:
    """Build the mode's plan from the source's headers, and write it."""
    checkpoint = open_checkpoint(source)
    if mode in ("copy", "link"):
        plan = Plan(tuple(Taken(file.name, file) for file in checkpoint.files), TEXTS)
    else:
        permuted = mode == "permute"
        files = (written(file, checkpoint.stored, permuted) for file in checkpoint.files)
        plan = Plan(tuple(files), TEXTS)
    stream.write(plan, Path(output), link=mode == "link")


def written(file: Path, stored: Mapping[str, Stored], permuted: bool) -> Written:
    """The file again with every tensor renamed, and fc's blocks permuted if asked for."""
    tensors = [tensor for tensor in stored.values() if tensor.file == file]
    return Written(file.name, tuple(renamed(tensor, permuted) for tensor in tensors))


def renamed(tensor: Stored, permuted: bool) -> Output:
    """The tensor under another name."""
    fc = permuted and tensor.name == "fc.weight"
    op = Rewrite(tensor, blocks=((2,), (0,), (1,))) if fc else Copy(tensor)
    return Output(f"model.{tensor.name}", tensor.dtype, tensor.shape, op, "renamed")


if __name__ == "__main__":
    main(*sys.argv[1:])
