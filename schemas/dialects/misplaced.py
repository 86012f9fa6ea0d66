"""Keys that decide what is computed and stand in a place that their reader skips: they are never passed over in silence."""

from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any

from eagle3_interop.schemas.dialects.hf import CONFIG, OLD_KINDS
from eagle3_interop.schemas.draft import Draft
from eagle3_interop.schemas.findings import Finding, finding

Told = Callable[[Any], object]


def _kind(value: Any) -> object:  # noqa: ANN401 - a rope dict, or whatever stands there
    kind = value.get("rope_type", value.get("type")) if isinstance(value, Mapping) else None
    kind = OLD_KINDS.get(str(kind), kind)
    return None if kind in (None, "default") else kind


_DECIDING: dict[str, tuple[str, Told]] = {
    "fc_norm": ("fc.block_norms", bool),
    "hidden_act": ("layers.mlp.activation", lambda value: "silu" if value == "swish" else value),
    "norm_before_fc": ("fc.input_norm", bool),
    "norm_before_residual": ("residual", lambda value: "normed" if value else "raw"),
    "norm_output": ("feedback", lambda value: "post-norm" if value else "pre-norm"),
    "partial_rotary_factor": ("rope.partial", float),
    "rms_norm_eps": ("layers.norm_eps", float),
    "rope_parameters": ("rope.scaling", _kind),
    "rope_scaling": ("rope.scaling", _kind),
    "rope_theta": ("rope.theta", float),
}
"""Key to the path of the description that it decides, and to the value there."""


def misplaced(
    config: Mapping[str, Any], engine: str, read: Mapping[str, Collection[str]], draft: Draft
) -> Iterator[Finding]:
    """An error for each key that would decide otherwise than the description says, were it read.

    Args:
        config: the raw config.
        engine: whose reading it is.
        read: by place (``""`` is the top level) the keys that it reads there; other places are not looked at.
        draft: what it computes.
    """
    computed = draft.model_dump()
    for place, used in read.items():
        inner = config.get(place)
        keys = inner if isinstance(inner, Mapping) else {}
        keys = keys if place else config
        for key in sorted(_DECIDING.keys() & keys):
            path, told_by = _DECIDING[key]
            value = keys[key]
            if value is None or key in used:
                continue
            try:
                told = told_by(value)
            except (TypeError, ValueError):
                continue
            meant: Any = computed
            for part in path.split("."):
                meant = meant.get(part) if isinstance(meant, Mapping) else None
            if told != meant and (told or meant):
                where = f"{CONFIG}: {place and place + '.'}{key}"
                message = (
                    f"{value!r} stands where {engine} does not look; it computes {path} {meant!r}."
                )
                fix = f"Say which was trained: --set {path}={_word(told)} or --set {path}={_word(meant)}."
                yield finding("misplaced-key", where, message, fix=fix, settled_by=path)


def _word(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return "none" if value is None else str(value)
