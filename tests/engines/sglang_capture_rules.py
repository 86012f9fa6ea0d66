"""What each of SGLang's target classes makes of a draft's ids, and what its loop captures (run by SGLang's Python).

Request: ``{"cases": [{"ids": [..] or null, "layers"}], "taps": [..], "depth"}``. No model is built.
``cases``: the method that turns ids into layers to capture, called on an object that holds a depth and takes down
what is set on it; a class that hands the ids on to its language model answers ``handed on``. ``loops``: each inner
model's own forward over layers that only hand on; layer k's input is k in every element, and the answer lists what
was captured, or an error. ``gemma3_layer``: what its layer hands on, and what the next layer adds to it.
"""

import importlib
import inspect
import pkgutil
import types
import warnings
from collections.abc import Iterator
from types import ModuleType, SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import rig
import sglang
import sglang.srt.models
import torch
from sglang.srt.runtime_context import get_parallel

METHOD = "set_eagle3_layers_to_capture"
DRAFTS = ("NextN", "MTP", "Eagle", "Eagle3", "AssistantForCausalLM")
"""Endings of draft classes, which inherit the method and are no targets."""


class Recorder:
    """Stands for the inner model of a target."""

    def __init__(self, depth: int) -> None:
        self.layers = [SimpleNamespace() for _ in range(depth)]
        self.layers_to_capture: Any = None
        self.handed: Any = None

    def set_eagle3_layers_to_capture(self, layer_ids: Any = None) -> None:
        self.handed = ["handed on", layer_ids]


def modules() -> Iterator[ModuleType]:
    """Every module of SGLang's models that loads here."""
    for module in pkgutil.iter_modules(sglang.srt.models.__path__, "sglang.srt.models."):
        try:
            yield importlib.import_module(module.name)
        except Exception as error:
            warnings.warn(f"{module.name}: {error}", stacklevel=1)


def target_classes() -> dict[str, Any]:
    """Every registered class that has the method, its own or inherited, by its name."""
    found = {}
    for module in modules():
        entry = getattr(module, "EntryClass", [])
        for kind in entry if isinstance(entry, list) else [entry]:
            if hasattr(kind, METHOD) and not kind.__name__.endswith(DRAFTS):
                found[kind.__name__] = kind
    return found


def captured(kind: Any, ids: list[int] | None, depth: int) -> Any:
    """Call one class's method."""
    inner = Recorder(depth)
    sizes = SimpleNamespace(num_hidden_layers=depth)
    sizes.text_config = sizes
    outer = SimpleNamespace(
        pp_group=SimpleNamespace(is_last_rank=True, world_size=1),
        config=sizes,
        model=inner,
        language_model=inner,
    )
    inner.config = sizes
    inner.model = inner
    try:
        getattr(kind, METHOD)(outer, ids)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return inner.handed or inner.layers_to_capture


SHAPE = (2, 4)
"""Of the stand-in stream; a layer that answers with a pair is one whose answer's two rows are taken apart."""
OWN = ("AuxHiddenStateList", "AuxHiddenStatePacker", "islice", "nullcontext", "torch")
"""What a forward keeps of its module; the rest is stood in for."""


class Layer:
    """Hands on; its input is its number."""

    def __init__(self, number: int, taps: list[int], flagged: bool) -> None:
        self.number = number
        self._is_layer_to_capture = flagged and number in taps

    def __call__(self, *_: Any, **named: Any) -> torch.Tensor:
        stream = torch.full(SHAPE, float(self.number))
        if named.get("capture_output") is not None:
            named["capture_output"](stream)
        if named.get("captured_last_layer_outputs") is not None:
            named["captured_last_layer_outputs"].append(stream)
        return stream + 1


class ResidualBatch:
    """Stands for ``residual_batch``, which keeps the residual."""

    def start(self, *_: Any) -> None:
        pass

    def complete_output(self, stream: Any, *_: Any) -> Any:
        return stream

    def add_to_output(self, stream: Any, *_: Any) -> Any:
        return stream

    def snapshot(self, stream: Any, *_: Any) -> Any:
        return stream.expand(SHAPE)

    def final_norm(self, stream: Any, *_: Any, capture: Any = None, **__: Any) -> Any:
        if capture is not None:
            capture(stream.expand(SHAPE))
        return stream


