"""A network with what some trainer computes and no engine does: switches that no description has."""

from collections.abc import Mapping

from torch import Tensor

from eagle3_interop.schemas.draft import Draft
from eagle3_interop.validators.network.attention import Cache, attend
from eagle3_interop.validators.network.reference import Network
from eagle3_interop.validators.network.weights import Weights


class Switched(Network):
    """The network of a description, but for what is switched."""

    def __init__(self, draft: Draft, weights: Weights, switches: Mapping[str, str]) -> None:
        """Keep the switches.

        Args:
            draft: all else.
            weights: of it.
            switches: ``head_norm`` may be ``off``, ``hidden_norms`` may be ``two``, ``window_of`` may be ``start``.
        """
        super().__init__(draft, weights)
        self._head_norm = switches.get("head_norm", "on") == "on"
        self._doubled = switches.get("hidden_norms", "one") == "two"
        self._moves_windows = switches.get("window_of", "step") == "step"

    def _attend(self, index: int, q: Tensor, cache: Cache) -> Tensor:
        window = self.draft.layers.windows[index]
        return attend(q, cache.layers[index], cache.starts, window, moves=self._moves_windows)

    def _norm(self, name: str, x: Tensor) -> Tensor:
        if name == "norm" and not self._head_norm:
            return x
        if name == "layers.0.hidden_norm" and self._doubled:
            x = super()._norm("layers.0.input_layernorm", x)
        return super()._norm(name, x)
