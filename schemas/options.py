"""What a user can say about a conversion: one value, from the command line to the writers."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

SHARD_BYTES = 5_000_000_000


@dataclass(frozen=True)
class Options:
    """Everything that the user can say about one conversion.

    Attributes:
        target: folder or Hub id of the target.
        target_name: the Hub id to write where a layout names its verifier.
        stock: refuse what needs the SGLang plugin.
        taps: the order in which the trainer concatenated fc's features.
        sets: dotted path of the description to value.
        trainer: who trained the draft: its network as trained counts; ``none`` for what is served.
        allow: codes of what was trained and no engine computes, which may be lost.
        dtype: cast the weights; None keeps them.
        dequantize: write quantised weights as the plain ones that they stand for.
        max_shard_bytes: split files that are written anew beyond this size.
        canonical_names: rename also what the destination would accept.
        releases: of the engines that shall read the output right, each as ``ENGINE==VERSION``.
        ranges: read the target's tables where they lie, by ranges of bytes: nothing of it is downloaded whole.
    """

    target: str | None = None
    target_name: str | None = None
    stock: bool = False
    taps: tuple[int, ...] | None = None
    sets: Mapping[str, Any] | None = None
    trainer: str | None = None
    allow: tuple[str, ...] = ()
    dtype: str | None = None
    dequantize: bool = False
    max_shard_bytes: int = SHARD_BYTES
    canonical_names: bool = False
    releases: tuple[str, ...] = ()
    ranges: bool = False
