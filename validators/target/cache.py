"""Room in the target's cache: transformers copies all keys and values for every token that is added."""

from typing import Any

from torch import Tensor
from transformers.cache_utils import DynamicLayer

ROOM = 64
"""Tokens that fit before the next copy."""


class Roomy(DynamicLayer):  # type: ignore[no-untyped-call]
    """Keys and values of a layer at the front of tensors that have room for more."""

    keys: Tensor
    values: Tensor

    def __init__(self, keys: Tensor, values: Tensor) -> None:
        """Go on from what a layer of transformers' own holds, [B, heads, T, d] of each."""
        super().__init__()  # type: ignore[no-untyped-call]
        self.keys, self.values = keys, values
        self.device, self.dtype = keys.device, keys.dtype
        self.is_initialized = True
        self._room: list[Tensor] = []

    def update(
        self,
        key_states: Tensor,
        value_states: Tensor,
        *_args: object,
        **_kwargs: object,
    ) -> tuple[Tensor, Tensor]:
        """Add keys and values; all of both as they are then."""
        held = self.keys, self.values
        used = held[0].shape[-2]
        end = used + key_states.shape[-2]
        if not self._room or self._room[0].shape[-2] < end or len(self._room[0]) != len(key_states):
            self._room = [_with_room(x, end + ROOM) for x in held]
        for room, states in zip(self._room, (key_states, value_states), strict=True):
            room[:, :, used:end] = states
        self.keys, self.values = (room[:, :, :end] for room in self._room)
        return self.keys, self.values


def _with_room(x: Tensor, length: int) -> Tensor:
    found = x.new_empty(*x.shape[:2], length, x.shape[-1])
    found[:, :, : x.shape[-2]] = x
    return found


def made_roomy(cache: Any) -> Any:  # noqa: ANN401 - transformers has many kinds
    """The cache, its growing layers with room; layers of other kinds stay as they are."""
    layers = getattr(cache, "layers", [])
    for index, layer in enumerate(layers):
        if type(layer) is DynamicLayer and layer.keys is not None and layer.values is not None:
            layers[index] = Roomy(layer.keys, layer.values)
    return cache


def selectable(cache: Any) -> bool:  # noqa: ANN401
    """Whether texts can leave the batch."""
    layers = getattr(cache, "layers", [])
    return bool(layers) and all(hasattr(layer, "batch_select_indices") for layer in layers)
