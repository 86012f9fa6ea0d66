"""A plan turned into a folder: bytes copied by the kernel, only changed tensors through memory."""

import hashlib
import json
import shutil
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal

from eagle3_interop.convert.read.safetensors_file import PAGE, format_header
from eagle3_interop.convert.read.stored import ITEM_BITS
from eagle3_interop.convert.write.output_folder import check_free, output_folder
from eagle3_interop.convert.write.plan import (
    Copy,
    Make,
    Output,
    Plan,
    Rewrite,
    Taken,
    Written,
)
from eagle3_interop.convert.write.rewrite import cast, rewritten
from eagle3_interop.convert.write.sink import Progress, Sink, created, opened
from eagle3_interop.schemas.findings import Unavailable, Usage

PROVENANCE = "eagle3_interop.json"


@dataclass(frozen=True)
class FileResult:
    """One file of the output.

    Attributes:
        name: its name in the output folder.
        bytes: its size.
        how: ``linked`` (hard-linked to the source), ``copied`` whole, or ``written`` anew.
        sha256: its digest, if asked for.
    """

    name: str
    bytes: int
    how: Literal["linked", "copied", "written"]
    sha256: str | None = None


@dataclass(frozen=True)
class WriteResult:
    """What was written.

    Attributes:
        output: the folder.
        files: its files, weights first.
        not_linked: weight files that were to be linked and had to be copied (another file system).
    """

    output: Path
    files: tuple[FileResult, ...]
    not_linked: tuple[str, ...] = ()


def write(
    plan: Plan,
    output: Path,
    *,
    link: bool = False,
    overwrite: bool = False,
    digest: bool = False,
    progress: Progress | None = None,
) -> WriteResult:
    """Write the output folder; whatever happens, it is complete or not there.

    Args:
        plan: what the folder will hold.
        output: the folder.
        link: hard-link weight files that are taken over whole, where the file system can.
        overwrite: replace an existing checkpoint.
        digest: compute the sha256 of every file.
        progress: called with the number of bytes just written (`planned_bytes` in all, less links).

    Raises:
        Usage: the output exists, or would lie in, on or around a source.
        Refused: a source is truncated, or a cast would overflow.
        Unavailable: no space, or the disk failed.
    """
    output = output.absolute()
    check_free(output, overwrite=overwrite)
    _check_apart(plan, output)
    try:
        _check_space(plan, output, link=link)
        with output_folder(output, overwrite=overwrite) as folder:
            files = _fill(folder, plan, link=link, digest=digest, report=progress or _ignore)
    except OSError as error:
        place = error.filename or output
        raise Unavailable(f"{place}: {error.strerror or error}; nothing was written") from error
    copied = tuple(file.name for file in files if link and _is_weight_copy(plan, file))
    return WriteResult(output, files, copied)


def planned_bytes(plan: Plan) -> int:
    """Bytes of all weight and side files of the output."""
    return sum(_file_bytes(file) for file in (*plan.weights, *plan.sides))


def sha256_of(path: Path) -> str:
    """Digest of a whole file, in hexadecimal."""
    with path.open("rb", buffering=0) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _ignore(_count: int) -> None:
    pass


def _fill(
    folder: Path, plan: Plan, *, link: bool, digest: bool, report: Progress
) -> tuple[FileResult, ...]:
    """All files, config.json last: without it nothing takes the folder for a checkpoint."""
    files = []
    for file in plan.weights:
        path = folder / file.name
        how: Literal["linked", "copied", "written"] = "copied"
        if isinstance(file, Written):
            _write_safetensors(path, file, report)
            how = "written"
        elif link and _linked(file.source, path):
            how = "linked"
        else:
            _copy_file(file.source, path, report)
        files.append(_result(path, how, digest=digest))
    for side in plan.sides:
        _copy_file(side.source, folder / side.name, report)
        files.append(_result(folder / side.name, "copied", digest=digest))
    texts = sorted(plan.texts, key=lambda name: name == "config.json")
    facts = [*files, *(_text_result(name, plan.texts[name], digest=digest) for name in texts)]
    _write_text(folder / PROVENANCE, _provenance(plan, facts))
    for name in texts:
        _write_text(folder / name, plan.texts[name])
    return (*facts, _result(folder / PROVENANCE, "written", digest=digest))


def _provenance(plan: Plan, files: Iterable[FileResult]) -> str:
    outputs: dict[str, dict[str, Any]] = {}
    for file in files:
        outputs[file.name] = {"bytes": file.bytes, "how": file.how}
        if file.sha256 is not None:
            outputs[file.name]["sha256"] = file.sha256
    return json.dumps({**plan.provenance, "files": outputs}, indent=2) + "\n"


