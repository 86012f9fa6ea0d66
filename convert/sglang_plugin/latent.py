"""The draft class with latent attention (MLA), under vLLM's other name for the same network.

SGLang's own ``Eagle3DeepseekV2ForCausalLM`` with what it leaves out: the normed residual, layers after the first, and
an embedding table of the draft's own. Its forward passes run unchanged, as in `drafts`.
"""

import re
from collections.abc import Iterable
from types import SimpleNamespace
from typing import Any

import torch
from sglang.srt.configs.model_config import ModelConfig
from sglang.srt.layers.layer_boundary import AttentionInputs, get_attn_tp_context
from sglang.srt.layers.linear import ReplicatedLinear
from sglang.srt.models.kimi_k25_eagle3 import Eagle3DeepseekV2ForCausalLM, Eagle3MLADecoderLayer
from sglang.srt.utils import BumpAllocator, add_prefix
from torch import nn

from eagle3_interop.sglang_plugin.tensors import (
    DraftCheckpointError,
    StrictTensors,
    latent_name,
    latent_required,
    target_width,
)

_STOCK, _NAME = "Eagle3DeepseekV2ForCausalLM", "Eagle3DeepseekV3ForCausalLM"


class LaterLayer(Eagle3MLADecoderLayer):  # type: ignore[misc]
    """A plain layer: it takes what the layer before it gives on, and adds up the residual."""

    def __init__(self, config: Any, layer_id: int, prefix: str) -> None:  # noqa: ANN401
        """Build SGLang's layer of twice the input, then the projection that a plain one has."""
        super().__init__(config, layer_id=layer_id, prefix=prefix)
        attention = self.self_attn
        attention.fused_qkv_a_proj_with_mqa = ReplicatedLinear(
            config.hidden_size,
            config.q_lora_rank + config.kv_lora_rank + config.qk_rope_head_dim,
            bias=False,
            prefix=add_prefix("self_attn.fused_qkv_a_proj_with_mqa", prefix),
        )
        del self.hidden_norm

    def forward(
        self,
        positions: Any,  # noqa: ANN401
        hidden_states: Any,  # noqa: ANN401
        residual: Any,  # noqa: ANN401
        forward_batch: Any,  # noqa: ANN401
    ) -> Any:  # noqa: ANN401
        """Attend and compute the MLP, each behind its norm."""
        inputs, residual = self.input_layernorm(hidden_states, residual)
        attention = self.self_attn
        given = AttentionInputs(inputs, forward_batch, attention.prepare_qkv_latent)
        get_attn_tp_context().set_attn_inputs(given)
        zeros = BumpAllocator(buffer_size=2, dtype=torch.float32, device=inputs.device)
        attended = attention(
            positions=positions,
            hidden_states=inputs,
            forward_batch=forward_batch,
            zero_allocator=zeros,
        )
        attended = attended[0] if isinstance(attended, tuple) else attended
        hidden_states, residual = self.post_attention_layernorm(attended, residual)
        return self.mlp(hidden_states), residual


class FirstLayer(Eagle3MLADecoderLayer):  # type: ignore[misc]
    """SGLang's one layer, with the normed residual where asked, and the layers that come after it."""

    def __init__(self, config: Any, count: int, prefix: str) -> None:  # noqa: ANN401
        """Build SGLang's layer and change what the config asks for."""
        super().__init__(config, layer_id=0, prefix=prefix)
        self.later = nn.ModuleList(LaterLayer(config, layer, prefix) for layer in range(1, count))
        if getattr(config, "norm_before_residual", False):
            self.add_module("feature_norm", self.hidden_norm)
            self.add_module("hidden_norm", nn.Identity())

    def forward(
        self,
        positions: Any,  # noqa: ANN401
        embeds: Any,  # noqa: ANN401
        hidden_states: Any,  # noqa: ANN401
        forward_batch: Any,  # noqa: ANN401
        zero_allocator: Any,  # noqa: ANN401
    ) -> Any:  # noqa: ANN401
        """Run SGLang's layer, which takes the hidden state that it is given for the residual; then the others."""
        if hasattr(self, "feature_norm"):
            hidden_states = self.feature_norm(hidden_states)
        hidden_states, residual = super().forward(
            positions, embeds, hidden_states, forward_batch, zero_allocator
        )
        for layer in self.later:
            hidden_states, residual = layer(positions, hidden_states, residual, forward_batch)
        return hidden_states, residual


