"""``quantization_config``: how compressed-tensors and ModelOpt spell it, read and written.

What is quantised stands in the file: the parts of its weights. The config says by which scheme, and names modules,
in words that each engine matches against names of its own (`Listed`).
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, get_args

from pydantic import ValidationError

from eagle3_interop.schemas.dialects.base import TensorHeader
from eagle3_interop.schemas.dialects.hf import CONFIG
from eagle3_interop.schemas.dialects.keys import LAYER
from eagle3_interop.schemas.draft import Draft
from eagle3_interop.schemas.findings import Finding, finding
from eagle3_interop.schemas.parameters import is_part, parameters
from eagle3_interop.schemas.quantisation import (
    STORED_SMALL,
    Format,
    Group,
    Method,
    Quantisation,
    Scheme,
)

KEY = "quantization_config"
BESIDE = "hf_quant_config.json"
"""ModelOpt's file, which engines read where the key is absent."""

ANY_LINEAR = "Linear"
"""The target that means every matrix of a linear layer: it is a class's name, not a module's."""

FUSED: Mapping[str, tuple[str, ...]] = {
    "qkv_proj": ("q_proj", "k_proj", "v_proj"),
    "gate_up_proj": ("gate_proj", "up_proj"),
    "fused_qkv_a_proj": ("q_a_proj", "kv_a_proj_with_mqa"),
    "fused_qkv_a_proj_with_mqa": ("q_a_proj", "kv_a_proj_with_mqa"),
}
"""Matrices that engines put into one, under its name there: all of them have one scheme."""

_OTHER_ORDERS = ("group", "dynamic", True)
_KV_SCALE = re.compile(r"\.(?:attn\.)?(?:[kv]_proj\.)?[qkv]_(?:scale|zero_point)$")


@dataclass(frozen=True)
class Listed:
    """A ``quantization_config``, understood.

    Attributes:
        method: whose it is.
        groups: the targets of each group, and its scheme.
        ignore: what its groups leave out.
        kv_cache: it has a scheme of the KV cache.
        others: keys that say nothing of the network, to be written again.
    """

    method: Method
    groups: tuple[tuple[tuple[str, ...], Scheme], ...]
    ignore: tuple[str, ...]
    kv_cache: bool
    others: Mapping[str, Any]


class Unknown(Exception):  # noqa: N818 - what it is, not a malfunction
    """A quantisation that is not carried; its text says which."""


def stated(config: Mapping[str, Any]) -> tuple[Mapping[str, Any] | None, str]:
    """The ``quantization_config`` of a folder and where it stands: at the top, or among the layers' own keys."""
    layer = config.get(LAYER)
    inner = layer.get(KEY) if isinstance(layer, Mapping) else None
    if not config.get(KEY) and inner:
        return inner, f"{CONFIG}: {LAYER}.{KEY}"
    return config.get(KEY) or None, f"{CONFIG}: {KEY}"


def listed(raw: object) -> Listed:
    """What a ``quantization_config`` says.

    Raises:
        Unknown: it is one that is not carried.
    """
    if not isinstance(raw, Mapping):
        raise Unknown("it is no object")
    method = str(raw.get("quant_method") or "").lower()
    if method in ("compressed-tensors", "compressed_tensors"):
        return _compressed_tensors(raw)
    if method.startswith("modelopt"):
        return _modelopt(raw)
    raise Unknown(f"its quant_method is {method or 'absent'!r}")


def known(raw: object) -> bool:
    """Whether a ``quantization_config`` is one that is carried, so that it says what it quantises."""
    try:
        listed(raw)
    except Unknown:
        return False
    return True


def _compressed_tensors(raw: Mapping[str, Any]) -> Listed:
    for key in ("sparsity_config", "transform_config"):
        if raw.get(key):
            raise Unknown(f"it has a {key}")
    groups = []
    for name, group in (raw.get("config_groups") or {}).items():
        if not isinstance(group, Mapping):
            raise Unknown(f"its group {name} is no object")
        targets, weights = _words(group.get("targets"), "targets"), group.get("weights")
        if weights is None or all(target.endswith("Attention") for target in targets):
            continue
        if weights.get("actorder") in _OTHER_ORDERS:
            raise Unknown(f"its columns are ordered by activation ({weights['actorder']})")
        written = str(group.get("format") or raw.get("format"))
        if written not in get_args(Format) or written in ("FP8", "NVFP4"):
            raise Unknown(f"its format is {written!r}")
        if written == "pack-quantized" and weights.get("num_bits") not in (2, 4, 8):
            # compressed-tensors 0.20 packs others densely, 0.18 each integer by itself.
            raise Unknown(
                f"its integers of {weights.get('num_bits')} bits lie otherwise in each version"
            )
        inputs, outputs = group.get("input_activations"), group.get("output_activations")
        groups.append((targets, _scheme("compressed-tensors", written, weights, inputs, outputs)))
    known = ("quant_method", "format", "config_groups", "ignore", "kv_cache_scheme")
    others = {key: value for key, value in raw.items() if key not in known and value}
    ignore = _words(raw.get("ignore") or [], "ignore")
    kv_cache = bool(raw.get("kv_cache_scheme"))
    return Listed("compressed-tensors", tuple(groups), ignore, kv_cache, others)


