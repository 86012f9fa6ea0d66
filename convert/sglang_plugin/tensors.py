"""Which tensors a draft must have, and strict loading: SGLang's own loader drops what it does not know.

Names are those of SGLang's modules without ``model.``; shapes are those of the files, before any
sharding. Nothing here imports torch or SGLang.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

_LEGACY = {
    "midlayer.": "layers.0.",
    "aux_norm_low.": "fc_norm.0.",
    "aux_norm_mid.": "fc_norm.1.",
    "aux_norm_high.": "fc_norm.2.",
}
_COMPUTED = "rotary_emb.inv_freq"
_LATER_NORM = re.compile(r"layers\.[1-9]\d*\.input_layernorm\.weight")

Shape = tuple[int, ...]


class DraftCheckpointError(ValueError):
    """The checkpoint is not the network that its config describes."""


def module_name(stored: str) -> str:
    """The name of the module's parameter that a stored tensor is for."""
    name = stored.removeprefix("model.")
    for old, new in _LEGACY.items():
        if name.startswith(old):
            name = new + name.removeprefix(old)
    if _LATER_NORM.fullmatch(name):
        # vLLM's name for the one norm before attention of a later layer.
        name = name.replace("input_layernorm", "hidden_norm")
    return name


def feature_blocks(config: Any) -> int:  # noqa: ANN401
    """How many tapped states fc takes; 0 for a draft without fc."""
    eagle = getattr(config, "eagle_config", None) or {}
    if not eagle.get("use_aux_hidden_state", True):
        return 0
    ids = eagle.get("eagle_aux_hidden_state_layer_ids")
    return getattr(config, "num_aux_hidden_states", None) or (len(ids) if ids else 3)


def target_width(config: Any) -> int:  # noqa: ANN401
    """The target's hidden size."""
    return int(getattr(config, "target_hidden_size", None) or config.hidden_size)


def required(config: Any, *, qk_norm: bool, output_bias: bool) -> dict[str, Shape]:  # noqa: ANN401
    """Name and shape of every tensor that the network has, whoever owns its tables.

    Args:
        config: the draft's, as transformers parsed it.
        qk_norm: attention norms queries and keys.
        output_bias: ``attention_bias`` puts a bias on o_proj too.
    """
    width, head_dim = config.hidden_size, config.head_dim
    blocks, wide = feature_blocks(config), target_width(config)
    shapes: dict[str, Shape] = {
        "embed_tokens.weight": (config.vocab_size, width),
        "norm.weight": (width,),
        "lm_head.weight": (config.draft_vocab_size, width),
    }
    if config.draft_vocab_size != config.vocab_size:
        shapes["d2t"] = (config.draft_vocab_size,)
    eagle = getattr(config, "eagle_config", None) or {}
    if blocks:
        shapes["fc.weight"] = (width, blocks * wide)
        if eagle.get("norm_before_fc", getattr(config, "norm_before_fc", False)):
            shapes["input_norm.weight"] = (blocks * wide,)
        if getattr(config, "fc_norm", None) or getattr(config, "use_aux_norm", False):
            shapes |= {f"fc_norm.{block}.weight": (wide,) for block in range(blocks)}
    rows = {
        "q": config.num_attention_heads * head_dim,
        "k": config.num_key_value_heads * head_dim,
        "v": config.num_key_value_heads * head_dim,
    }
    bias = bool(getattr(config, "attention_bias", False))
    for layer in range(config.num_hidden_layers):
        shapes |= _layer(config, layer, rows, bias=bias)
        at = f"layers.{layer}.self_attn."
        if bias and output_bias:
            shapes[f"{at}o_proj.bias"] = (width,)
        if qk_norm:
            shapes |= {f"{at}{part}_norm.weight": (head_dim,) for part in "qk"}
    return shapes


def _layer(config: Any, layer: int, rows: Mapping[str, int], *, bias: bool) -> dict[str, Shape]:  # noqa: ANN401
    at, width, middle = f"layers.{layer}.", config.hidden_size, config.intermediate_size
    shapes: dict[str, Shape] = {
        f"{at}hidden_norm.weight": (width,),
        f"{at}post_attention_layernorm.weight": (width,),
        f"{at}self_attn.o_proj.weight": (width, rows["q"]),
        f"{at}mlp.gate_proj.weight": (middle, width),
        f"{at}mlp.up_proj.weight": (middle, width),
        f"{at}mlp.down_proj.weight": (width, middle),
    }
    if layer == 0:
        shapes[f"{at}input_layernorm.weight"] = (width,)
    for part, size in rows.items():
        shapes[f"{at}self_attn.{part}_proj.weight"] = (size, width if layer else 2 * width)
        if bias:
            shapes[f"{at}self_attn.{part}_proj.bias"] = (size,)
    return shapes


class StrictTensors:
    """Passes tensors on under the module's names, and refuses every one that does not fit.

    Attributes:
        seen: names that were passed on.
    """

    def __init__(self, shapes: Mapping[str, Shape], optional: Iterable[str]) -> None:
        """Take the tensors of the network and those among them that the target may provide."""
        self._shapes = shapes
        self._optional = frozenset(optional)
        self._norms: dict[str, Any] = {}
        self.seen: set[str] = set()

    def checked(self, weights: Iterable[tuple[str, Any]]) -> Iterator[tuple[str, Any]]:
        """Yield each tensor that is to be loaded.

        Args:
            weights: stored name and tensor.

        Raises:
            DraftCheckpointError: a tensor is unknown, of another shape, doubled, or missing.
        """
        for stored, tensor in weights:
            name = module_name(stored)
            # t2d is d2t seen from the other side; no engine reads it.
            if name == "t2d" or name.endswith(_COMPUTED) or self._changes_nothing(name, tensor):
                continue
            if self._is_twin(name, tensor):
                continue
            self._check(stored, name, tensor)
            self.seen.add(name)
            yield name, tensor
        missing = sorted(self._shapes.keys() - self.seen - self._optional)
        if missing:
            raise DraftCheckpointError(f"the draft's files lack {', '.join(missing)}")

    def _changes_nothing(self, name: str, tensor: Any) -> bool:  # noqa: ANN401
        """Whether this is a zero bias on o_proj, which other frameworks' qwen3 layers must have."""
        return name.endswith("o_proj.bias") and name not in self._shapes and not tensor.any()

    def _is_twin(self, name: str, tensor: Any) -> bool:  # noqa: ANN401
        """Whether this is a later layer's norm under its second name (folders for every framework)."""
        if name not in self._shapes or not re.fullmatch(
            r"layers\.[1-9]\d*\.hidden_norm\.weight", name
        ):
            return False
        first = self._norms.setdefault(name, tensor)
        if not first.equal(tensor):
            raise DraftCheckpointError(
                f"{name}: stored as hidden_norm and as input_layernorm with different values; SGLang "
                "reads the one and vLLM the other"
            )
        return name in self.seen

    def _check(self, stored: str, name: str, tensor: Any) -> None:  # noqa: ANN401
        if name not in self._shapes:
            raise DraftCheckpointError(f"{stored}: the network of this config has no such tensor")
        if name in self.seen:
            raise DraftCheckpointError(f"{stored}: {name} is stored twice")
        if tuple(tensor.shape) != self._shapes[name]:
            raise DraftCheckpointError(
                f"{stored}: shape {list(tensor.shape)}, and the config makes it {list(self._shapes[name])}"
            )
