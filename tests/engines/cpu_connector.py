"""vLLM's own connector, with the one thing that needs CUDA replaced: the copy off the device, on its own stream."""

import types
from unittest import mock

import torch
from vllm.distributed.kv_transfer.kv_connector.v1.example_hidden_states_connector import (
    ExampleHiddenStatesConnector,
)

MODULE = ExampleHiddenStatesConnector.__module__


class _Done:
    """A CUDA event of a copy that is done when it returns."""

    def record(self, _stream=None):
        return None

    def query(self):
        return True

    def synchronize(self):
        return None


class _Stream:
    """A CUDA stream of a device that has none."""

    def wait_event(self, _event):
        return None


class _Here:
    def __enter__(self):
        return self

    def __exit__(self, *_):
        return None


class _Torch:
    """torch, but for what a CPU has not."""

    cuda = types.SimpleNamespace(Event=_Done, stream=lambda _: _Here())

    def __getattr__(self, name):
        return getattr(torch, name)

    @staticmethod
    def empty_like(x, *, device, pin_memory):
        assert pin_memory
        return torch.empty_like(x, device=device)


class CpuConnector(ExampleHiddenStatesConnector):
    """The same on a CPU."""

    def _get_copy_stream(self):
        return _Stream()

    def _submit_async_write(self, pending):
        with (
            mock.patch(f"{MODULE}.torch", _Torch()),
            mock.patch(f"{MODULE}.gpu_sync_allowed", _Here),
        ):
            super()._submit_async_write(pending)
