"""The target: any Hugging Face causal LM, its residual stream at the taps, its own texts."""

import contextlib
import inspect
import shutil
import tempfile
import weakref
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import psutil  # type: ignore[import-untyped]
import torch
from accelerate.utils import align_module_device  # type: ignore[import-untyped]
from torch import Tensor, nn
from transformers import (
    CONFIG_MAPPING,
    MODEL_FOR_CAUSAL_LM_MAPPING,
    AutoConfig,
    AutoModelForCausalLM,
    AutoModelForImageTextToText,
    PreTrainedConfig,
    PreTrainedModel,
)

from eagle3_interop.schemas.findings import Finding, Refused, Unavailable, Usage, finding
from eagle3_interop.validators.network.reference import Features
from eagle3_interop.validators.network.weights import Tables
from eagle3_interop.validators.target.device import device_parts

Progress = Callable[[int], None]
"""Called with the number of tokens that were just done."""

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


def resolve_device(name: str) -> torch.device:
    """``auto``, ``cpu``, ``cuda`` or ``cuda:N`` as a device.

    Raises:
        Usage: it is none of these, or this machine (or this build of torch) does not have it.
    """
    kind, index = device_parts(name)
    if kind == "auto":
        kind = "cuda" if torch.cuda.is_available() else "cpu"
    if kind == "cuda" and index >= torch.cuda.device_count():
        found = torch.cuda.device_count()
        raise Usage(f"--device {name}: torch {torch.__version__} sees {found} CUDA devices here")
    return torch.device(kind, index) if kind == "cuda" else torch.device("cpu")


class _Enough(Exception):  # noqa: N818
    """Ends a pass of the target once all taps are known."""


