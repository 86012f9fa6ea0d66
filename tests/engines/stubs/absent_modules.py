"""Inert stand-ins for packages that SGLang imports at module level and, on a CPU, never calls.

``import triton`` and ``@triton.jit`` must succeed for SGLang's modules to load at all; no kernel
defined that way is ever launched, because every CPU path branches to ``sgl_kernel`` first.
Launching one raises.
"""

# ruff: noqa: ARG002 - the signatures are the import system's

import functools
import importlib.abc
import importlib.machinery
import importlib.metadata
import importlib.util
import os
import sys
import types
from collections.abc import Callable
from typing import Any

ABSENT = frozenset(os.environ.get("EAGLE3_ABSENT", "triton torchvision torchaudio").split())

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
        return _AbsentKernel if self.__name__ == "triton.jit" else lambda function: function


class _Members(type):
    """Gives absent classes every member that somebody reads (of enumerations, at import)."""

    def __getattr__(cls, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        value = f"{cls.__module__}.{cls.__name__}.{name}"
        setattr(cls, name, value)
        return value


class _AbsentClass(Exception, metaclass=_Members):  # noqa: N818 - an exception so that `except triton.X` is legal too
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
        if name.partition(".")[0] not in ABSENT or _hidden(name):
            return None
        return importlib.machinery.ModuleSpec(name, self, is_package=True)

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType:
        """Return the stand-in itself."""
        return AbsentModule(spec.name)

    def exec_module(self, module: types.ModuleType) -> None:
        """Give packages a version, and triton the few plain functions that are used outside kernels."""
        if "." not in module.__name__:
            module.__version__ = "0"
        if module.__name__ == "triton.runtime.jit":
            module.JITFunction = _AbsentKernel
        if module.__name__ == "triton":
            module.cdiv = lambda a, b: -(a // -b)
            module.next_power_of_2 = lambda n: 1 << max(n - 1, 0).bit_length()


def install() -> None:
    """Put the finder behind the ordinary ones, so that an installed package wins."""
    if not any(isinstance(finder, AbsentFinder) for finder in sys.meta_path):
        sys.meta_path.append(AbsentFinder())
        importlib.util.find_spec = _hidden_from_checks(importlib.util.find_spec)


def _hidden_from_checks(find_spec: Callable[..., Any]) -> Callable[..., Any]:
    """Keep what somebody has imported already from those who must not see it, too."""

    @functools.wraps(find_spec)
    def find(name: str, package: str | None = None) -> Any:
        absent = name.partition(".")[0] in ABSENT and _hidden(name)
        return None if absent else find_spec(name, package)

    return find


def _hidden(name: str) -> bool:
    """Return whether transformers asks for a package of which not even a description is installed."""
    if not _asked_by(AVAILABILITY_CHECKS):
        return False
    try:
        importlib.metadata.distribution(name.partition(".")[0])
    except importlib.metadata.PackageNotFoundError:
        return True
    return False


def _asked_by(module: str) -> bool:
    """Return whether one of a module's checks is on the call stack; its lazy imports do not count."""
    frame = sys._getframe(1)
    while frame is not None:
        name = frame.f_code.co_name.lstrip("_")
        if frame.f_globals.get("__name__") == module and name.startswith(("is_", "<module>")):
            return True
        frame = frame.f_back
    return False
