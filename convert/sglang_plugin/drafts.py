"""The two draft classes, under the names by which vLLM knows the same networks.

Each is SGLang's own ``LlamaForCausalLMEagle3`` with what that class leaves out, switched by the config
keys that vLLM reads. SGLang's forward passes run unchanged: norms are moved, projections replaced and
windows set on its modules after it has built them.
"""

from collections.abc import Iterable
from typing import Any

import torch
from sglang.srt.layers.layernorm import RMSNorm
from sglang.srt.layers.linear import QKVParallelLinear, RowParallelLinear
from sglang.srt.models.llama_eagle3 import LlamaDecoderLayer, LlamaForCausalLMEagle3
from sglang.srt.models.utils import apply_qk_norm
from sglang.srt.utils import add_prefix
from torch import nn

from eagle3_interop.sglang_plugin.tensors import (
    DraftCheckpointError,
    StrictTensors,
    feature_blocks,
    required,
    target_width,
)

_UNBOUNDED = 2**24
"""A window that no context reaches, written where vLLM would else take the target's."""


class NormedRotation(nn.Module):
    """Norms queries and keys head by head, then rotates them: what goes before qwen3's rotation."""

    def __init__(self, rotary_emb: nn.Module, head_dim: int, eps: float) -> None:
        """Stand in the place of a layer's rotary embedding."""
        super().__init__()
        self.rotary_emb = rotary_emb
        self.head_dim = head_dim
        self.q_norm = RMSNorm(head_dim, eps=eps)
        self.k_norm = RMSNorm(head_dim, eps=eps)

    def forward(self, positions: Any, q: Any, k: Any) -> Any:  # noqa: ANN401
        """Norm and rotate."""
        q, k = apply_qk_norm(
            q=q, k=k, q_norm=self.q_norm, k_norm=self.k_norm, head_dim=self.head_dim
        )
        return self.rotary_emb(positions, q, k)


class DraftLayer(LlamaDecoderLayer):  # type: ignore[misc]
    """SGLang's draft layer with biases, q/k norms, a window, or the normed residual where asked."""

    def __init__(
        self,
        config: Any,  # noqa: ANN401
        layer_id: int,
        prefix: str,
        *,
        qk_norm: bool,
        output_bias: bool,
    ) -> None:
        """Build SGLang's layer and change what the config asks for."""
        super().__init__(config, layer_id, prefix=prefix)
        if getattr(config, "attention_bias", False):
            self._add_biases(add_prefix("self_attn", prefix), output_bias=output_bias)
        attention = self.self_attn
        if qk_norm:
            attention.rotary_emb = NormedRotation(
                attention.rotary_emb, attention.head_dim, config.rms_norm_eps
            )
        window = sliding_window(config, layer_id)
        if window is not None:
            attention.attn.sliding_window_size = window - 1  # SGLang's does not count the query
        if not self.is_input_layer:
            del self.input_layernorm  # SGLang builds it for every layer and uses it in the first
        elif getattr(config, "norm_before_residual", False):
            self.add_module("feature_norm", self.hidden_norm)
            self.add_module("hidden_norm", nn.Identity())

    def _add_biases(self, prefix: str, *, output_bias: bool) -> None:
        attention = self.self_attn
        attention.qkv_proj = QKVParallelLinear(
            self.hidden_size * (2 if self.is_input_layer else 1),
            attention.head_dim,
            attention.total_num_heads,
            attention.total_num_kv_heads,
            bias=True,
            prefix=add_prefix("qkv_proj", prefix),
        )
        if not output_bias:  # SGLang has put one there already
            attention.o_proj = RowParallelLinear(
                attention.total_num_heads * attention.head_dim,
                self.hidden_size,
                bias=False,
                prefix=add_prefix("o_proj", prefix),
            )

    def forward(
        self,
        positions: Any,  # noqa: ANN401
        embeds: Any,  # noqa: ANN401
        hidden_states: Any,  # noqa: ANN401
        forward_batch: Any,  # noqa: ANN401
        residual: Any,  # noqa: ANN401
    ) -> Any:  # noqa: ANN401
        """Run SGLang's layer; it takes the hidden state that it is given for the residual."""
        if hasattr(self, "feature_norm"):
            hidden_states = self.feature_norm(hidden_states)
        return super().forward(positions, embeds, hidden_states, forward_batch, residual)


