"""Which files the tensors of an output go to: the source's own where nothing in them changes."""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from eagle3_interop.convert.decide.fitting import Fitted
from eagle3_interop.convert.decide.loaded import Loaded
from eagle3_interop.convert.read.checkpoint import Checkpoint
from eagle3_interop.convert.write.plan import Copy, Output, Taken, Written
from eagle3_interop.schemas.options import SHARD_BYTES
from eagle3_interop.schemas.registry import DESTINATIONS


def weight_files(
    loaded: Loaded, fitted: Fitted, destination: str, limit: int
) -> tuple[Taken | Written, ...]:
    """One output file for each source file: taken whole where nothing in it changes, else written."""
    sources = list(loaded.checkpoint.files)
    groups: dict[Path, list[Output]] = {path: [] for path in sources}
    last = sources[-1]
    for output in fitted.outputs:
        home = getattr(getattr(output.op, "source", None), "file", last)
        groups[home if home in groups else last].append(output)
    files: list[Path | list[Output]] = []
    for path, outputs in groups.items():
        if _unchanged(path, outputs, loaded.checkpoint, destination) and _fits(outputs, limit):
            files.append(path)
        elif outputs:
            files += _split(outputs, limit)
    names = _file_names(files)
    return tuple(
        Taken(name, file) if isinstance(file, Path) else Written(name, tuple(file))
        for name, file in zip(names, files, strict=True)
    )


def why_rewritten(loaded: Loaded, destination: str, weights: Sequence[Taken | Written]) -> str:
    """Why weight files are written anew although every tensor stays as it is; empty where none is."""
    checkpoint = loaded.checkpoint
    if all(isinstance(file, Taken) for file in weights):
        return ""
    headers = [checkpoint.headers.get(path.name) for path in checkpoint.files]
    if None in headers:
        return "the source is not in safetensors files"
    unlabelled = [header for header in headers if header and header.metadata.get("format") != "pt"]
    if DESTINATIONS[destination].loader.wants_format and unlabelled:
        return "transformers, with which speculators loads, fails on a file without the metadata format=pt"
    return "the files are put together anew, for their size or because a tensor is left out"


def _unchanged(
    path: Path, outputs: Sequence[Output], checkpoint: Checkpoint, destination: str
) -> bool:
    header = checkpoint.headers.get(path.name)
    if header is None:
        return False
    wants_format = DESTINATIONS[destination].loader.wants_format
    if wants_format and header.metadata.get("format") != "pt":
        return False
    kept = {
        output.name
        for output in outputs
        if isinstance(output.op, Copy) and output.op.source.name == output.name
    }
    return len(kept) == len(outputs) and kept == set(header.tensors)


def _fits(outputs: Sequence[Output], limit: int) -> bool:
    return limit == SHARD_BYTES or sum(output.nbytes for output in outputs) <= limit


def _split(outputs: Sequence[Output], limit: int) -> list[list[Output]]:
    shards: list[list[Output]] = [[]]
    size = 0
    for output in outputs:
        if shards[-1] and size + output.nbytes > limit:
            shards.append([])
            size = 0
        shards[-1].append(output)
        size += output.nbytes
    return shards


def _file_names(files: Sequence[Path | list[Output]]) -> list[str]:
    count = len(files)
    if count == 1:
        return ["model.safetensors"]
    pattern = re.compile(rf"model-\d{{5}}-of-{count:05d}\.safetensors")
    kept = [file.name for file in files if isinstance(file, Path)]
    if len(kept) == count and all(pattern.fullmatch(name) for name in kept):
        return kept
    return [f"model-{i:05d}-of-{count:05d}.safetensors" for i in range(1, count + 1)]


def index(weights: Sequence[Taken | Written], checkpoint: Checkpoint) -> dict[str, Any]:
    """``model.safetensors.index.json`` for these files."""
    weight_map: dict[str, str] = {}
    total = 0
    for file in weights:
        if isinstance(file, Written):
            weight_map |= {output.name: file.name for output in file.tensors}
            total += sum(output.nbytes for output in file.tensors)
        else:
            tensors = checkpoint.headers[file.source.name].tensors
            weight_map |= dict.fromkeys(tensors, file.name)
            total += sum(tensor.stop - tensor.start for tensor in tensors.values())
    return {"metadata": {"total_size": total}, "weight_map": dict(sorted(weight_map.items()))}
