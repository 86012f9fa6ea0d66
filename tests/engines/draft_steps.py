"""Run a real draft class from every start position of a sequence at once, several draft steps deep.

At depth 0 position ``p`` takes ``token_ids[p]`` beside the target's features at ``p``. At depth
``j`` it takes ``token_ids[p + j]`` beside the hidden state that the class itself handed back at
depth ``j - 1``, stands at position ``p + j``, and sees the depth-0 keys of ``0 .. p`` and its own
keys of the depths ``1 .. j``: what an engine's draft steps see. The class under test does
everything but the attention sums, which `DraftAttention` does in plain torch.

Rows with ``p + j`` beyond the sequence are fed token 0 and mean nothing.
"""

import contextlib
import functools
import traceback
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any
from unittest import mock

import torch
from safetensors.torch import load_file, save_file


@dataclass(frozen=True)
class StepOutput:
    """What a draft class returns for each start position at one depth.

    Attributes:
        logits: Over the draft's own vocabulary.
        hidden_before_norm: The residual stream before the final norm.
        hidden_after_norm: The same after it.
        feedback: The one that the class hands to the next depth.
    """

    logits: torch.Tensor
    hidden_before_norm: torch.Tensor
    hidden_after_norm: torch.Tensor
    feedback: torch.Tensor


Step = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], StepOutput]


class DraftAttention:
    """Attention for `run_steps`; keeps each layer's keys and values of every depth so far."""

    def __init__(self) -> None:
        self._depths: dict[Any, list[tuple[torch.Tensor, torch.Tensor]]] = {}

    def attend(
        self,
        layer: Any,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        scale: float,
        window: int,
    ) -> torch.Tensor:
        """Return the attention of one layer at the next depth.

        Args:
            layer: Anything that names the layer.
            query: ``[positions, heads, head_dim]``.
            key: ``[positions, kv_heads, head_dim]``.
            value: ``[positions, kv_heads, width]``.
            scale: Factor of the scores.
            window: How many positions a query sees, its own included; 0 for all.

        Returns:
            The attention, ``[positions, heads, width]``.
        """
        group = query.shape[1] // key.shape[1]
        depths = self._depths.setdefault(layer, [])
        depths.append((key.repeat_interleave(group, 1), value.repeat_interleave(group, 1)))
        now = len(depths) - 1
        (first_keys, first_values), later = depths[0], depths[1:]
        scores = [torch.einsum("qhd,khd->qhk", query, first_keys)]
        scores += [torch.einsum("qhd,qhd->qh", query, keys).unsqueeze(-1) for keys, _ in later]
        scores_all = torch.cat(scores, dim=-1) * scale
        start = torch.arange(query.shape[0])
        positions = torch.cat(
            [
                start.expand(len(start), -1),
                *((start + depth).unsqueeze(-1) for depth in range(1, now + 1)),
            ],
            dim=1,
        )
        visible = positions <= (start + now)[:, None]
        visible[:, : len(start)] &= start[None, :] <= start[:, None]
        if window:
            visible &= (start + now)[:, None] - positions < window
        weights = scores_all.masked_fill(~visible[:, None, :], float("-inf")).softmax(-1)
        result = torch.einsum("qhk,khd->qhd", weights[..., : len(start)], first_values)
        for depth, (_, values) in enumerate(later):
            result = result + weights[..., len(start) + depth, None] * values
        return result


def run_steps(
    step: Step, token_ids: torch.Tensor, features: torch.Tensor, steps: int
) -> dict[str, torch.Tensor]:
    """Call a draft class once a depth.

    Args:
        step: Maps token ids, positions and hidden states (features at depth 0) to a `StepOutput`.
        token_ids: ``[positions]``.
        features: ``[positions, taps * hidden]``.
        steps: How many depths.

    Returns:
        The fields of `StepOutput`, each stacked to ``[steps, positions, ...]``.
    """
    start = torch.arange(len(token_ids))
    hidden, outputs = features, []
    for depth in range(steps):
        tokens = torch.cat([token_ids[depth:], token_ids.new_zeros(depth)])
        outputs.append(step(tokens, start + depth, hidden))
        hidden = outputs[-1].feedback
    names = StepOutput.__dataclass_fields__
    return {name: torch.stack([getattr(output, name) for output in outputs]) for name in names}


@contextlib.contextmanager
def given_streams(layers: Iterable[torch.nn.Module], streams: torch.Tensor) -> Iterator[None]:
    """Let a target's llama layers add to the residual stream what makes it the given one.

    Args:
        layers: of any engine: their attention and MLP give what is added, all around them is their own.
        streams: ``[layers + 1, positions, hidden]``: before each layer, and after the last.
    """
    with contextlib.ExitStack() as stack:
        for layer, before, after in zip(layers, streams[:-1], streams[1:], strict=True):
            for part, output in ((layer.self_attn, before - before), (layer.mlp, after - before)):
                gives = functools.partial(_copy, output)
                stack.enter_context(mock.patch.object(part, "forward", gives))
        yield


def _copy(output: torch.Tensor, *_: Any, **__: Any) -> torch.Tensor:
    return output.clone()


def answer_cases(
    request: dict[str, Any],
    answer: Callable[[dict[str, Any]], dict[str, Any]],
) -> list[dict[str, Any]]:
    """Answer every case of a request; one that fails says why and stops nothing.

    Args:
        request: Its ``cases`` are a list.
        answer: Maps a case to its JSON answer.

    Returns:
        For each case its answer, or ``{"draft", "error", "traceback"}``.
    """
    answers = []
    for case in request["cases"]:
        try:
            answers.append({"draft": case["draft"], **answer(case)})
        except Exception as error:  # whatever a class says to a checkpoint is a result
            answers.append(
                {
                    "draft": case["draft"],
                    "error": f"{type(error).__name__}: {error}",
                    "traceback": traceback.format_exc(),
                }
            )
    return answers


def load_inputs(case: dict[str, Any]) -> tuple[torch.Tensor, torch.Tensor]:
    """Return a case's token ids and features."""
    tensors = load_file(case["inputs"])
    return tensors["token_ids"].long(), tensors["features"]


def save_outputs(case: dict[str, Any], tensors: dict[str, torch.Tensor]) -> None:
    """Write a case's tensors."""
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, case["output"])