class Target:
    """A loaded target.

    Attributes:
        model: the transformers model.
        config: its text config (of a vision-language wrapper, the language half).
        layers: its decoder layers.
        device: where inputs go.
        cache_name: argument of its forward, and key of its output, that holds keys and values.
    """

    def __init__(self, model: PreTrainedModel, device: torch.device | str = "cpu") -> None:
        """Find the decoder in a loaded model.

        Raises:
            Refused: no decoder with token embeddings and a list of layers is found in it.
        """
        self.model = model
        model.train(False).requires_grad_(False)
        self.config: PreTrainedConfig = model.config.get_text_config(decoder=True)
        self.device = torch.device(device)
        self.backbone, self.layers = find_decoder(model, self.config.num_hidden_layers)
        taken = inspect.signature(self.backbone.forward).parameters
        self.cache_name = "cache" if "cache" in taken else "past_key_values"  # before 5.24
        self._head: nn.Module = model.get_output_embeddings()  # type: ignore[no-untyped-call]

    @classmethod
    def load(
        cls,
        path: str | Path,
        *,
        device: torch.device | str = "cpu",
        dtype: torch.dtype = torch.float32,
        trust_remote_code: bool = False,
        memory: int | None = None,
    ) -> "Target":
        """Load a target from a folder or the Hub; what does not fit in memory is streamed.

        Args:
            path: folder or Hub id.
            device: where it runs.
            dtype: of its weights.
            trust_remote_code: run Python files that come with the checkpoint.
            memory: bytes of main memory for weights; by default 80 % of what is available.

        Raises:
            Refused: it is no complete causal LM (a draft, for one).
            Unavailable: it could not be read or downloaded.
        """
        config = load_config(path, trust_remote_code)
        device = torch.device(device)
        options: dict[str, Any] = {
            "config": config,
            "dtype": dtype,
            "trust_remote_code": trust_remote_code,
        }
        options |= _reading(
            path, lambda: _placement(config, device, dtype, trust_remote_code, memory)
        )
        model, info = _reading(
            path, lambda: _family(config).from_pretrained(path, output_loading_info=True, **options)
        )
        if info["missing_keys"] or info["mismatched_keys"]:
            raise Refused([_incomplete(str(path), sorted(map(str, info["missing_keys"])))])
        target = cls(model, device)
        if "offload_folder" in options:
            weakref.finalize(target, shutil.rmtree, options["offload_folder"], ignore_errors=True)
        return target

    @property
    def depth(self) -> int:
        """Number of decoder layers, L."""
        return len(self.layers)

    @property
    def hidden_size(self) -> int:
        """Width of the residual stream."""
        return int(self.config.hidden_size)

    @property
    def vocabulary_size(self) -> int:
        """Rows of the embedding table."""
        return int(self.config.vocab_size)

    def tables(self) -> Tables:
        """The embedding and head tables as stored (copies where the weights live on disk)."""
        found = []
        for module in (self.model.get_input_embeddings(), self._head):
            offloaded = any(p.is_meta for p in module.parameters())
            with align_module_device(module):
                weight = module.get_parameter("weight").detach()
                found.append(weight.clone() if offloaded else weight)
        return Tables(*found)

    def features(self, tokens: Tensor, taps: Sequence[int], *, final: bool = True) -> Features:
        """One teacher-forced pass: the residual stream at the taps.

        Texts may be padded on the right with any token: attention is causal, so nothing before
        the padding sees it.

        Args:
            tokens: [B, T] token ids.
            taps: as `Draft.taps` counts them; 0 is the embedding output *as layer 0 receives it*
                (scaled where the model scales it), L the last layer's output before the final norm.
            final: also the output after the final norm; without it the pass ends at the last tap.
        """
        with torch.no_grad(), self._capture(taps, stop=not final) as caught:
            try:
                out = self.backbone(input_ids=tokens.to(self.device), use_cache=False)
            except _Enough:
                return Features(caught, torch.empty(*tokens.shape, 0, device=self.device))
        return Features(caught, out.last_hidden_state)

    def features_of(
        self,
        texts: Sequence[Any],  # noqa: ARG002 - a recorded target looks them up
        tokens: Tensor,
        taps: Sequence[int],
        *,
        final: bool = True,
    ) -> Features:
        """`features` of the texts' first tokens."""
        return self.features(tokens, taps, final=final)

    def release_layers(self) -> None:
        """Give back the memory of the layers: what was captured of them is all that is still asked for.

        Head, tables and the number of layers stay. Layers that a device map moves about are left alone.
        """
        for layer in self.layers:
            if not any(hasattr(module, "_hf_hook") for module in layer.modules()):
                layer.to("meta")

    def logits(self, final: Tensor) -> Tensor:
        """[..., V] float32 from the hidden state after the final norm; pass few positions at once.

        Scales and caps are the model's own.
        """
        return scaled_logits(self._head(final).float(), self.config)

    def greedy(self, final: Tensor, chunk: int = 1024) -> Tensor:
        """The likeliest next token of each position, [N, H] to [N], a chunk of logits at a time."""
        with torch.no_grad():
            best = [self.logits(part).argmax(dim=-1) for part in torch.split(final, chunk)]
        return torch.cat(best)

    @torch.no_grad()
    def run(self, taps: Sequence[int], **given: Any) -> tuple[Any, dict[int, Tensor]]:  # noqa: ANN401
        """One pass of the decoder with these arguments: its output, and the streams at the taps."""
        with self._capture(taps, stop=False) as caught:
            return self.backbone(**given), caught

    @contextlib.contextmanager
    def _capture(self, taps: Sequence[int], *, stop: bool) -> Iterator[dict[int, Tensor]]:
        """Hooks that keep the stream entering layer k, or leaving the last one.

        With `stop`, reaching the last of the taps raises `_Enough`.
        """
        caught: dict[int, Tensor] = {}
        last = max(taps, default=None)

        def keep(tap: int, stream: Tensor) -> None:
            caught[tap] = stream
            if stop and tap == last:
                raise _Enough

        def entering(tap: int) -> Callable[..., None]:
            def hook(_module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
                keep(tap, args[0] if args else kwargs["hidden_states"])

            return hook

        def leaving(_module: nn.Module, _args: tuple[Any, ...], output: Any) -> None:  # noqa: ANN401
            keep(self.depth, output if isinstance(output, Tensor) else output[0])

        with contextlib.ExitStack() as stack:
            for tap in sorted(set(taps)):
                if not 0 <= tap <= self.depth:
                    raise Refused([_no_such_tap(tap, self.depth)])
                if tap == self.depth:
                    handle = self.layers[-1].register_forward_hook(leaving)
                else:
                    handle = self.layers[tap].register_forward_pre_hook(
                        entering(tap), with_kwargs=True
                    )
                stack.callback(handle.remove)
            yield caught


def scaled_logits(logits: Tensor, config: Any) -> Tensor:  # noqa: ANN401
    """What the model does to its head's product.

    ``logit_scale`` multiplies (Cohere), ``logits_scaling`` divides (Granite), ``final_logit_softcapping``
    bends (Gemma).
    """
    logits = logits * (getattr(config, "logit_scale", None) or 1.0)
    logits = logits / (getattr(config, "logits_scaling", None) or 1.0)
    cap = getattr(config, "final_logit_softcapping", None)
    return logits if cap is None else cap * torch.tanh(logits / cap)


def find_decoder(model: PreTrainedModel, depth: int) -> tuple[nn.Module, nn.ModuleList]:
    """The module that owns the token embeddings and, beside them, a list of `depth` layers.

    Found by structure, not by name: ``model.model`` of most, ``model.language_model`` inside vision-
    language wrappers (whose image tower may have as many layers but not the embeddings).

    Raises:
        Refused: nothing in the model looks like this.
    """
    embedding = model.get_input_embeddings()
    for module in model.modules():
        children = list(module.children())
        if any(child is embedding for child in children):
            for child in children:
                if isinstance(child, nn.ModuleList) and len(child) == depth:
                    return module, child
    raise Refused([_no_decoder(type(model).__name__, depth)])


def pack(lengths: Sequence[int], budget: int) -> Iterator[list[int]]:
    """Consecutive indices in groups whose rows, padded to the longest, hold at most `budget` tokens.

    A single row longer than the budget is a group of its own.
    """
    group: list[int] = []
    longest = 0
    for index, length in enumerate(lengths):
        if group and max(longest, length) * (len(group) + 1) > budget:
            yield group
            group, longest = [], 0
        group.append(index)
        longest = max(longest, length)
    if group:
        yield group


def load_config(
    path: str | Path, trust_remote_code: bool, revision: str | None = None
) -> PreTrainedConfig:
    """The config of a target.

    Raises:
        Refused: transformers does not know it, or it is a draft's.
        Unavailable: it could not be read or downloaded.
    """
    config: PreTrainedConfig = _reading(
        path, lambda: _known_config(path, trust_remote_code, revision)
    )
    names = " ".join(getattr(config, "architectures", None) or [])
    if "Eagle" in names or "Speculator" in names or "DraftModel" in names:
        raise Refused([_not_a_target(str(path), f"{names} is a draft")])
    return config


ALIASES = {"kimi_k2": "deepseek_v3"}
"""Model types whose checkpoints bring code of their own, to the class of transformers that computes the same.

Kimi-K2 is DeepSeek-V3 under another name: so SGLang 0.5.23 (``utils/hf_transformers/common.py``) and vLLM 0.32
serve it, and transformers itself reads it so inside Kimi-K2.5 (``configuration_kimi_k25.py``).
"""


def _known_config(
    path: str | Path, trust_remote_code: bool, revision: str | None
) -> PreTrainedConfig:
    """The config by transformers' own class; by the checkpoint's only where that was asked for."""
    if not trust_remote_code:
        said, _ = PreTrainedConfig.get_config_dict(path, revision=revision)
        if known := ALIASES.get(str(said.get("model_type"))):
            return CONFIG_MAPPING[known].from_dict({**said, "model_type": known})
    found: PreTrainedConfig = AutoConfig.from_pretrained(
        path, trust_remote_code=trust_remote_code, revision=revision
    )
    return found


def _family(config: PreTrainedConfig) -> Any:  # noqa: ANN401
    """The auto class that knows this config; remote code declares itself as a causal LM."""
    known = type(config) in MODEL_FOR_CAUSAL_LM_MAPPING or hasattr(config, "auto_map")
    return AutoModelForCausalLM if known else AutoModelForImageTextToText


def _reading(path: str | Path, read: Callable[[], Any]) -> Any:  # noqa: ANN401
    """Run a transformers loader; its exceptions become ours."""
    try:
        return read()
    except OSError as error:
        raise Unavailable(f"{path}: {error}") from error
    except (torch.OutOfMemoryError, MemoryError):
        raise
    except ImportError as error:
        raise Unavailable(f"{path}: {str(error).strip().partition(chr(10))[0]}") from error
    except Exception as error:  # what loaders raise over a broken folder has no common base
        why = " ".join(str(error).split())[:300] or type(error).__name__
        raise Refused([_not_a_target(str(path), why)]) from error


def _placement(
    config: PreTrainedConfig,
    device: torch.device,
    dtype: torch.dtype,
    trust_remote_code: bool,
    memory: int | None,
) -> dict[str, Any]:
    """Options of ``from_pretrained``: all on one device if it fits, else spread by accelerate."""
    with torch.device("meta"):
        empty = _family(config).from_config(config, trust_remote_code=trust_remote_code)
    size = sum(p.numel() for p in empty.parameters()) * dtype.itemsize
    main = memory if memory is not None else int(psutil.virtual_memory().available * 0.8)
    room: dict[int | str, int] = {"cpu": main}
    if device.type == "cuda":
        room = {device.index or 0: int(torch.cuda.mem_get_info(device)[0] * 0.8), "cpu": main}
    if size <= next(iter(room.values())):
        return {"device_map": {"": device}}
    folder = tempfile.mkdtemp(prefix="eagle3-offload-")
    return {"device_map": "auto", "max_memory": room, "offload_folder": folder}


def _not_a_target(path: str, why: str) -> Finding:
    return finding(
        "not-a-target", path, f"transformers does not load it as a causal language model: {why}"
    )


def _incomplete(path: str, missing: list[str]) -> Finding:
    shown = ", ".join(missing[:3]) + (f" and {len(missing) - 3} more" if len(missing) > 3 else "")
    return _not_a_target(path, f"weights are missing or have another shape: {shown}")


def _no_decoder(name: str, depth: int) -> Finding:
    return _not_a_target(name, f"no token embeddings beside a list of {depth} layers")


def _no_such_tap(tap: int, depth: int) -> Finding:
    return finding("taps-out-of-range", "taps", f"tap {tap}: the target has taps 0 to {depth}")
