"""Inert stand-ins for packages that SGLang imports at module level and, on a CPU, never calls.

``import triton`` and ``@triton.jit`` must succeed for SGLang's modules to load at all; no kernel
defined that way is ever launched, because every CPU path branches to ``sgl_kernel`` first.
Launching one raises.
"""

# ruff: noqa: ARG002 - the signatures are the import system's

import importlib.abc
import importlib.machinery
import sys
import types
from collections.abc import Callable
from typing import Any

ABSENT = frozenset({"triton", "torchvision", "torchaudio"})

# Transformers asks whether torchvision is there and then relies on it, so to that module it must
# stay absent.
AVAILABILITY_CHECKS = "transformers.utils.import_utils"


class AbsentModule(types.ModuleType):
    """A module whose every attribute exists: classes by capital letter, modules otherwise.

    Called, it is a decorator, with or without arguments.
    """

    def __getattr__(self, name: str) -> Any:
        """Make the attribute that somebody imports or reads."""
        if name.startswith("__"):
            raise AttributeError(name)
        if name[0].isupper():
            value: Any = type(name, (_AbsentClass,), {"__module__": self.__name__})
        else:
            value = importlib.import_module(f"{self.__name__}.{name}")
        setattr(self, name, value)
        return value

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Act as ``@decorator`` or as ``@decorator(...)``."""
        if len(args) == 1 and callable(args[0]) and not kwargs:
            return _AbsentKernel(args[0])
        return lambda function: function


class _AbsentClass(Exception):  # noqa: N818 - an exception so that `except triton.X` is legal too
    """Base of every class of an absent package; takes any arguments."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args)
        self.__dict__.update(kwargs)


class _AbsentKernel:
    """A function that an absent package decorated: passed around, never launched."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.fn = function
        self.__name__ = getattr(function, "__name__", "kernel")
        self.__doc__ = function.__doc__

    def __getitem__(self, grid: Any) -> Callable[..., Any]:
        return self

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        raise NotImplementedError(
            f"{self.__name__} is a compiled kernel; there is none on this machine"
        )


class AbsentFinder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds the modules of packages that are not installed."""

    def find_spec(
        self, name: str, path: Any = None, target: Any = None
    ) -> importlib.machinery.ModuleSpec | None:
        """Return a spec for a module of an absent package, except to who must not see it."""
        if name.partition(".")[0] not in ABSENT or _asked_by(AVAILABILITY_CHECKS):
            return None
        return importlib.machinery.ModuleSpec(name, self, is_package=True)

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType:
        """Return the stand-in itself."""
        return AbsentModule(spec.name)

    def exec_module(self, module: types.ModuleType) -> None:
        """Give triton the few plain functions that are used outside kernels."""
        if module.__name__ == "triton":
            module.__version__ = "0"
            module.cdiv = lambda a, b: -(a // -b)
            module.next_power_of_2 = lambda n: 1 << max(n - 1, 0).bit_length()


def install() -> None:
    """Put the finder behind the ordinary ones, so that an installed package wins."""
    if not any(isinstance(finder, AbsentFinder) for finder in sys.meta_path):
        sys.meta_path.append(AbsentFinder())


def _asked_by(module: str) -> bool:
    """Return whether a module's code is on the call stack."""
    frame = sys._getframe(1)
    while frame is not None:
        if frame.f_globals.get("__name__") == module:
            return True
        frame = frame.f_back
    return False
