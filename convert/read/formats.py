"""Files of other formats than this tool reads, known by their names, and pointers that stand for files."""

import fnmatch
from collections.abc import Collection

from eagle3_interop.convert.read.folders import Folder
from eagle3_interop.schemas.findings import Refused, refusal

_FORMATS = {
    "params.json": "Mistral's own format",
    "consolidated*.pth": "Meta's own format",
    "consolidated*.safetensors": "Mistral's own format",
    "*.gguf": "GGUF, llama.cpp's format",
    "adapter_config.json": "an adapter (LoRA) of a model, and not the model itself",
    "adapter_model.safetensors": "an adapter (LoRA) of a model, and not the model itself",
    "model_index.json": "a diffusion pipeline",
    "*.nemo": "a NeMo archive",
    "*.onnx": "ONNX",
    "tf_model.h5": "TensorFlow's format",
    "flax_model.msgpack": "Flax's format",
    "*.distcp": "a distributed training state, and no export",
    "*_optim_states.pt": "a training state of DeepSpeed, and no export",
}
"""By the first that a folder holds."""

_POINTER = b"version https://git-lfs.github.com/spec/"
_LONGEST_POINTER = 1024
"""Bytes, which Git LFS itself allows."""


def other_format(folder: Folder) -> Refused | None:
    """A refusal that calls a folder without config.json or without weights by its format; None for no known one."""
    for pattern, title in _FORMATS.items():
        if found := sorted(fnmatch.filter(folder.sizes, pattern)):
            message = f"holds {found[0]}: this is {title}, which this tool does not read"
            return refusal("other-format", folder.label, message)
    return None


def is_pointer(folder: Folder, name: str) -> bool:
    """Whether Git LFS's pointer stands for a file: the clone was made without it."""
    if not len(_POINTER) < folder.sizes[name] <= _LONGEST_POINTER:
        return False
    return folder.read(name, 0, len(_POINTER)) == _POINTER


def refuse_pointers(folder: Folder, names: Collection[str]) -> None:
    """Refuse pointers that stand for files which are read.

    Raises:
        Refused: with the first of them.
    """
    for name in names:
        if is_pointer(folder, name):
            message = "is a Git LFS pointer, and not the file that it stands for"
            raise refusal("lfs-pointer", name, message)
