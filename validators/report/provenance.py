"""What a report says of itself: which files, which versions, which machine, which texts."""

import hashlib
import platform
import shlex
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

from eagle3_interop.convert.decide.inspection import judged
from eagle3_interop.convert.decide.loaded import Loaded
from eagle3_interop.convert.decide.releases import runs_since
from eagle3_interop.convert.masking import public_words
from eagle3_interop.convert.read.checkpoint import (
    BIN_INDEX,
    SAFETENSORS_INDEX,
    Checkpoint,
    by_transformers,
    read_file,
)
from eagle3_interop.convert.read.folders import check_unchanged, hub_id, local_folder
from eagle3_interop.convert.read.target_tables import TargetCheckpoint
from eagle3_interop.convert.write.earlier import PROVENANCE
from eagle3_interop.convert.write.stream import sha256_of
from eagle3_interop.schemas.findings import Unavailable
from eagle3_interop.validators.prove.request import Request
from eagle3_interop.validators.target.prompts import Prompt
from eagle3_interop.validators.target.source import Source
from eagle3_interop.validators.target.texts import Text

PACKAGES = ("eagle3-interop", "torch", "transformers", "accelerate", "safetensors", "numpy")


def digests(checkpoint: Checkpoint) -> dict[str, str]:
    """Name to sha256 of the files that a loader, or a push, takes from the folder.

    Raises:
        Unavailable: the disk or the Hub failed.
    """
    present = checkpoint.folder.sizes
    index = SAFETENSORS_INDEX if checkpoint.headers else BIN_INDEX
    names = {
        "config.json",
        *(path.name for path in checkpoint.files),
        *(tensor.file.name for tensor in checkpoint.stored.values()),
        *(path.name for path in checkpoint.sides),
        *(name for name in (PROVENANCE, index) if name in present),
    }
    folder = checkpoint.folder
    try:
        found = {
            name: folder.sha256(name) or sha256_of(folder.path(name)) for name in sorted(names)
        }
    except OSError as error:
        raise Unavailable(f"{error.filename}: {error.strerror}") from error
    check_unchanged(folder.states)
    return found


def target_digest(target: TargetCheckpoint) -> dict[str, Any]:
    """What identifies a target: its config, the headers of its tensors, and its weights where the Hub says.

    Returns:
        ``config`` and ``headers``, sha256 of config.json and of the headers of the safetensors files that
        transformers takes, by their names (None where it takes none), of those that are there, and ``weights``, by file the sha256 that
        the Hub gave.

    Raises:
        Unavailable: the disk or the Hub failed.
    """
    folder = target.folder
    try:
        config = folder.read("config.json", 0, folder.sizes["config.json"])
        taken = by_transformers(folder, partial=True)
        names = [name for name in taken if name.endswith(".safetensors")]
        headers = [read_file(folder, name, download=False)[1] for name in names]
        weights = {name: folder.sha256(name) for name in names}
    except OSError as error:
        raise Unavailable(f"{error.filename or target.path}: {error.strerror or error}") from error
    joined = "".join(header.sha256 for header in headers if header)
    return {
        "config": hashlib.sha256(config).hexdigest(),
        "headers": hashlib.sha256(joined.encode()).hexdigest() if joined else None,
        "weights": {name: digest for name, digest in weights.items() if digest},
    }


def target_folder(spec: str) -> str:
    """What transformers loads the target by: a folder, or a Hub id at its default revision.

    Raises:
        Unavailable: the Hub did not give the revision that was named.
    """
    spec = hub_id(spec)
    if (folder := local_folder(spec)) is not None:
        return str(folder)
    repo, _, revision = spec.partition("@")
    if not revision:
        return spec
    from huggingface_hub import snapshot_download

    try:
        return str(snapshot_download(repo, revision=revision))
    except Exception as error:
        raise Unavailable(f"{spec}: {str(error).partition(chr(10))[0]}") from error


def environment(
    request: Request, target: Source, device: str, prompts: Sequence[Prompt], loaded: Loaded
) -> dict[str, Any]:
    """Everything that the figures depend on beside the checkpoint itself."""
    known = judged(loaded)
    return {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "command": shlex.join([Path(sys.argv[0]).name, *public_words(sys.argv[1:])]),
        "versions": {**{name: _version(name) for name in PACKAGES}, "python": _python()},
        "platform": platform.platform(),
        "device": _device(device),
        "dtype": request.dtype,
        "seed": request.seed,
        "target": {
            "path": loaded.target.path if loaded.target else request.target,
            "revision": loaded.target.revision if loaded.target else None,
            "model_type": target.config.model_type,
            "layers": target.depth,
            "hidden_size": target.hidden_size,
            "vocab_size": target.vocabulary_size,
            "architectures": list(loaded.facts.architectures) if loaded.facts else [],
            "dtype": _stored_dtype(loaded),
            "digest": target_digest(loaded.target) if loaded.target else None,
        },
        "draft": {
            "path": loaded.checkpoint.path,
            "layout": loaded.layout,
            "revision": loaded.checkpoint.revision,
            "as_is": {name: found["as_is"] for name, found in known.items()},
            "since": {name: runs_since(found["releases"]) for name, found in known.items()},
        },
        "prompts": {
            "source": _prompts_source(request),
            "count": len(prompts),
            "sha256": _prompts_digest(prompts),
        },
        "streams": request.streams,
        "max_new_tokens": request.new_tokens if request.streams else request.written,
        "end_of_sequence": "stops" if request.stop_at_eos else "ignored",
        "temperature": request.temperature,
        "cost_ratio": request.cost_ratio,
    }


def texts_digest(texts: Sequence[Text]) -> dict[str, Any]:
    """What identifies the texts that were counted: every prompt, its continuation, and where engines would draft."""
    told = [(text.prompt, text.completion[: text.scored], text.walks) for text in texts]
    return {
        "count": len(texts),
        "tokens": sum(text.scored for text in texts),
        "sha256": hashlib.sha256(repr(told).encode()).hexdigest(),
    }


def _stored_dtype(loaded: Loaded) -> str | None:
    """What the target's own config says, by which SGLang runs it unless told otherwise."""
    config = loaded.target.text_config if loaded.target else {}
    found = config.get("dtype") or config.get("torch_dtype")
    return str(found) if found else None


def _device(device: str) -> str:
    if not device.startswith("cuda"):
        return device
    return f"{device} ({torch.cuda.get_device_name(device)})"


def _python() -> str:
    return platform.python_version()


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def _prompts_source(request: Request) -> str:
    if request.streams is not None:
        return "recorded"
    return "bundled" if request.prompts is None else str(request.prompts)


def _prompts_digest(prompts: Sequence[Prompt]) -> str:
    told = [(p.text, p.messages, p.token_ids, p.completion) for p in prompts]
    return hashlib.sha256(repr(told).encode()).hexdigest()