class Eagle3LlamaForCausalLM(LlamaForCausalLMEagle3):  # type: ignore[misc]
    """A draft of llama layers; ``attention_bias`` stands for biases on q, k, v and o."""

    qk_norm = False
    output_bias = True
    _draft_window_size: int | None

    def __init__(self, config: Any, quant_config: Any = None, prefix: str = "") -> None:  # noqa: ANN401
        """Build SGLang's draft, then its layers anew."""
        refuse_unsupported(config, quant_config)
        if getattr(config, "draft_vocab_size", None) is None:
            config.draft_vocab_size = config.vocab_size
        super().__init__(config, None, prefix)
        model_prefix = add_prefix("model", prefix)
        self.model.layers = nn.ModuleList(
            DraftLayer(
                config, layer, model_prefix, qk_norm=self.qk_norm, output_bias=self.output_bias
            )
            for layer in range(config.num_hidden_layers)
        )
        self._settle_window()
        self._own_embeddings = False

    def _settle_window(self) -> None:
        """Tell the attention backend the window of the layers that have one, or take the server's."""
        layers = range(self.config.num_hidden_layers)
        found = {sliding_window(self.config, layer) for layer in layers}
        windows = [window for window in found if window is not None]
        if windows and self._draft_window_size is not None:
            raise DraftCheckpointError(
                "--speculative-draft-window-size was given, and this draft has the window that it was "
                "trained with"
            )
        if windows:
            self._draft_window_size = windows.pop() - 1
        elif self._draft_window_size is not None:
            for layer in self.model.layers:
                layer.self_attn.attn.sliding_window_size = self._draft_window_size

    def load_weights(self, weights: Iterable[tuple[str, torch.Tensor]]) -> None:
        """Load every tensor of the network and refuse any other.

        Raises:
            DraftCheckpointError: a tensor is unknown, of another shape, doubled, or missing.
        """
        config = self.config
        shapes = required(config, qk_norm=self.qk_norm, output_bias=self.output_bias)
        optional = set()
        if target_width(config) == config.hidden_size:
            optional.add("embed_tokens.weight")
        if config.draft_vocab_size == config.vocab_size:
            optional.add("lm_head.weight")
        strict = StrictTensors(shapes, optional)
        renamed = ((self._module_name(name), tensor) for name, tensor in strict.checked(weights))
        super().load_weights(renamed)
        self._own_embeddings = "embed_tokens.weight" in strict.seen
        self.load_lm_head_from_target = "lm_head.weight" not in strict.seen

    def _module_name(self, name: str) -> str:
        """Where `DraftLayer` has moved a norm."""
        if name == "layers.0.hidden_norm.weight" and hasattr(self.model.layers[0], "feature_norm"):
            return "layers.0.feature_norm.weight"
        for norm in ("q_norm", "k_norm"):
            name = name.replace(f".self_attn.{norm}.", f".self_attn.rotary_emb.{norm}.")
        return name

    def set_embed(self, embed: torch.Tensor) -> None:
        """Share the target's embedding table, unless the draft has another one of its own."""
        own = self.model.embed_tokens.weight
        if self._own_embeddings and not (own.shape == embed.shape and torch.equal(own, embed)):
            return
        super().set_embed(embed)

    def set_embed_and_head(self, embed: torch.Tensor, head: torch.Tensor) -> None:
        """Share the target's head, and its embedding table as `set_embed` does."""
        self.set_embed(embed)
        super().set_embed_and_head(self.model.embed_tokens.weight, head)


class Eagle3Qwen3ForCausalLM(Eagle3LlamaForCausalLM):
    """A draft of qwen3 layers: q/k norms, and ``attention_bias`` stands for biases on q, k and v."""

    qk_norm = True
    output_bias = False


def sliding_window(config: Any, layer: int) -> int | None:  # noqa: ANN401
    """The window of a layer in positions, the query's own included, as vLLM reads it."""
    kinds = getattr(config, "layer_types", None) or ()
    if layer >= len(kinds) or kinds[layer] != "sliding_attention":
        return None
    window: int | None = config.sliding_window
    return None if window is not None and window >= _UNBOUNDED else window


def refuse_unsupported(config: Any, quant_config: Any) -> None:  # noqa: ANN401
    """Refuse what these classes would leave out or compute otherwise than vLLM.

    Raises:
        DraftCheckpointError: naming the key.
    """
    if quant_config is not None:
        raise DraftCheckpointError(
            "the draft would be quantised; give --speculative-draft-model-quantization unquant"
        )
    for key, neutral in (
        ("bias", False),
        ("mlp_bias", False),
        ("tie_word_embeddings", False),
        ("logit_scale", 1.0),
    ):
        if getattr(config, key, None) not in (None, neutral):
            raise DraftCheckpointError(f"{key} {getattr(config, key)!r} is not supported")
    if feature_blocks(config) * target_width(config) == config.hidden_size:
        raise DraftCheckpointError(
            "fc is as wide as the draft, and SGLang would skip it without a word"
        )
    windows = (sliding_window(config, layer) for layer in range(config.num_hidden_layers))
    if any(window is not None and window < 2 for window in windows):
        raise DraftCheckpointError("a sliding window of less than two positions is none to SGLang")


EntryClass = [Eagle3LlamaForCausalLM, Eagle3Qwen3ForCausalLM]
