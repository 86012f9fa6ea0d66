"""What a draft's measurement needs of a target, whether it runs or was recorded."""

from collections.abc import Sequence
from typing import Any, Protocol

import torch
from torch import Tensor

from eagle3_interop.validators.network.reference import Features
from eagle3_interop.validators.network.weights import Tables
from eagle3_interop.validators.target.texts import Text


class Source(Protocol):
    """A target's hidden states, tables and choices."""

    @property
    def config(self) -> Any:  # noqa: ANN401 - transformers', or keys as attributes
        """Its text config."""

    @property
    def device(self) -> torch.device:
        """Where its features are."""

    @property
    def depth(self) -> int:
        """Decoder layers, L."""

    @property
    def hidden_size(self) -> int:
        """Width of the residual stream."""

    @property
    def vocabulary_size(self) -> int:
        """Rows of the embedding table."""

    def tables(self) -> Tables:
        """The embedding and head tables as stored."""

    def features_of(
        self, texts: Sequence[Text], tokens: Tensor, taps: Sequence[int], *, final: bool = True
    ) -> Features:
        """The residual stream at the taps, at the first positions of some texts.

        Args:
            texts: that the rows are of.
            tokens: [B, T], their first tokens, padded on the right.
            taps: as `Draft.taps` counts them.
            final: also the output after the final norm.
        """

    def logits(self, final: Tensor) -> Tensor:
        """[..., V] float32 from the hidden state after the final norm; pass few positions at once."""
