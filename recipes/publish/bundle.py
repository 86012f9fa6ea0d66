"""What a push sends: the files of the checkpoint and nothing else, and no path of this machine."""

import json
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ValidationError

from eagle3_interop.convert.masking import is_local, masked, shortened
from eagle3_interop.convert.read.checkpoint import (
    BIN_INDEX,
    SAFETENSORS_INDEX,
    Checkpoint,
    open_checkpoint,
)
from eagle3_interop.convert.read.folders import check_links
from eagle3_interop.convert.read.strict_json import parse_object
from eagle3_interop.convert.write.earlier import PROVENANCE
from eagle3_interop.recipes.publish.sealed import Changed, Sealed
from eagle3_interop.schemas.findings import Finding, Refused, Unavailable, Usage, refusal
from eagle3_interop.schemas.hub import is_hub_id

_CONFIGS = ("config.json", "generation_config.json", "tokenizer_config.json")


@dataclass(frozen=True)
class Bundle:
    """A checkpoint's folder, sorted into what is pushed and what stays.

    Attributes:
        checkpoint: the folder, opened.
        files: name to path of all that is pushed as it lies.
        left: names of the rest: strays, caches, code, the card.
        provenance: ``eagle3_interop.json``, if there is one.
        texts: the configs and the provenance, by name, as they were looked at.
    """

    checkpoint: Checkpoint
    files: Mapping[str, Path]
    left: tuple[str, ...]
    provenance: Mapping[str, Any] | None
    texts: Mapping[str, bytes]

    @property
    def folder(self) -> Path:
        """Where it lies."""
        return Path(self.checkpoint.path)

    @property
    def config(self) -> Mapping[str, Any]:
        """config.json."""
        return self.checkpoint.config

    @contextmanager
    def sealed(self) -> Iterator[dict[str, Sealed]]:
        """Every file that is pushed, open and hashed: what is sent is read through these alone.

        Raises:
            Unavailable: the disk failed, or a config is not the one that was looked at.
        """
        with ExitStack() as stack:
            try:
                found = {
                    name: stack.enter_context(Sealed(path)) for name, path in self.files.items()
                }
            except OSError as error:
                raise Unavailable(f"{error.filename}: {error.strerror}") from error
            for name, text in self.texts.items():
                if found[name].read() != text:
                    raise Changed(name)
                found[name].seek(0)
            yield found


def collect(folder: Path) -> Bundle:
    """Open a local checkpoint and sort its files.

    Raises:
        Usage: not a local folder.
        Refused: it is not a sound checkpoint, or its configs name paths of this machine.
        Unavailable: the disk failed.
    """
    if not folder.is_dir():
        raise Usage(f"{folder} is not a folder; a push takes a local checkpoint.")
    try:
        return _sorted(folder)
    except OSError as error:
        raise Unavailable(f"{error.filename}: {error.strerror}") from error


def _sorted(folder: Path) -> Bundle:
    checkpoint = open_checkpoint(str(folder))
    present = checkpoint.folder.sizes
    own = [folder / PROVENANCE] if PROVENANCE in present else []
    check_links([*checkpoint.sides, *checkpoint.odd_sides, *own], checkpoint.folder.states)
    wanted = {
        "config.json",
        *(path.name for path in checkpoint.files),
        *(tensor.file.name for tensor in checkpoint.stored.values()),
        *(path.name for path in checkpoint.sides),
        *([PROVENANCE] if PROVENANCE in present else []),
        *_index(checkpoint),
    }
    files = {name: folder / name for name in sorted(wanted)}
    everything = (entry.name + "/" * entry.is_dir() for entry in folder.iterdir())
    left = tuple(sorted(name for name in everything if name not in wanted))
    texts = {name: files[name].read_bytes() for name in (*_CONFIGS, PROVENANCE) if name in files}
    parsed = {name: parse_object(raw, "broken-config", files[name]) for name, raw in texts.items()}
    if parsed["config.json"] != checkpoint.config:
        raise Changed("config.json")
    provenance = parsed.pop(PROVENANCE, None)
    _check_provenance(provenance or {})
    check_paths(parsed, provenance or {})
    return Bundle(checkpoint, files, left, provenance, texts)


def _index(checkpoint: Checkpoint) -> list[str]:
    """The index that the loaders go by, of the same kind as the weights."""
    kind = SAFETENSORS_INDEX if checkpoint.headers else BIN_INDEX
    return [kind] if kind in checkpoint.folder.sizes else []


def verifier(config: Mapping[str, Any]) -> str | None:
    """The verifier as a speculators config names it."""
    settings = config.get("speculators_config")
    named = settings.get("verifier") if isinstance(settings, dict) else None
    name = named.get("name_or_path") if isinstance(named, dict) else None
    return name if isinstance(name, str) else None