def _result(path: Path, how: Literal["linked", "copied", "written"], *, digest: bool) -> FileResult:
    return FileResult(path.name, path.stat().st_size, how, sha256_of(path) if digest else None)


def _text_result(name: str, text: str, *, digest: bool) -> FileResult:
    raw = text.encode()
    sha256 = hashlib.sha256(raw).hexdigest() if digest else None
    return FileResult(name, len(raw), "written", sha256)


def _is_weight_copy(plan: Plan, file: FileResult) -> bool:
    return file.how == "copied" and any(file.name == weights.name for weights in plan.weights)


def _write_text(path: Path, text: str) -> None:
    raw = text.encode()
    with created(path, len(raw), _ignore) as sink:
        sink.append(raw)


def _linked(source: Path, path: Path) -> bool:
    try:
        path.hardlink_to(source.resolve())
    except OSError:
        return False
    return True


def _copy_file(source: Path, path: Path, report: Progress) -> None:
    size = source.stat().st_size
    with created(path, size, report) as sink:
        sink.append_range(source, 0, size)


def _write_safetensors(path: Path, file: Written, report: Progress) -> None:
    with created(path, _file_bytes(file), report) as sink:
        sink.append(_header(file))
        for run in _runs(aligned(file.tensors)):
            _write_run(sink, run)


def _header(file: Written) -> bytes:
    """The header, padded so that the longest run lies in its pages as it does in the source.

    The kernel copies whole pages at half the cost of shifted ones, and a file system that can share
    blocks between files does so only then.
    """
    tensors = aligned(file.tensors)
    described = [(tensor.name, tensor.dtype, tensor.shape) for tensor in tensors]
    longest, position = 0, 0
    phase: int | None = None
    for run in _runs(tensors):
        length = sum(tensor.nbytes for tensor in run)
        match run[0].op:
            case Copy(source=source) if length > longest:
                longest, phase = length, (source.start - position) % PAGE
        position += length
    return format_header(described, file.metadata, phase=None if phase and phase % 8 else phase)


def aligned(tensors: Iterable[Output]) -> list[Output]:
    """The tensors, wider dtypes first and otherwise in the given order, so that each is aligned."""
    return sorted(tensors, key=lambda tensor: -ITEM_BITS[tensor.dtype])


def _runs(tensors: list[Output]) -> Iterator[list[Output]]:
    """Tensors whose bytes follow each other in one source file, together; all others alone."""
    run = tensors[:1]
    for before, tensor in pairwise(tensors):
        if not _follows(before, tensor):
            yield run
            run = []
        run.append(tensor)
    if run:
        yield run


def _follows(before: Output, tensor: Output) -> bool:
    match before.op, tensor.op:
        case Copy(source=one), Copy(source=other):
            return one.file == other.file and one.stop == other.start
    return False


def _write_run(sink: Sink, run: list[Output]) -> None:
    match run[0].op, run[-1].op:
        case Copy(source=first), Copy(source=last):
            sink.append_range(first.file, first.start, last.stop - first.start)
        case Rewrite() as op, _:
            with opened(op.source.file) as reader:
                for slab in rewritten(reader, run[0], op):
                    sink.append_array(slab)
        case Make(values=values, dtype=dtype), _:
            sink.append_array(cast(values, dtype, run[0].name))


def _file_bytes(file: Taken | Written) -> int:
    if isinstance(file, Taken):
        return file.source.stat().st_size
    return len(_header(file)) + sum(tensor.nbytes for tensor in file.tensors)


def _check_space(plan: Plan, output: Path, *, link: bool) -> None:
    existing = next(folder for folder in output.parents if folder.exists())
    device = existing.stat().st_dev
    needed = sum(
        _file_bytes(file)
        for file in (*plan.weights, *plan.sides)
        if not (link and isinstance(file, Taken) and file.source.stat().st_dev == device)
    )
    free = shutil.disk_usage(existing).free
    if needed > free:
        raise Unavailable(f"{existing}: {needed} bytes are needed, and {free} are free")


def _check_apart(plan: Plan, output: Path) -> None:
    place = output.resolve()
    for file in _sources(plan):
        folder = file.absolute().parent.resolve()
        around = folder.is_relative_to(place) or file.resolve().is_relative_to(place)
        if around or place.is_relative_to(folder):
            raise Usage(f"{output} and its source {folder} would lie in one another")


def _sources(plan: Plan) -> Iterator[Path]:
    for file in (*plan.weights, *plan.sides):
        if isinstance(file, Taken):
            yield file.source
        else:
            for tensor in file.tensors:
                match tensor.op:
                    case Copy(source=source) | Rewrite(source=source):
                        yield source.file