def _modelopt(raw: Mapping[str, Any]) -> Listed:
    inner = raw.get("quantization")
    keys = inner if isinstance(inner, Mapping) else raw
    algorithm = str(keys.get("quant_algo") or "").upper()
    if algorithm and algorithm not in ("FP8", "NVFP4"):
        raise Unknown(f"its quant_algo is {algorithm!r}")
    if algorithm == "NVFP4" and keys.get("group_size") not in (None, 16):
        raise Unknown(f"its groups are of {keys['group_size']}, and NVFP4's of 16")
    ignore = _words(keys.get("ignore") or keys.get("exclude_modules") or [], "ignore")
    scheme = _scheme("modelopt", algorithm, {}, None, None) if algorithm else None
    groups = () if scheme is None else (((ANY_LINEAR,), scheme),)
    kv_cache = bool(keys.get("kv_cache_quant_algo") or keys.get("kv_cache_scheme"))
    producer = raw.get("producer")
    return Listed("modelopt", groups, ignore, kv_cache, {"producer": producer} if producer else {})


def _scheme(
    method: Method, written: str, weights: Mapping[str, Any], inputs: object, outputs: object
) -> Scheme:
    arguments = {
        "method": method,
        "format": written,
        "weights": dict(weights),
        "input_activations": inputs,
        "output_activations": outputs,
    }
    try:
        scheme = Scheme.model_validate(arguments)
        steps = [step for piece in scheme.pieces for step in piece.per or () if step is not None]
    except (ValidationError, KeyError, TypeError, ValueError, ZeroDivisionError) as error:
        raise Unknown(f"its arguments make no scheme: {str(error).splitlines()[0]}") from error
    if any(type(step) is not int or step < 1 for step in steps):
        raise Unknown(f"its groups are of {steps}")
    return scheme


def _words(value: object, key: str) -> tuple[str, ...]:
    if not isinstance(value, Sequence) or not all(isinstance(word, str) for word in value):
        raise Unknown(f"its {key} are no list of names")
    return tuple(value)


def stored_modules(
    names: Mapping[str, str], tensors: Mapping[str, TensorHeader]
) -> tuple[str, ...]:
    """The modules whose weights lie quantised in a file, by its headers alone."""
    found = {
        canonical.rpartition(".")[0]: None
        for canonical, stored in names.items()
        if (canonical.endswith(".weight") and tensors[stored].dtype.startswith(STORED_SMALL))
        or is_part(canonical)
    }
    return tuple(found)


def kv_scales(names: Mapping[str, str]) -> list[str]:
    """Scales of the KV cache, which are no part of any weight."""
    return [name for name in names if _KV_SCALE.search(name)]


def resolved(said: Listed | None, modules: Sequence[str], names: Mapping[str, str]) -> Quantisation:
    """The scheme of each module that lies quantised in a file.

    Args:
        said: the config; None where the folder has none.
        modules: the modules, by their canonical names; at least one.
        names: canonical to stored name, of every tensor.

    Raises:
        Unknown: nothing says how one of them is quantised.
    """
    if said is None:
        raise Unknown(f"{modules[0]} is stored quantised, and no quantization_config says how")
    if not said.groups:
        raise Unknown(f"{modules[0]} is stored quantised, and its config has no group for it")
    if "embed_tokens" in modules:
        raise Unknown("the embedding table is quantised, which no draft class takes")
    stored = {name.rpartition(".")[0]: path.rpartition(".")[0] for name, path in names.items()}
    members: dict[int, list[str]] = {}
    for module in modules:
        members.setdefault(_group_of(said, module, stored[module]), []).append(module)
    groups = (
        Group(scheme=said.groups[index][1], modules=tuple(sorted(found)))
        for index, found in sorted(members.items())
    )
    return Quantisation(groups=tuple(groups))


