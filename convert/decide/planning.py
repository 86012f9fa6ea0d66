"""The proof: a planned output, read by its destination's reader before a byte of it is written."""

import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from eagle3_interop.convert.decide.fitting import Fitted
from eagle3_interop.convert.decide.loaded import Loaded
from eagle3_interop.convert.write.plan import Make
from eagle3_interop.schemas.dialects.base import Reading
from eagle3_interop.schemas.dialects.reading import check
from eagle3_interop.schemas.registry import DESTINATIONS


class Planned:
    """A conversion's output as a source of its own, before a byte of it is written.

    The destination's reader is run over it: what it reads back must be what was meant.
    """

    def __init__(self, fitted: Fitted, loaded: Loaded) -> None:
        """Keep the config as JSON would give it back."""
        self.path = "the planned output"
        self.config: Mapping[str, Any] = json.loads(json.dumps(fitted.writing.config))
        self._outputs = {output.name: output for output in fitted.outputs}
        self._loaded = loaded

    @property
    def tensors(self) -> Mapping[str, Any]:
        """Headers by name: an `Output` has a dtype and a shape, which is all that a header is."""
        return self._outputs

    def values(self, name: str) -> np.ndarray[Any, Any]:
        """Values of a map or a bias."""
        op = self._outputs[name].op
        if isinstance(op, Make):
            return op.values
        read: Callable[[str], np.ndarray[Any, Any]] = self._loaded.checkpoint.values
        return read(op.source.name)


def read_back(fitted: Fitted, loaded: Loaded, destination: str) -> Reading:
    """What the destination's reader finds in the planned output, its check of the tensors included."""
    planned = Planned(fitted, loaded)
    reading = DESTINATIONS[destination].read(planned, loaded.facts)
    found = (*reading.findings, *check(reading, planned.tensors))
    return replace(reading, findings=found)
