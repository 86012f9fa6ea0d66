"""The registry of finding codes: what each means for acceptance, what to do, and its effect. A room a theme."""

from eagle3_interop.schemas.codes import (
    conversion,
    defaults,
    destination,
    diagnosis,
    folder,
    launch,
    layout,
    push,
    quantised,
    rope,
    streams,
    taps,
    tensors,
    validation,
    vocabulary,
)
from eagle3_interop.schemas.codes.base import Code, Effect, Severity

_THEMES = (
    folder.CODES,
    layout.CODES,
    quantised.CODES,
    defaults.CODES,
    taps.CODES,
    tensors.CODES,
    vocabulary.CODES,
    rope.CODES,
    destination.CODES,
    conversion.CODES,
    validation.CODES,
    push.CODES,
    launch.CODES,
    diagnosis.CODES,
    streams.CODES,
)

CODES: dict[str, Code] = {code: row for theme in _THEMES for code, row in theme.items()}

__all__ = ["CODES", "Code", "Effect", "Severity"]
