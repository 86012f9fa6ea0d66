"""A plan turned into a folder: bytes copied by the kernel, only changed tensors through memory."""

import hashlib
import json
import shutil
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal

from eagle3_interop.convert.read.folders import State, changed, check_unchanged
from eagle3_interop.convert.read.safetensors_file import PAGE, format_header
from eagle3_interop.convert.read.stored import ITEM_BITS
from eagle3_interop.convert.write.earlier import PROVENANCE
from eagle3_interop.convert.write.output_folder import check_free, output_folder
from eagle3_interop.convert.write.places import check_apart
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
from eagle3_interop.schemas.findings import Refused, Unavailable


@dataclass(frozen=True)
class FileResult:
    """One file of the output.

    Attributes:
        name: its name in the output folder.
        bytes: its size.
        how: ``linked`` (hard-linked to the source), ``copied`` whole, or ``written`` anew.
        sha256: its digest; of weights only if asked for.
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
        overwrite: replace an earlier output of this tool that is still as written.
        digest: compute the sha256 of weights, too.
        progress: called with the number of bytes just written (`planned_bytes` in all, less links).

    Raises:
        Usage: the output exists, or would lie in, on or around a source.
        Refused: a source is truncated, or a cast would overflow.
        Unavailable: no space, the disk failed, or a source changed since it was listed.
    """
    output = output.absolute()
    check(plan, output, link=link, overwrite=overwrite)
    try:
        plan = replace(plan, states={**_states(plan), **plan.states})
        with output_folder(output, overwrite=overwrite) as folder:
            files = _filled(folder, plan, link=link, digest=digest, report=progress or _ignore)
    except OSError as error:
        place = error.filename or output
        raise Unavailable(f"{place}: {error.strerror or error}; nothing was written") from error
    copied = tuple(file.name for file in files if link and _is_weight_copy(plan, file))
    return WriteResult(output, files, copied)


def check(plan: Plan, output: Path, *, link: bool = False, overwrite: bool = False) -> None:
    """Everything about the output that can be found out before it is written.

    Raises:
        Usage: it exists, must not be replaced, or would lie in, on or around what the plan was made from.
        Unavailable: no space, or nothing may be written there.
    """
    output = output.absolute()
    check_apart(output, dict.fromkeys(file.absolute().parent for file in _inputs(plan)))
    check_free(output, overwrite=overwrite)
    try:
        _check_space(plan, output, link=link)
    except OSError as error:
        place = error.filename or output
        raise Unavailable(f"{place}: {error.strerror or error}; nothing was written") from error


def _inputs(plan: Plan) -> Iterator[Path]:
    yield from _sources(plan)
    yield from plan.states


def _states(plan: Plan) -> dict[Path, State]:
    """Of sources that nobody listed before."""
    return {file: State.of(file) for file in _sources(plan) if file not in plan.states}


def planned_bytes(plan: Plan) -> int:
    """Bytes of all weight and side files of the output."""
    return sum(_file_bytes(file) for file in (*plan.weights, *plan.sides))


def sha256_of(path: Path) -> str:
    """Digest of a whole file, in hexadecimal."""
    with path.open("rb", buffering=0) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _ignore(_count: int) -> None:
    pass


def _filled(
    folder: Path, plan: Plan, *, link: bool, digest: bool, report: Progress
) -> tuple[FileResult, ...]:
    """All files, of sources that nobody changed meanwhile: that is said first, whatever it led to."""
    try:
        files = _fill(folder, plan, link=link, digest=digest, report=report)
    except (Refused, ValueError, OSError):
        check_unchanged(plan.states)
        raise
    check_unchanged(plan.states)
    return files


def _fill(
    folder: Path, plan: Plan, *, link: bool, digest: bool, report: Progress
) -> tuple[FileResult, ...]:
    """All files, config.json last: without it nothing takes the folder for a checkpoint."""
    files = []
    for file in plan.weights:
        path = folder / file.name
        how: Literal["linked", "copied", "written"] = "copied"
        if isinstance(file, Written):
            _write_safetensors(path, file, plan.states, report)
            how = "written"
        elif link and _linked(file.source, path, plan.states[file.source]):
            how = "linked"
        else:
            _copy_file(file.source, path, plan.states[file.source], report)
        files.append(_result(path, how, digest=digest))
    for side in plan.sides:
        _copy_file(side.source, folder / side.name, plan.states[side.source], report)
        files.append(_result(folder / side.name, "copied", digest=True))
    texts = sorted(plan.texts, key=lambda name: name == "config.json")
    facts = [*files, *(_text_result(name, plan.texts[name]) for name in texts)]
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


def _text_result(name: str, text: str) -> FileResult:
    raw = text.encode()
    return FileResult(name, len(raw), "written", hashlib.sha256(raw).hexdigest())


def _is_weight_copy(plan: Plan, file: FileResult) -> bool:
    return file.how == "copied" and any(file.name == weights.name for weights in plan.weights)


def _write_text(path: Path, text: str) -> None:
    raw = text.encode()
    with created(path, len(raw), _ignore) as sink:
        sink.append(raw)


def _linked(source: Path, path: Path, state: State) -> bool:
    try:
        path.hardlink_to(source.resolve())
    except OSError:
        return False
    if State.of(path) != state:
        raise changed(source)
    return True


def _copy_file(source: Path, path: Path, state: State, report: Progress) -> None:
    with created(path, state.size, report) as sink:
        sink.append_range(source, 0, state.size, state)


def _write_safetensors(
    path: Path, file: Written, states: Mapping[Path, State], report: Progress
) -> None:
    with created(path, _file_bytes(file), report) as sink:
        sink.append(_header(file))
        for run in _runs(aligned(file.tensors)):
            _write_run(sink, run, states)


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


def _write_run(sink: Sink, run: list[Output], states: Mapping[Path, State]) -> None:
    match run[0].op, run[-1].op:
        case Copy(source=first), Copy(source=last):
            length = last.stop - first.start
            sink.append_range(first.file, first.start, length, states[first.file])
        case Rewrite() as op, _:
            with opened(op.source.file, states[op.source.file]) as reader:
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


def _sources(plan: Plan) -> Iterator[Path]:
    for file in (*plan.weights, *plan.sides):
        if isinstance(file, Taken):
            yield file.source
        else:
            for tensor in file.tensors:
                match tensor.op:
                    case Copy(source=source) | Rewrite(source=source):
                        yield from source.files
