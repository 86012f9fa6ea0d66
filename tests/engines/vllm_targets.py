"""Which of vLLM's registered classes can hand over hidden states to an EAGLE-3 draft (run by vLLM's Python).

No model is built: vLLM asks the class for its interface, and does not start without (``gpu_model_runner.py``). A
class promises more than it does where the forward of its own model never adds a state: ``idle`` lists these models.
A class whose module does not load here is listed apart.
"""

import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).with_name("stubs")))

import absent_modules
import rig
import vllm
from vllm.model_executor.models import registry
from vllm.model_executor.models.interfaces import EagleModelMixin, supports_eagle3

NO_TARGETS = (registry._SPECULATIVE_DECODING_MODELS,)
"""Drafts are registered with the others."""

ABSENT = frozenset({"timm", "torchaudio", "torchvision"})
"""Packages of pictures and sounds, which modules of targets import and never call here."""

CAPTURES = ("_maybe_add_hidden_state", "aux_hidden_state_layers", "aux_hidden_states")
"""Names in a forward that captures."""


def adds_states(kind: Any) -> bool:
    """Whether a forward that counts for a model captures, or hands on to a parent's that does."""
    for one in kind.__mro__:
        forward = vars(one).get("forward")
        while hasattr(forward, "__wrapped__"):
            forward = forward.__wrapped__
        code = getattr(forward, "__code__", None)
        if code is not None:
            names = {*code.co_names, *code.co_varnames}
            if not names.isdisjoint(CAPTURES):
                return True
            if "super" not in names:
                return False
    return False


def idle_models() -> list[str]:
    """Models that take the layers to capture, and whose own forward captures nothing."""
    found = set()
    for name, module in list(sys.modules.items()):
        if not name.startswith(("vllm.model_executor.models.", "vllm.models.")):
            continue
        for kind in vars(module).values():
            inner = isinstance(kind, type) and kind.__module__ == name
            inner = inner and issubclass(kind, EagleModelMixin) and kind is not EagleModelMixin
            if inner and not adds_states(kind):
                found.add(f"{name.rpartition('.')[2]}.{kind.__name__}")
    return sorted(found)


def main() -> None:
    """Answer with all of them."""
    _, output = rig.read_arguments()
    absent_modules.ABSENT = ABSENT
    absent_modules.install()
    captures, lacks, unread = set(), set(), set()
    for name, registered in registry.ModelRegistry.models.items():
        if any(name in models for models in NO_TARGETS):
            continue
        try:
            kind = registered.load_model_cls()
        except Exception:
            unread.add(name)
            continue
        (captures if supports_eagle3(kind) else lacks).add(name)
    found = {"captures": sorted(captures), "lacks": sorted(lacks), "unread": sorted(unread)}
    found["idle"] = idle_models()
    rig.write_result(output, {"engine": "vllm", "release": vllm.__version__, **found})


if __name__ == "__main__":
    main()
