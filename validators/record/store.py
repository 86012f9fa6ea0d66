"""A folder of recordings being filled: one file a text, each whole or not there, and a manifest that goes on.

A file is written under a hidden name, flushed, and renamed; only then does the manifest of the unfinished
recording name it. That manifest gets its final name when all texts are there.
"""

import hashlib
import os
import shutil
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor

from eagle3_interop.convert.write.stream import sha256_of
from eagle3_interop.schemas.findings import Unavailable, Usage
from eagle3_interop.schemas.streams import (
    MANIFEST,
    PARTIAL,
    Last,
    RecordedBy,
    RecordedPrompts,
    RecordedTarget,
    RecordedText,
    StreamsManifest,
)
from eagle3_interop.validators.record.wish import check_place
from eagle3_interop.validators.target.recordings import read_manifest

SIZES = {"float32": 4, "bfloat16": 2, "float16": 2}

SAME = ("target", "by", "dtype", "taps", "last", "basis", "new_tokens", "lookahead", "prompts")
"""What must be the same for a recording to go on."""


@dataclass(frozen=True)
class Plan:
    """What is to be recorded.

    Attributes:
        target: of which.
        by: by whom.
        dtype: of the hidden states.
        taps: of the slices.
        last: of the slice after them.
        basis: of the target's distribution.
        new_tokens: N.
        lookahead: M.
        prompts: token ids.
        source: where they came from.
        categories: of the prompts, where they name one.
    """

    target: RecordedTarget
    by: RecordedBy
    dtype: str
    taps: tuple[int, ...]
    last: Last
    basis: str
    new_tokens: int
    lookahead: int
    prompts: tuple[tuple[int, ...], ...]
    source: str
    categories: tuple[str | None, ...] = ()

    @property
    def slices(self) -> int:
        """Hidden states a token."""
        return len(self.taps) + (self.last != "absent")

    @property
    def tokens(self) -> int:
        """Of all texts."""
        return sum(map(len, self.prompts)) + len(self.prompts) * (self.new_tokens + self.lookahead)

    @property
    def bytes(self) -> int:
        """Of all hidden states."""
        return self.tokens * self.slices * self.target.hidden_size * SIZES[self.dtype]

    def spoken(self) -> str:
        """What will lie on the disk, before it begins."""
        ends = {"absent": "", "pre-norm": " and the last state", "post-norm": " and the last state"}
        return (
            f"{len(self.prompts)} texts, {self.tokens} tokens x {self.slices} hidden states (taps "
            f"{', '.join(map(str, self.taps))}{ends[self.last]}) x {self.target.hidden_size} x "
            f"{SIZES[self.dtype]} bytes = {human(self.bytes)}"
        )

    def manifest(self, texts: Sequence[RecordedText] = ()) -> StreamsManifest:
        """With the texts that are there."""
        digest = hashlib.sha256(repr(self.prompts).encode()).hexdigest()
        return StreamsManifest(
            tool=version("eagle3-interop"),
            target=self.target,
            by=self.by,
            dtype=self.dtype,
            taps=self.taps,
            last=self.last,
            basis=self.basis,
            new_tokens=self.new_tokens,
            lookahead=self.lookahead,
            prompts=RecordedPrompts(source=self.source, count=len(self.prompts), sha256=digest),
            texts=tuple(texts),
        )