def loops(taps: list[int], depth: int) -> dict[str, Any]:
    """What the forward of every class with layers to capture captures."""
    found = {}
    for module in modules():
        for kind in vars(module).values():
            if not isinstance(kind, type) or kind.__module__ != module.__name__:
                continue
            forward = inspect.unwrap(vars(kind).get("forward", len))
            names = getattr(getattr(forward, "__code__", None), "co_names", ())
            constants = getattr(getattr(forward, "__code__", None), "co_consts", ())
            flagged = "_is_layer_to_capture" in (*names, *constants)
            if flagged or "layers_to_capture" in names:
                name = f"{module.__name__.rpartition('.')[2]}.{kind.__name__}"
                try:
                    # MiniMax M3's loop holds the list and asks its layers' flags all the same.
                    by_flag = flagged and "layers_to_capture" not in names
                    found[name] = _loop(
                        forward, taps, depth, flagged=by_flag or "minimax_m3" in name
                    )
                except Exception as error:
                    found[name] = f"{type(error).__name__}: {error}"
    return found


def _loop(forward: Any, taps: list[int], depth: int, *, flagged: bool) -> list[float]:
    space = dict(forward.__globals__)
    for name in forward.__code__.co_names:
        if name in space and name not in OWN and not isinstance(space[name], bool | int | str):
            space[name] = MagicMock(name=name)
    space |= {"residual_batch": ResidualBatch(), "check_cuda_graph_backend": lambda *_: False}
    space |= dict.fromkeys(("_is_cpu", "_is_cuda", "_is_npu"), False)
    run = types.FunctionType(
        forward.__code__, space, forward.__name__, forward.__defaults__, forward.__closure__
    )
    model = MagicMock()
    model.layers = [Layer(number, taps, flagged) for number in range(depth)]
    model.layers_to_capture = taps
    model.start_layer, model.end_layer, model.first_k_dense_replace = 0, depth, depth
    model.config.num_hidden_layers, model.config.mhc = depth, False
    model.gemm_output_zero_allocator_size = 0
    model.embed_tokens = lambda *_, **__: torch.zeros(SHAPE)
    model.norm = lambda stream, *_: (stream, stream)
    model._prepare_aux_hidden_state = lambda stream: stream
    for switch in ("dflash_capture", "enable_a2a_moe", "use_dsa", "use_hf_deepstack_order"):
        setattr(model, switch, False)
    batch = MagicMock(can_run_tbo=False, aux_hidden_states_buffer=None)
    batch.forward_mode.is_idle.return_value = False
    ids = torch.zeros(SHAPE[0], dtype=torch.long)
    given = {"input_ids": ids, "positions": ids, "forward_batch": batch}
    given |= dict.fromkeys(("input_embeds", "inputs_embeds"))
    parameters = inspect.signature(run).parameters
    answer = run(model, **{name: value for name, value in given.items() if name in parameters})
    states = answer[1] if isinstance(answer, tuple) else []
    if isinstance(states, torch.Tensor):
        states = states.split(SHAPE[1], dim=-1)
    return [float(state.flatten()[0]) for state in states]


def gemma3_layer() -> dict[str, bool]:
    """Whether Gemma 3's layer hands the stream on, or what is to be added to the residual beside it."""
    from sglang.srt.models.gemma3_causal import Gemma3DecoderLayer, Gemma3RMSNorm

    stream = torch.arange(12.0).reshape(3, 4)
    norm = Gemma3RMSNorm(4).forward_native
    names = ("input", "post_attention", "pre_feedforward", "post_feedforward")
    layer = SimpleNamespace(**{f"{name}_layernorm": norm for name in names})
    layer.self_attn = lambda hidden_states, **_: hidden_states / 2
    layer.self_attn.is_sliding = False
    layer.mlp = lambda states: 2 * states
    attended = stream + norm(norm(stream) / 2)
    added = norm(2 * norm(attended))
    handed, beside = Gemma3DecoderLayer.forward(layer, None, stream, None, None, None)
    return {
        "captured is the stream": torch.allclose(handed, attended + added),
        "captured is what the MLP adds": torch.allclose(handed, added),
        "with the residual it is the stream": torch.allclose(handed + beside, attended + added),
    }


def main() -> None:
    """Answer one request."""
    request, output = rig.read_arguments()
    classes = target_classes()
    with get_parallel().override(pp_group=SimpleNamespace(is_last_rank=True, world_size=1)):
        answers = [
            {name: captured(kind, case["ids"], case["layers"]) for name, kind in classes.items()}
            for case in request["cases"]
        ]
    found = {
        "cases": answers,
        "loops": loops(request["taps"], request["depth"]),
        "gemma3_layer": gemma3_layer(),
    }
    rig.write_result(output, {"engine": "sglang", "version": sglang.__version__, **found})


if __name__ == "__main__":
    main()
