"""What convert needs of a target: its config, its embedding table and its head.

Whatever else the target holds is never read; from the Hub only the files that hold the two tables
are downloaded.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from eagle3_interop.convert.read.checkpoint import read_config, read_file, read_values, weight_names
from eagle3_interop.convert.read.folders import Folder, open_folder
from eagle3_interop.convert.read.stored import Stored
from eagle3_interop.schemas import draft
from eagle3_interop.schemas.engines.positions import context_of
from eagle3_interop.schemas.engines.windows import window_of
from eagle3_interop.schemas.findings import Refused, Unavailable, finding, refusal

# Where multimodal and wrapped configs keep the language model's own.
_TEXT_CONFIGS = ("text_config", "llm_config", "language_config", "thinker_config", "llm")

_EMBEDDINGS = (
    "model.embed_tokens.weight",
    "model.language_model.embed_tokens.weight",
    "language_model.model.embed_tokens.weight",
    "language_model.embed_tokens.weight",
    "thinker.model.embed_tokens.weight",
    "model.text_model.embed_tokens.weight",
    "model.word_embeddings.weight",
    "model.tok_embeddings.weight",
    "backbone.embeddings.weight",
    "model.embeddings.weight",
    "transformer.wte.weight",
    "transformer.word_embeddings.weight",
    "transformer.embedding.word_embeddings.weight",
    "gpt_neox.embed_in.weight",
    "embed_tokens.weight",
)
_HEADS = (
    "lm_head.weight",
    "language_model.lm_head.weight",
    "model.language_model.lm_head.weight",
    "thinker.lm_head.weight",
    "model.lm_head.weight",
    "output.weight",
    "transformer.output_layer.weight",
    "embed_out.weight",
)

_NORMS = tuple(
    name.removesuffix(ending) + norm
    for name in _EMBEDDINGS
    for ending in ("embed_tokens.weight", "wte.weight", "word_embeddings.weight", "embed_in.weight",
                   "tok_embeddings.weight", "embeddings.weight", "embedding.word_embeddings.weight")
    if name.endswith(ending)
    for norm in ("norm.weight", "final_layernorm.weight", "final_layer_norm.weight", "ln_f.weight",
                 "norm_f.weight", "final_norm.weight")
)  # fmt: skip
"""The final norm stands beside the embedding table."""

_DRAFT_KEYS = ("speculators_model_type", "eagle_config", "draft_vocab_size")


@dataclass(frozen=True)
class TargetCheckpoint:
    """A target model.

    Attributes:
        folder: where it lies.
        config: config.json.
        text_config: the language model's own part of it (the whole, where nothing is nested); keys
            that only the outer config has are filled in from there.
        embedding: the embedding table, None where it was not found under a known name.
        head: the output head; the embedding table where the two are tied.
        tied: the head is the embedding table.
        norm: the weight of the final norm, where it was asked for and found under a known name.
    """

    folder: Folder
    config: Mapping[str, Any]
    text_config: Mapping[str, Any]
    embedding: Stored | None
    head: Stored | None
    tied: bool
    norm: Stored | None = None

    @property
    def path(self) -> str:
        """What the user calls it."""
        return self.folder.label

    @property
    def name(self) -> str | None:
        """Its Hub id, if it was given by one."""
        return self.folder.name

    @property
    def revision(self) -> str | None:
        """The Hub's commit, where known."""
        return self.folder.revision

    @property
    def model_type(self) -> str | None:
        """The outer config's model_type; ``text_config`` has the language model's own."""
        value = self.config.get("model_type")
        return value if isinstance(value, str) else None

    @property
    def facts(self) -> draft.Target:
        """The target as a draft's description states it.

        Raises:
            Refused: the config does not say how wide the model is (``broken-config``).
        """
        width = _size(self.text_config, "hidden_size", "n_embd", "d_model", "dim")
        if width is None:
            raise refusal("broken-config", self.path, "config.json has no hidden_size")
        return draft.Target(
            name=self.name,
            hidden_size=width,
            layers=_size(self.text_config, "num_hidden_layers", "n_layer", "num_layers"),
            model_type=self.model_type,
            architectures=_words(self.config.get("architectures")),
        )

    @property
    def vocab_size(self) -> int | None:
        """Rows of the vocabulary: the embedding table's, or what the config says without one."""
        if self.embedding is not None:
            return self.embedding.shape[0]
        return _size(self.text_config, "vocab_size", "padded_vocab_size")

    @property
    def max_position(self) -> int | None:
        """Positions that it reaches: what its config declares, times the factor of a linear rope."""
        return context_of(self.text_config)

    @property
    def window(self) -> int | None:
        """The sliding window that vLLM takes for the whole model, if it takes one."""
        return window_of(self.text_config)

    def values(self, tensor: Stored) -> np.ndarray[Any, Any]:
        """All values of one of the two tables.

        Raises:
            Refused: the file ends before the tensor does.
        """
        return read_values(self.folder, tensor)