class Eagle3DeepseekV3ForCausalLM(Eagle3DeepseekV2ForCausalLM):  # type: ignore[misc]
    """A draft of layers with latent attention."""

    def __init__(self, config: Any, quant_config: Any = None, prefix: str = "") -> None:  # noqa: ANN401
        """Build SGLang's draft of one layer, then its layers anew."""
        refuse_unsupported(config, quant_config)
        if getattr(config, "draft_vocab_size", None) is None:
            config.draft_vocab_size = config.vocab_size
        count = config.num_hidden_layers
        config.num_hidden_layers = 1
        try:
            super().__init__(config, None, prefix)
        finally:
            config.num_hidden_layers = count
        self.model.midlayer = FirstLayer(config, count, add_prefix("model", prefix))
        self._own_embeddings = False

    def load_weights(self, weights: Iterable[tuple[str, torch.Tensor]]) -> None:
        """Load every tensor of the network and refuse any other.

        Raises:
            DraftCheckpointError: a tensor is unknown, of another shape, doubled, or missing.
        """
        config = self.config
        optional = set()
        if target_width(config) == config.hidden_size:
            optional.add("embed_tokens.weight")
        if config.draft_vocab_size == config.vocab_size:
            optional.add("lm_head.weight")
        shapes = latent_required(config, self.model.num_aux_hidden_states)
        strict = StrictTensors(shapes, optional, latent_name)
        renamed = ((self._module_name(name), tensor) for name, tensor in strict.checked(weights))
        super().load_weights(renamed)
        self._own_embeddings = "embed_tokens.weight" in strict.seen
        self.load_lm_head_from_target = "lm_head.weight" not in strict.seen

    def _module_name(self, name: str) -> str:
        """Where `FirstLayer` keeps a tensor."""
        if name == "layers.0.hidden_norm.weight" and hasattr(self.model.midlayer, "feature_norm"):
            return "midlayer.feature_norm.weight"
        if match := re.fullmatch(r"layers\.([1-9]\d*)\.(.*)", name):
            return f"midlayer.later.{int(match[1]) - 1}.{match[2]}"
        return name

    def post_load_weights(self) -> None:
        """Split the latents' expansion of every layer, as SGLang does that of its one."""
        for layer in (self.model.midlayer, *self.model.midlayer.later):
            one = SimpleNamespace(model=SimpleNamespace(midlayer=layer))
            Eagle3DeepseekV2ForCausalLM.post_load_weights(one)

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


def refuse_unsupported(config: Any, quant_config: Any) -> None:  # noqa: ANN401
    """Refuse what this class would leave out or compute otherwise than vLLM.

    Raises:
        DraftCheckpointError: naming the key.
    """
    if quant_config is not None:
        raise DraftCheckpointError(
            "the draft would be quantised; give --speculative-draft-model-quantization unquant"
        )
    for key, neutral in (
        ("bias", False),
        ("norm_before_fc", False),
        ("tie_word_embeddings", False),
        ("logit_scale", 1.0),
    ):
        if getattr(config, key, None) not in (None, neutral):
            raise DraftCheckpointError(f"{key} {getattr(config, key)!r} is not supported")
    if not getattr(config, "rope_interleave", True):
        raise DraftCheckpointError("rope_interleave false: vLLM rotates neighbours alone")


def _know_the_name() -> None:
    """Have SGLang take the name for latent attention: it sizes the draft's cache by a list of names.

    And by the layers of multi-token prediction, of which transformers' config class says one.
    """
    derive = ModelConfig._derive_model_shapes

    def shapes(self: Any) -> None:  # noqa: ANN401
        names = self.hf_config.architectures
        if _NAME not in (names or ()):
            derive(self)
            return
        self.hf_config.architectures = [*names, _STOCK]
        try:
            derive(self)
        finally:
            self.hf_config.architectures = names
        self.num_nextn_predict_layers = self.hf_text_config.num_hidden_layers

    if not getattr(derive, "knows_the_name", False):
        shapes.knows_the_name = True  # type: ignore[attr-defined]
        ModelConfig._derive_model_shapes = shapes


_know_the_name()

EntryClass = [Eagle3DeepseekV3ForCausalLM]
