"""Which tensors a draft must have, and strict loading: SGLang's own loader drops what it does not know.

Names are those of SGLang's modules without ``model.``; shapes are those of the files, before any
sharding, from the one table of parameters that the converters read too. Nothing here imports torch or SGLang.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from eagle3_interop.sglang_plugin import draft, parameters

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
    network = _described(config, qk_norm=qk_norm, output_bias=output_bias)
    return {module_name(name): shape for name, shape in parameters.shapes(network).items()}


def latent_name(stored: str) -> str:
    """The same of a draft with latent attention, whose class knows no prefix and no other norm of later layers."""
    return re.sub(r"^midlayer\.", "layers.0.", stored)


def latent_required(config: Any, blocks: int) -> dict[str, Shape]:  # noqa: ANN401
    """Name and shape of every tensor of a draft with latent attention.

    Args:
        config: the draft's, as transformers parsed it.
        blocks: tapped states that fc takes.
    """
    attention = draft.Mla(
        heads=config.num_attention_heads,
        q_rank=config.q_lora_rank,
        kv_rank=config.kv_lora_rank,
        nope_dim=config.qk_nope_head_dim,
        rope_dim=config.qk_rope_head_dim,
        v_dim=config.v_head_dim,
        softmax_scale=1.0,
    )
    return parameters.shapes(_around(config, attention, _fc(config, blocks)))


def _described(config: Any, *, qk_norm: bool, output_bias: bool) -> draft.Draft:  # noqa: ANN401
    bias = bool(getattr(config, "attention_bias", False))
    attention = draft.Gqa(
        heads=config.num_attention_heads,
        kv_heads=config.num_key_value_heads,
        head_dim=config.head_dim,
        qk_norm=qk_norm,
        qkv_bias=bias,
        output_bias=bias and output_bias,
    )
    return _around(config, attention, _fc(config, feature_blocks(config)))


def _around(config: Any, attention: draft.Attention, fc: draft.Fc | None) -> draft.Draft:  # noqa: ANN401
    layers = draft.Layers(
        count=config.num_hidden_layers,
        attention=attention,
        mlp=draft.Mlp(width=config.intermediate_size),
        norm_eps=config.rms_norm_eps,
        windows=(None,) * config.num_hidden_layers,
    )
    vocabulary = draft.Vocabulary(
        target_size=config.vocab_size,
        draft_size=config.draft_vocab_size,
        mapped=config.draft_vocab_size != config.vocab_size,
    )
    return draft.Draft(
        hidden_size=config.hidden_size,
        target=draft.Target(hidden_size=target_width(config)),
        taps=None,
        fc=fc,
        layers=layers,
        vocabulary=vocabulary,
    )


def _fc(config: Any, blocks: int) -> draft.Fc | None:  # noqa: ANN401
    eagle = getattr(config, "eagle_config", None) or {}
    if not blocks:
        return None
    input_norm = eagle.get("norm_before_fc", getattr(config, "norm_before_fc", False))
    block_norms = getattr(config, "fc_norm", None) or getattr(config, "use_aux_norm", False)
    return draft.Fc(blocks=blocks, input_norm=bool(input_norm), block_norms=bool(block_norms))


class StrictTensors:
    """Passes tensors on under the module's names, and refuses every one that does not fit.

    Attributes:
        seen: names that were passed on.
    """

    def __init__(
        self,
        shapes: Mapping[str, Shape],
        optional: Iterable[str],
        rename: Callable[[str], str] = module_name,
    ) -> None:
        """Take the tensors of the network, those among them that the target may provide, and their other names."""
        self._rename = rename
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
            name = self._rename(stored)
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
