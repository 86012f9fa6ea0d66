"""Conversions in one line, for tests that read like sentences."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import drafts
import numpy as np

from eagle3_interop.convert import api
from eagle3_interop.convert.serve.command import Serving, command
from eagle3_interop.schemas.findings import Finding, Refused, errors


@dataclass(frozen=True)
class Converted:
    """What came out of a conversion, read back by the real safetensors library."""

    folder: Path
    config: dict[str, Any]
    tensors: drafts.Tensors
    conversion: api.Conversion

    @property
    def findings(self) -> tuple[Finding, ...]:
        return self.conversion.fitted.findings

    @property
    def codes(self) -> set[str]:
        return {item.code for item in self.findings}

    def said(self, code: str) -> Finding:
        return next(item for item in self.findings if item.code == code)

    @property
    def draft(self) -> Any:
        return self.conversion.fitted.draft


def convert(
    source: Path, destination: str, *, layout: str = "auto", link: bool = False, **options: Any
) -> Converted:
    """Convert into a folder beside the source and load it."""
    chosen = api.Options(**{"target_name": "org/target", **_text(options)})
    conversion = api.convert(api.load(str(source), layout, chosen), destination, chosen)
    output = source.parent / f"{source.name}-to-{destination}"
    with mock.patch("os.fsync"):  # the disk's own time, which test_stream.py pays
        api.write(conversion, output, link=link, overwrite=True)
    return Converted(output, *drafts.load(output), conversion)


def described(source: Path, layout: str = "auto", **options: Any) -> Any:
    """The network that a layout's reader finds."""
    return loaded(source, layout, **options).reading.draft


def loaded(source: Path, layout: str = "auto", **options: Any) -> Any:
    """A source that was read, with its findings."""
    return api.load(str(source), layout, api.Options(**_text(options)))


def codes(source: Path, layout: str = "auto", **options: Any) -> set[str]:
    """Codes of everything said on reading."""
    return {item.code for item in loaded(source, layout, **options).reading.findings}


def refusals(act: Callable[..., Any], *arguments: Any, **options: Any) -> set[str]:
    """Codes of the errors that something is refused with."""
    try:
        act(*arguments, **options)
    except Refused as refused:
        return {item.code for item in errors(refused.findings)}
    raise AssertionError("was not refused")


def refusal(act: Callable[..., Any], *arguments: Any, **options: Any) -> Finding:
    """The one error that something is refused with."""
    try:
        act(*arguments, **options)
    except Refused as refused:
        (finding,) = errors(refused.findings)
        return finding
    raise AssertionError("was not refused")


def _text(options: dict[str, Any]) -> dict[str, Any]:
    return {key: str(value) if isinstance(value, Path) else value for key, value in options.items()}


def same_tensors(one: drafts.Tensors, other: drafts.Tensors) -> bool:
    """Whether two sets of tensors are equal bit for bit, names included."""
    return one.keys() == other.keys() and all(
        one[name].dtype == other[name].dtype and np.array_equal(one[name], other[name])
        for name in one
    )


def launch_line(config, engine, checkpoint, target, tokens, topk=1, target_config=None) -> str:
    """The command that `serve` prints."""
    wanted = Serving(engine, config, checkpoint, target, tokens, topk, target_config=target_config)
    return command(wanted).line
