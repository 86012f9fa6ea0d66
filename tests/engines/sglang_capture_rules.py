"""What each of SGLang's target classes makes of a draft's ids (run by SGLang's Python).

Request: ``{"cases": [{"ids": [..] or null, "layers"}]}``. No model is built: the method that turns ids
into layers to capture is called on an object that holds a depth and takes down what is set on it. A
class that hands the ids on to its language model answers ``handed on``.
"""

import importlib
import pkgutil
import warnings
from types import SimpleNamespace
from typing import Any

import rig
import sglang
import sglang.srt.models
from sglang.srt.runtime_context import get_parallel

METHOD = "set_eagle3_layers_to_capture"


class Recorder:
    """Stands for the inner model of a target."""

    def __init__(self, depth: int) -> None:
        self.layers = [SimpleNamespace() for _ in range(depth)]
        self.layers_to_capture: Any = None
        self.handed: Any = None

    def set_eagle3_layers_to_capture(self, layer_ids: Any = None) -> None:
        self.handed = ["handed on", layer_ids]


def target_classes() -> dict[str, Any]:
    """Every class of SGLang's models that defines the method itself."""
    found = {}
    for module in pkgutil.iter_modules(sglang.srt.models.__path__, "sglang.srt.models."):
        try:
            loaded = importlib.import_module(module.name)
        except Exception as error:
            warnings.warn(f"{module.name}: {error}", stacklevel=1)
            continue
        kinds = {kind for kind in vars(loaded).values() if isinstance(kind, type)}
        for kind in kinds:
            # An inner model's method takes what its outer class has translated already.
            if kind.__module__ == module.name and METHOD in vars(kind) and _is_outer(kind):
                found[f"{module.name.rpartition('.')[2]}.{kind.__name__}"] = kind
    return found


def _is_outer(kind: type) -> bool:
    return kind.__name__.endswith(("ForCausalLM", "ForConditionalGeneration"))


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


def main() -> None:
    """Answer one request."""
    request, output = rig.read_arguments()
    classes = target_classes()
    with get_parallel().override(pp_group=SimpleNamespace(is_last_rank=True, world_size=1)):
        answers = [
            {name: captured(kind, case["ids"], case["layers"]) for name, kind in classes.items()}
            for case in request["cases"]
        ]
    rig.write_result(output, {"engine": "sglang", "version": sglang.__version__, "cases": answers})


if __name__ == "__main__":
    main()