def open_target(spec: str, *, weights: bool = True, norm: bool = False) -> TargetCheckpoint:
    """Open a target, a local folder or a Hub id ``ORG/NAME[@REVISION]``.

    Args:
        spec: folder or Hub id.
        weights: False leaves the tables on the Hub: headers only.
        norm: look for the final norm as well.

    Raises:
        Usage: no such folder, and not a Hub id.
        Refused: no config.json, a damaged file, or a draft.
        Unavailable: the disk or the Hub failed.
    """
    folder = open_folder(spec)
    try:
        config = read_config(folder, infinities=True)
        _refuse_draft(folder, config)
        stored = _tables(folder, norm, download=weights)
    except OSError as error:
        raise Unavailable(f"{error.filename or spec}: {error.strerror or error}") from error
    embedding = _first(stored, _EMBEDDINGS)
    own_head = _first(stored, _HEADS)
    text = _text_config(config)
    tied = bool(text.get("tie_word_embeddings")) if own_head else True
    head = embedding if tied else own_head
    return TargetCheckpoint(folder, config, text, embedding, head, tied, _first(stored, _NORMS))


def _refuse_draft(folder: Folder, config: Mapping[str, Any]) -> None:
    """A draft taken for its target would give its own depth and tables."""
    named = _words(config.get("architectures"))
    classes = [name for name in named if "eagle3" in name.lower()]
    if keys := [key for key in _DRAFT_KEYS if config.get(key) is not None] + classes:
        message = f"config.json has {keys[0]}: this is a draft, not a target."
        raise Refused([finding("not-a-target", folder.label, message)])


def kv_shape(config: Mapping[str, Any]) -> tuple[int | None, int | None]:
    """KV heads and their size, as far as a config of decoder layers says; engines share pages by them.

    Latent attention stores one vector a position: the latent, and the rotated part of the keys.
    """
    latent, rotated = _size(config, "kv_lora_rank"), _size(config, "qk_rope_head_dim")
    if latent is not None and rotated is not None:
        return 1, latent + rotated
    heads, width = _size(config, "num_attention_heads"), _size(config, "hidden_size")
    size = _size(config, "head_dim") or (width // heads if heads and width else None)
    return _size(config, "num_key_value_heads") or heads, size


def _text_config(config: Mapping[str, Any]) -> Mapping[str, Any]:
    for key in _TEXT_CONFIGS:
        nested = config.get(key)
        if isinstance(nested, dict):
            # What is null there, the whole model's config says (transformers hands it down).
            told = {k: v for k, v in nested.items() if v is not None or config.get(k) is None}
            return _text_config({**config, **told, key: None})
    return config


def _tables(folder: Folder, norm: bool, *, download: bool) -> dict[str, Stored]:
    """The embedding and head tensors, and the final norm's, from the files that hold them alone."""
    wanted = {*_EMBEDDINGS, *_HEADS, *(_NORMS if norm else ())}
    names, weight_map = weight_names(folder, wanted)
    if weight_map is not None:
        names = sorted({file for name, file in weight_map.items() if name in wanted})
    return {
        name: tensor
        for file in names
        for name, tensor in _wanted(folder, file, wanted, download=download)
    }


def _wanted(
    folder: Folder, file: str, wanted: Iterable[str], *, download: bool
) -> list[tuple[str, Stored]]:
    """Headers first, so that a file without any of the tables is not downloaded."""
    tensors, _ = read_file(folder, file, download=False)
    if download and not tensors.keys().isdisjoint(wanted):
        tensors, _ = read_file(folder, file, download=True)
    return [(name, tensor) for name, tensor in tensors.items() if name in set(wanted)]


def _first(stored: Mapping[str, Stored], names: Iterable[str]) -> Stored | None:
    return next((stored[name] for name in names if name in stored), None)


def _words(value: object) -> tuple[str, ...]:
    return tuple(word for word in value if isinstance(word, str)) if isinstance(value, list) else ()


def _size(config: Mapping[str, Any], *keys: str) -> int | None:
    values = (config.get(key) for key in keys)
    return next(
        (value for value in values if type(value) is int and 0 < value <= draft.LARGEST), None
    )
