"""Change a module right after it was loaded, as it always is."""

# ruff: noqa: ARG002 - the signatures are the import system's

import importlib.abc
import importlib.machinery
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any


class _AfterImport(importlib.abc.MetaPathFinder):
    def __init__(self, name: str, change: Callable[[ModuleType], None]) -> None:
        self._name = name
        self._change = change

    def find_spec(
        self, name: str, path: Any = None, target: Any = None
    ) -> importlib.machinery.ModuleSpec | None:
        if name != self._name:
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path)
        execute = spec.loader.exec_module

        def execute_and_change(module: ModuleType) -> None:
            execute(module)
            self._change(module)

        spec.loader.exec_module = execute_and_change
        return spec


def after_import(name: str, change: Callable[[ModuleType], None]) -> None:
    """Call `change` with the module of this name once somebody imported it."""
    sys.meta_path.insert(0, _AfterImport(name, change))