def target_id(
    config: Mapping[str, Any], provenance: Mapping[str, Any], environment: Mapping[str, Any]
) -> str | None:
    """The target's Hub id: what config.json says, then the conversion, then the validation.

    A relative folder looks like an id. Provenance that knows ``target_name`` writes one as ``./FOLDER``; of
    an older one, and of a report, only what has a revision of the Hub is believed.

    Args:
        config: config.json, whose verifier `check_paths` let through.
        provenance: of the conversion.
        environment: of the validation.
    """
    told = _part(provenance, "target")
    since = "target_name" in _part(provenance, "options")
    trained_for = _part(_part(provenance, "draft"), "target").get("name")
    measured = _part(environment, "target")
    names = (
        verifier(config),
        told.get("path") if since or told.get("revision") else None,
        trained_for if since else None,
        measured.get("path") if measured.get("revision") else None,
    )
    ids = (name.partition("@")[0] for name in names if isinstance(name, str))
    return next((n for n in ids if is_hub_id(n) and not Path(n).exists()), None)


class _Provenance(BaseModel):
    """What is used of ``eagle3_interop.json``."""

    tool: dict[str, Any] | None = None
    source: dict[str, Any] | None = None
    target: dict[str, Any] | None = None
    output: dict[str, Any] | None = None
    options: dict[str, Any] | None = None
    draft: dict[str, Any] | None = None
    tensors: list[dict[str, Any]] = []
    findings: list[Finding] = []


def _check_provenance(provenance: Mapping[str, Any]) -> None:
    try:
        _Provenance.model_validate(provenance)
    except ValidationError as error:
        key = ".".join(map(str, error.errors(include_url=False)[0]["loc"]))
        message = f"{key} is not what eagle3-convert writes there."
        fix = "Convert again, and validate that."
        raise refusal("broken-config", PROVENANCE, message, fix) from None


def _part(whole: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    part = whole.get(key)
    return part if isinstance(part, Mapping) else {}


def check_paths(configs: Mapping[str, Any], provenance: Mapping[str, Any]) -> None:
    """Refuse configs that name what only this machine has.

    Args:
        configs: by name, what is in them.
        provenance: of the conversion, which says whether the verifier was given as a folder.

    Raises:
        Refused: with every such place (code ``local-path``).
    """
    found = []
    for name, content in configs.items():
        if name == "config.json":
            found += _check_verifier(content, provenance)
        found += [
            _local(f"{name}: {key}", value)
            for key, value in _strings(content)
            if is_local(value) and not key.endswith("verifier.name_or_path")
        ]
    if found:
        raise Refused(item for refused in found for item in refused.findings)


def _check_verifier(config: Mapping[str, Any], provenance: Mapping[str, Any]) -> list[Refused]:
    name = verifier(config)
    if name is None:
        return []
    key = "speculators_config.verifier.name_or_path"
    where = f"config.json: {key}"
    fix = "Convert again with --target-name ORG/NAME, the target's Hub id, and validate that."
    if not is_hub_id(name):
        message = f"{name!r} is not a Hub id, and whoever loads this draft has no such folder."
        return [refusal("local-path", where, message, fix)]
    if any(one["where"] == key for one in provenance.get("findings", [])):
        message = f"{name!r} was given as a folder, however much it looks like a Hub id."
        return [refusal("local-path", where, message, fix)]
    if Path(name).exists():
        message = f"{name!r} is a folder here, so that it may not be meant as a Hub id."
        fix += " If it is the Hub id, push from another working directory."
        return [refusal("local-path", where, message, fix)]
    return []


def _local(where: str, value: str) -> Refused:
    return refusal(
        "local-path",
        where,
        f"{value!r} is a path of this machine.",
        "Remove the key, or name a Hub id.",
    )


def _strings(value: object, key: str = "") -> Iterator[tuple[str, str]]:
    """Dotted key and text of every string; the tokens of a tokenizer are no places."""
    if isinstance(value, str):
        yield key, value
    elif isinstance(value, dict):
        for name, inner in value.items():
            if name not in ("added_tokens_decoder", "chat_template"):
                yield from _strings(inner, f"{key}.{name}" if key else name)
    elif isinstance(value, list):
        for inner in value:
            yield from _strings(inner, key)


def public_provenance(provenance: Mapping[str, Any]) -> dict[str, Any]:
    """The provenance with every path of this machine shortened to its last component."""
    cleaned = _shortened(provenance)
    assert isinstance(cleaned, dict)  # noqa: S101
    return cleaned


def public_bytes(bundle: Bundle, name: str) -> bytes | None:
    """What to send instead of a file as it lies; None sends it as it is."""
    if name != PROVENANCE or bundle.provenance is None:
        return None
    cleaned = public_provenance(bundle.provenance)
    if cleaned == bundle.provenance:
        return None
    return (json.dumps(cleaned, indent=2, ensure_ascii=False) + "\n").encode()


def _shortened(value: object) -> object:
    if isinstance(value, str):
        return masked(shortened(value))
    if isinstance(value, dict):
        return {key: _shortened(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [_shortened(inner) for inner in value]
    return value
