"""Of a target, what a draft's measurement needs beside hidden states: config, embedding, final norm, head.

No layer is read, or need be there.
"""

import copy
import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812
from transformers import AutoModel

from eagle3_interop.convert.read.stored import Stored
from eagle3_interop.convert.read.target_tables import TargetCheckpoint, open_target
from eagle3_interop.schemas.findings import Refused, Unavailable, Usage, finding, refusal
from eagle3_interop.schemas.streams import RecordedTarget
from eagle3_interop.validators.network.reference import rms_norm
from eagle3_interop.validators.network.weights import Tables
from eagle3_interop.validators.target.mapped import placed
from eagle3_interop.validators.target.running import find_decoder, load_config, scaled_logits

HEAD_BYTES = 512 << 20
"""Bytes of the head that are cast at a time."""

SCALED = ("embedding_multiplier", "scale_emb", "emb_scale")
"""Config keys of models whose first layer does not receive the table's rows as they are."""


@dataclass
class TargetTables:
    """A target without its layers.

    Attributes:
        checkpoint: the folder, its config and where its tables lie.
        config: transformers' text config; of a model that it does not know, the file's own keys.
        device: where what is computed goes.
        dtype: that it is computed in.
    """

    checkpoint: TargetCheckpoint
    config: Any
    device: torch.device
    dtype: torch.dtype
    _cast: dict[str, Tensor] = field(default_factory=dict, repr=False)

    @classmethod
    def open(
        cls,
        spec: str,
        *,
        device: torch.device | str = "cpu",
        dtype: torch.dtype = torch.float32,
        trust_remote_code: bool = False,
    ) -> "TargetTables":
        """Open a target, a local folder or a Hub id; the tables are mapped, or read by range requests.

        Raises:
            Refused: no config, or a table is missing.
            Unavailable: the disk or the Hub failed.
        """
        found = open_target(spec, weights=False, norm=True)
        config = _config_of(found, trust_remote_code)
        untied = getattr(config, "tie_word_embeddings", True) is False
        lacking = {
            "embedding table": found.embedding is None,
            "head": found.head is None or (untied and found.head is found.embedding),
        }
        for what, missing in lacking.items():
            if missing:
                message = (
                    f"it holds no {what} under a known name, which recordings are measured with."
                )
                raise Refused([finding("not-a-target", found.path, message)])
        return cls(found, config, torch.device(device), dtype)

    @property
    def depth(self) -> int:
        """Decoder layers, L."""
        layers = self.checkpoint.facts.layers
        if layers is None:
            raise refusal(
                "broken-config", self.checkpoint.path, "config.json has no number of layers"
            )
        return layers

    @property
    def hidden_size(self) -> int:
        """Width of the residual stream."""
        return self.checkpoint.facts.hidden_size

    @property
    def vocabulary_size(self) -> int:
        """Rows of the embedding table."""
        return int(self.embedding.shape[0])

    @property
    def scales_embeddings(self) -> bool:
        """Layer 0 receives something else than the table's rows."""
        kind = str(getattr(self.config, "model_type", ""))
        factors = (getattr(self.config, key, None) for key in SCALED)
        return "gemma" in kind or any(factor not in (None, 1, 1.0) for factor in factors)

    @cached_property
    def embedding(self) -> Tensor:
        """[V, H], as stored."""
        return self._placed(self.checkpoint.embedding)

    @cached_property
    def head(self) -> Tensor:
        """[V, H], as stored."""
        return self.embedding if self.checkpoint.tied else self._placed(self.checkpoint.head)

    def _placed(self, stored: Stored | None) -> Tensor:
        assert stored is not None  # noqa: S101 - `open` made sure
        return placed(self.checkpoint.folder, stored)

    def tables(self) -> Tables:
        """What a draft may borrow."""
        return Tables(self.embedding, self.head)

    @cached_property
    def digest(self) -> str:
        """sha256 of embedding table, final norm and head, as stored."""
        found = hashlib.sha256()
        held = self.checkpoint
        norm = None if held.norm is None else self._placed(held.norm)
        for stored, tensor in (
            (held.embedding, self.embedding),
            (held.norm, norm),
            (held.head, self.head),
        ):
            if stored is None or tensor is None:
                found.update(b"absent")
                continue
            found.update(f"{stored.dtype} {list(stored.shape)}".encode())
            raw = tensor.contiguous().view(torch.uint8).flatten()
            for piece in torch.split(raw, HEAD_BYTES):
                found.update(piece.numpy().data)
        return found.hexdigest()

    def described(self) -> RecordedTarget:
        """For a manifest."""
        return RecordedTarget(
            path=self.checkpoint.path,
            revision=self.checkpoint.revision,
            model_type=self.checkpoint.model_type,
            layers=self.depth,
            hidden_size=self.hidden_size,
            vocab_size=self.vocabulary_size,
            sha256=self.digest,
        )

    def embedded(self, tokens: Tensor) -> Tensor:
        """The table's rows, which are the stream at depth 0 unless the model scales them."""
        return F.embedding(tokens.cpu(), self.embedding).to(self.device, self.dtype)

    @torch.no_grad()
    def logits(self, final: Tensor, ids: Tensor | None = None) -> Tensor:
        """[..., V] float32 from the hidden state after the final norm; pass few positions at once.

        Args:
            final: [..., H].
            ids: only the logits of these tokens.
        """
        head = self.head if ids is None else self.head[ids.cpu()]
        final = final.to(self.device, self.dtype)
        step = max(1, HEAD_BYTES // (head.shape[1] * self.dtype.itemsize))
        if ids is None and len(head) <= step:
            if "head" not in self._cast:
                self._cast["head"] = head.to(self.device, self.dtype)
            parts = [F.linear(final, self._cast["head"])]
        else:
            rows = torch.split(head, step)
            parts = [F.linear(final, part.to(self.device, self.dtype)) for part in rows]
        return scaled_logits(torch.cat(parts, dim=-1).float(), self.config)

    @torch.no_grad()
    def choices(self, final: Tensor, ids: Tensor | None = None, chunk: int = 512) -> Tensor:
        """The likeliest next token of each position, [N, H] to [N]; among `ids` only, if given."""
        best = [self.logits(part, ids).argmax(dim=-1) for part in torch.split(final, chunk)]
        found = torch.cat(best) if best else torch.empty(0, dtype=torch.long, device=self.device)
        return found if ids is None else ids.to(found.device)[found]

    @cached_property
    def final_norm(self) -> tuple[Callable[[Tensor], Tensor], str]:
        """The final norm, and what it is.

        transformers' own class for this kind of model computes it; a model that transformers does not know is
        taken to have the plain RMS norm.

        Raises:
            Refused: its weight was not found, or it is of a kind that is not known.
        """
        stored = self.checkpoint.norm
        if stored is None:
            message = "holds no final norm under a known name; the last hidden state needs it"
            raise Refused([finding("not-a-target", self.checkpoint.path, message)])
        weight = self._placed(stored).to(self.device, self.dtype)
        module = _norm_of(self.config)
        if module is not None and set(dict(module.named_parameters())) == {"weight"}:
            module = module.to_empty(device=self.device).to(self.dtype)
            module.get_parameter("weight").data.copy_(weight)
            return module.requires_grad_(False), f"{type(module).__name__} of transformers"
        keys = ("rms_norm_eps", "norm_eps", "layer_norm_epsilon", "norm_epsilon")
        eps = next((x for key in keys if (x := getattr(self.config, key, None)) is not None), None)
        if module is not None or eps is None:
            kind = type(module).__name__ if module is not None else "unknown"
            message = f"its final norm is of a kind that is not computed here: {kind}"
            raise Refused([finding("not-a-target", self.checkpoint.path, message)])
        return (lambda x: rms_norm(x, weight, float(eps))), "a plain RMS norm"


def _config_of(found: TargetCheckpoint, trust_remote_code: bool) -> Any:  # noqa: ANN401
    """Transformers' config of a target; of a model that it does not know, the keys themselves."""
    path = str(getattr(found.folder, "folder", found.path))
    try:
        if "@" in path and found.name:
            config = load_config(found.name, trust_remote_code, revision=found.revision)
        else:
            config = load_config(path, trust_remote_code)
    except (Refused, Unavailable, Usage, ImportError):
        return _raw(found.text_config)
    return config.get_text_config(decoder=True)


def _raw(config: Mapping[str, Any]) -> SimpleNamespace:
    keys = {str(key): value for key, value in config.items()}
    if "rope_parameters" not in keys and isinstance(keys.get("rope_theta"), int | float):
        scaling = keys.get("rope_scaling")
        scaling = dict(scaling) if isinstance(scaling, Mapping) else {}
        kind = scaling.pop("rope_type", scaling.pop("type", "default"))
        keys["rope_parameters"] = {**scaling, "rope_type": kind, "rope_theta": keys["rope_theta"]}
    return SimpleNamespace(**keys)


def _norm_of(config: Any) -> nn.Module | None:  # noqa: ANN401
    """The final norm's module of transformers' own model, on no device; None where it knows none."""
    if isinstance(config, SimpleNamespace):
        return None
    small = copy.deepcopy(config)
    try:
        small.num_hidden_layers = 1
        if getattr(small, "layer_types", None):
            small.layer_types = list(small.layer_types)[:1]
        with torch.device("meta"):
            model = AutoModel.from_config(small)  # type: ignore[no-untyped-call]
        decoder, layers = find_decoder(model, 1)
    except Exception:
        return None
    children = list(decoder.children())
    after = children[children.index(layers) + 1 :]
    for child in after:
        parameters = list(child.parameters())
        if parameters and all(parameter.dim() == 1 for parameter in parameters):
            return child
    return None
