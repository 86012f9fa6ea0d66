"""Rotary position embedding of a draft, by transformers' own frequency functions.

Two kinds depend on a length. Here, as in transformers, it is the text's own. vLLM 0.32 chooses once:
``longrope`` takes the long factors for every text as soon as the server allows texts beyond the original
length, and ``dynamic`` keeps the plain base, since no text exceeds the declared maximum there.
"""

import torch
from torch import Tensor
from transformers import LlamaConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from eagle3_interop.schemas.draft import Draft, Mla


class Rotary:
    """Turns positions into cosines and sines."""

    def __init__(self, draft: Draft) -> None:
        """Keep the description."""
        self.draft = draft

    def __call__(self, positions: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """Cosines and sines [B, Q, rotated dims], in this dtype as in transformers.

        Args:
            positions: [B, Q].
            dtype: of the result; the angles are computed in float32.
        """
        length = int(positions.max()) + 1 if positions.numel() else 1
        frequencies, factor = self._frequencies(length, positions.device)
        angles = positions[..., None].float() * frequencies
        angles = torch.cat([angles, angles], dim=-1)
        return (angles.cos() * factor).to(dtype), (angles.sin() * factor).to(dtype)

    def _frequencies(self, length: int, device: torch.device) -> tuple[Tensor, float]:
        """Rotary frequencies for texts of this length (only dynamic and longrope depend on it)."""
        rope = self.draft.rope
        if rope.scaling is None:
            rotated = int(self._head_dim * rope.partial)
            exponents = torch.arange(0, rotated, 2, device=device).float() / rotated
            return 1.0 / rope.theta**exponents, 1.0
        known: tuple[Tensor, float] = ROPE_INIT_FUNCTIONS[rope.scaling](
            self._config(), device, seq_len=length
        )
        return known

    @property
    def _head_dim(self) -> int:
        """What the rope is counted over: a head, or of latent attention its part that is rotated."""
        attention = self.draft.layers.attention
        return attention.rope_dim if isinstance(attention, Mla) else attention.head_dim

    def _config(self) -> LlamaConfig:
        draft, rope = self.draft, self.draft.rope
        trained = rope.parameters.get("original_max_position_embeddings", 2048)
        if (
            rope.scaling == "yarn"
        ):  # reads no maximum, and would be told of one that its factor does not give
            declared = int(trained * rope.parameters["factor"])
        else:
            declared = draft.max_position or trained
        parameters = {
            **rope.parameters,
            "rope_type": rope.scaling,
            "rope_theta": rope.theta,
            "partial_rotary_factor": rope.partial,
        }
        return LlamaConfig(
            hidden_size=draft.hidden_size,
            num_attention_heads=draft.layers.attention.heads,
            head_dim=self._head_dim,
            max_position_embeddings=declared,
            rope_parameters=parameters,
        )


def rotate(x: Tensor, rotation: tuple[Tensor, Tensor]) -> Tensor:
    """Turn the leading dims of each head [B, Q, heads, d] by its position; keep the rest."""
    cos, sin = rotation[0].unsqueeze(2), rotation[1].unsqueeze(2)
    turned, rest = x[..., : cos.shape[-1]], x[..., cos.shape[-1] :]
    first, second = turned.chunk(2, dim=-1)
    turned = turned * cos + torch.cat([-second, first], dim=-1) * sin
    return turned if rest.shape[-1] == 0 else torch.cat([turned, rest], dim=-1)