class Store:
    """The folder."""

    def __init__(self, folder: Path, plan: Plan) -> None:
        """Make the folder, or take up what an interrupted run left there.

        Raises:
            Usage: a finished recording is there, or one of something else, or other files.
            Unavailable: nothing may be written, or there is no room.
        """
        self.folder = folder
        self.plan = plan
        self.texts: list[RecordedText] = self._found()
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._keep(PARTIAL)
            free = shutil.disk_usage(folder).free
        except OSError as error:
            raise Unavailable(f"{error.filename or folder}: {error.strerror or error}") from error
        left = plan.bytes - sum(text.bytes for text in self.texts)
        if left > free:
            raise Unavailable(
                f"{folder}: {human(left)} are still to be written and {human(free)} are free; give fewer "
                "prompts, a shorter --max-new-tokens or fewer --taps."
            )

    @property
    def done(self) -> int:
        """Texts that are there."""
        return len(self.texts)

    def _found(self) -> list[RecordedText]:
        """The texts of an interrupted run of the same recording, as far as their files are whole."""
        folder = self.folder
        check_place(folder)
        if not (folder / PARTIAL).exists():
            return []
        before, now = read_manifest(folder / PARTIAL), self.plan.manifest()
        for name in SAME:
            if getattr(before, name) != getattr(now, name):
                raise Usage(
                    f"{folder} holds an unfinished recording of something else ({name} differs); give "
                    "another --out, or remove it."
                )
        whole = []
        for text in before.texts:
            path = folder / text.file
            if not path.is_file() or path.stat().st_size != text.bytes:
                break
            if sha256_of(path) != text.sha256:
                break
            whole.append(text)
        return whole

    def add(self, token_ids: Sequence[int], tensors: Mapping[str, Tensor]) -> None:
        """Write the next text.

        Args:
            token_ids: prompt and continuation.
            tensors: ``hidden_states`` [tokens, slices, H], and what else belongs to it.

        Raises:
            Unavailable: the disk failed, or it is not what was planned.
        """
        number, plan = len(self.texts), self.plan
        prompt = plan.prompts[number]
        count = len(prompt) + plan.new_tokens + plan.lookahead
        wanted = (count, plan.slices, plan.target.hidden_size)
        states = tensors["hidden_states"]
        if tuple(token_ids[: len(prompt)]) != prompt or len(token_ids) != count:
            raise Unavailable(
                f"text {number}: {len(token_ids)} tokens came for {count} that were asked"
            )
        if tuple(states.shape) != wanted:
            raise Unavailable(
                f"text {number}: hidden states {list(states.shape)} came, and {list(wanted)} were asked"
            )
        name = f"hs_{number}.safetensors"
        ids = torch.tensor(list(token_ids), dtype=torch.int64)
        kept = {name: tensor.contiguous() for name, tensor in tensors.items()}
        hidden = self.folder / f".{name}.part"
        try:
            save_file({**kept, "token_ids": ids}, hidden)
            hidden.chmod((self.folder / PARTIAL).stat().st_mode & 0o777)  # as readable as the rest
            _flush(hidden)
            size, digest = hidden.stat().st_size, sha256_of(hidden)
            hidden.replace(self.folder / name)
            self.texts.append(
                RecordedText(
                    file=name,
                    bytes=size,
                    sha256=digest,
                    tokens=count,
                    prompt=len(prompt),
                    category=plan.categories[number] if plan.categories else None,
                )
            )
            self._keep(PARTIAL)
        except OSError as error:
            with suppress(OSError):
                hidden.unlink()
            raise Unavailable(f"{hidden}: {error.strerror or error}") from error

    def finish(self) -> StreamsManifest:
        """Give the recording its manifest.

        Raises:
            Unavailable: the disk failed.
        """
        assert len(self.texts) == len(self.plan.prompts)  # noqa: S101
        try:
            self._keep(MANIFEST)
            (self.folder / PARTIAL).unlink()
        except OSError as error:
            raise Unavailable(f"{error.filename}: {error.strerror}") from error
        return self.plan.manifest(self.texts)

    def _keep(self, name: str) -> None:
        hidden = self.folder / f".{name}.part"
        hidden.write_text(
            self.plan.manifest(self.texts).model_dump_json(indent=1) + "\n", encoding="utf-8"
        )
        _flush(hidden)
        hidden.replace(self.folder / name)
        _flush(self.folder)


def human(count: float) -> str:
    """Bytes, for people."""
    for unit in ("bytes", "kB", "MB", "GB"):
        if count < 1000:
            return f"{count:.0f} {unit}" if unit == "bytes" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} TB"


def _flush(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