def _group_of(said: Listed, module: str, stored: str) -> int:
    if len(said.groups) == 1:
        return 0
    path, _, leaf = module.rpartition(".")
    fused = [f"{path}.{name}" for name, parts in FUSED.items() if leaf in parts]
    names = [stored, module, f"model.{module}", *fused, *(f"model.{name}" for name in fused)]
    for index, (targets, _) in enumerate(said.groups):
        if any(matches(name, target) for name in names for target in targets):
            return index
    for index, (targets, _) in enumerate(said.groups):
        if ANY_LINEAR in targets:
            return index
    raise Unknown(f"none of its groups names {stored}")


def matches(name: str, entry: str) -> bool:
    """Whether an entry of a list of targets names a module: exactly, or as ``re:`` and a pattern."""
    if entry.startswith("re:"):
        try:
            return re.match(entry[3:], name) is not None
        except re.error:
            return False
    return entry == name


def linear_modules(draft: Draft) -> list[str]:
    """Every module of a network with a matrix that can be quantised: not the embedding table."""
    plain = draft.model_copy(update={"quantisation": None})
    return [
        name.removesuffix(".weight")
        for name, row in parameters(plain)
        if len(row.axes) == 2 and name.endswith(".weight") and name != "embed_tokens.weight"
    ]


def leaves(draft: Draft) -> tuple[dict[str, Scheme | None], list[Finding]]:
    """The last part of each linear module's name to its scheme, or None for a plain one.

    Engines give the layers other numbers than the file, or none, so that an entry can name leaves alone.

    Returns:
        The leaves, and an error for each of which layers, or parts that engines put into one matrix, differ.
    """
    found: dict[str, Scheme | None] = {}
    wrong: dict[str, Finding] = {}
    schemes = draft.quantisation.modules if draft.quantisation is not None else {}
    for module in linear_modules(draft):
        leaf, scheme = module.rpartition(".")[2], schemes.get(module)
        if leaf in found and found[leaf] != scheme:
            message = "it is quantised in one layer and not, or otherwise, in another; engines number layers each in its own way, so that no list names one of them for all."
            wrong[leaf] = finding("quantised-unmatched", module, message)
        found.setdefault(leaf, scheme)
    for parts in FUSED.values():
        if len({str(found[part]) for part in parts if part in found}) > 1:
            message = (
                f"engines put {', '.join(parts)} into one matrix, and these do not have one scheme."
            )
            wrong[parts[0]] = finding("quantised-unmatched", parts[0], message)
    return found, list(wrong.values())


def write(draft: Draft, others: Mapping[str, Any]) -> dict[str, Any] | None:
    """``quantization_config`` of a network; None where nothing is quantised.

    Its lists name leaves, which every engine finds at the end of its own names for them.

    Args:
        draft: the network, of which `leaves` finds no fault.
        others: keys of the source's that say nothing of the network.
    """
    if draft.quantisation is None:
        return None
    found, _ = leaves(draft)
    plain = list(_written(leaf for leaf, scheme in found.items() if scheme is None))
    groups = draft.quantisation.groups
    if draft.quantisation.method == "modelopt":
        scheme = groups[0].scheme
        sized = {"group_size": 16} if scheme.format == "NVFP4" else {}
        return {
            "producer": {"name": "modelopt"},
            **others,
            "quant_method": "modelopt",
            "quant_algo": scheme.format,
            **sized,
            "ignore": [f"*{leaf}" for leaf in plain],
        }
    formats = {group.scheme.format for group in groups}
    one = len(formats) == 1
    written = {}
    for index, group in enumerate(groups):
        own = [leaf for leaf, scheme in found.items() if scheme == group.scheme]
        # A class's name would be asked before other groups' names; the head is found by its own alone.
        named = own if len(groups) > 1 else [leaf for leaf in own if leaf == "lm_head"]
        targets = [f"re:.*{leaf}$" for leaf in _written(named)]
        written[f"group_{index}"] = {
            "targets": targets if len(groups) > 1 else [ANY_LINEAR, *targets],
            "weights": group.scheme.weights,
            "input_activations": group.scheme.input_activations,
            "output_activations": group.scheme.output_activations,
            **({} if one else {"format": group.scheme.format}),
        }
    return {
        **others,
        "quant_method": "compressed-tensors",
        "format": next(iter(formats)) if one else "mixed-precision",
        "config_groups": written,
        "ignore": [f"re:.*{leaf}$" for leaf in plain],
        "kv_cache_scheme": None,
    }


def _written(found: Iterator[str] | Sequence[str]) -> Iterator[str]:
    """Leaves, and the names of the matrices that engines put them into."""
    names = list(found)
    yield from names
    for fused, parts in FUSED.items():
        if parts[0] in names:
            yield fused
