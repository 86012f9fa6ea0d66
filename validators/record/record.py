"""One recording: what is asked, decided and written. The command is a thin shell over this."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from eagle3_interop.convert.read.folders import LocalFolder
from eagle3_interop.schemas.draft import default_taps
from eagle3_interop.schemas.findings import Unavailable, Usage
from eagle3_interop.schemas.streams import Basis, Last, RecordedBy, StreamsManifest
from eagle3_interop.validators.memory import enough_memory
from eagle3_interop.validators.prove.validate import Watch, unwatched
from eagle3_interop.validators.record.store import Plan, Store
from eagle3_interop.validators.record.wish import Wish
from eagle3_interop.validators.target.prompts import Prompt, bundled_prompts, read_prompts
from eagle3_interop.validators.target.running import DTYPES, Progress, resolve_device
from eagle3_interop.validators.target.tables import TargetTables
from eagle3_interop.validators.target.texts import encode, load_tokenizer

WEIGHTS = ("*.safetensors", "*.bin", "*.pt", "*.pth", "*.gguf", "*.msgpack", "*.h5", "*.onnx")

SHALLOW = 12
"""Layers up to which every one is recorded, unless told otherwise."""


@dataclass(frozen=True)
class Offer:
    """What a recorder will write, decided before it begins.

    Attributes:
        by: who it is.
        taps: that each token's slices are.
        last: the slice after them.
        basis: of the target's distribution.
    """

    by: RecordedBy
    taps: tuple[int, ...]
    last: Last
    basis: Basis


Written = tuple[list[int], Mapping[str, Tensor]]
"""Token ids of prompt and continuation, and the tensors beside them."""


class Recorder(Protocol):
    """Who computes the hidden states."""

    def offer(self, taps: tuple[int, ...], held: TargetTables) -> Offer:
        """What it can record of these taps.

        Raises:
            Usage: not these.
            Unavailable: it does not run here, or is too old.
        """

    def texts(
        self, plan: Plan, skip: int, held: TargetTables, progress: Progress | None
    ) -> Iterator[Written]:
        """The texts in the prompts' order, without the first `skip`, one at a time.

        Raises:
            Unavailable: it failed.
        """


def wanted_taps(wish: Wish, depth: int) -> tuple[int, ...]:
    """The taps to record: the user's; of shallow targets all, else the default triple, its neighbours and the ends.

    Raises:
        Usage: the target has no such tap.
    """
    if wish.taps is not None:
        if wrong := [tap for tap in wish.taps if tap > depth]:
            raise Usage(f"--taps {wrong[0]}: this target has taps 0 to {depth}.")
        return tuple(sorted(set(wish.taps)))
    triple = default_taps(depth)
    if depth <= SHALLOW or triple is None:
        return tuple(range(depth + 1))
    near = {tap + step for tap in triple for step in (-1, 0, 1)}
    return tuple(sorted({0, depth, *near}))


def record(
    wish: Wish, recorder: Recorder, *, watch: Watch = unwatched, say: "Say" = print
) -> StreamsManifest:
    """Record a target.

    Args:
        wish: the user's.
        recorder: who computes.
        watch: shows progress over tokens.
        say: tells the size to come.

    Raises:
        Refused: the target lacks what recordings are measured with.
        Usage: wrong options, prompts or place.
        Unavailable: disk, network, memory or the engine failed.
    """
    wish.check()
    with enough_memory():
        return _record(wish, recorder, watch, say)


def _record(wish: Wish, recorder: Recorder, watch: Watch, say: "Say") -> StreamsManifest:
    device = resolve_device(wish.device)
    held = TargetTables.open(
        wish.target,
        device=device,
        dtype=DTYPES[wish.dtype],
        trust_remote_code=wish.trust_remote_code,
    )
    given = prompts_of(wish)
    prompts = encoded(wish, held, given)
    offer = recorder.offer(wanted_taps(wish, held.depth), held)
    plan = Plan(
        target=held.described(),
        by=offer.by,
        dtype=wish.dtype,
        taps=offer.taps,
        last=offer.last,
        basis=offer.basis,
        new_tokens=wish.new_tokens,
        lookahead=wish.lookahead,
        prompts=prompts,
        source="bundled" if wish.prompts is None else str(wish.prompts),
        categories=tuple(prompt.category for prompt in given),
    )
    store = Store(wish.out, plan)
    say(plan.spoken())
    if store.done:
        say(f"{store.done} texts are there from an interrupted run.")
    left = len(prompts) - store.done
    if left:
        with watch("recording", left * (plan.new_tokens + plan.lookahead)) as progress:
            for tokens, tensors in recorder.texts(plan, store.done, held, progress):
                store.add(tokens, tensors)
    return store.finish()


def prompts_of(wish: Wish) -> list[Prompt]:
    """The prompts.

    Raises:
        Usage: they do not parse, or bring continuations along.
    """
    prompts = bundled_prompts() if wish.prompts is None else read_prompts(wish.prompts)
    if any(prompt.completion is not None for prompt in prompts):
        raise Usage(
            "--prompts: completion_token_ids stand in it, and what is recorded is written by the target: leave "
            "them out."
        )
    return prompts


def encoded(wish: Wish, held: TargetTables, prompts: list[Prompt]) -> tuple[tuple[int, ...], ...]:
    """The prompts' token ids.

    Raises:
        Usage: the target does not take one of them.
    """
    path = _without_weights(held)
    tokenizer = load_tokenizer(path, trust_remote_code=wish.trust_remote_code)
    return tuple(
        encode(
            prompts,
            tokenizer,
            held.vocabulary_size,
            positions=held.checkpoint.max_position,
            room=wish.new_tokens + wish.lookahead + 1,
        )
    )


def _without_weights(held: TargetTables) -> str:
    """A folder of the target's tokenizer and config: its weights are nothing that prompts need.

    Raises:
        Unavailable: the Hub did not give them.
    """
    folder = held.checkpoint.folder
    if isinstance(folder, LocalFolder):
        return str(folder.folder)
    from huggingface_hub import snapshot_download

    try:
        return str(
            snapshot_download(
                str(folder.name), revision=folder.revision, ignore_patterns=list(WEIGHTS)
            )
        )
    except Exception as error:
        raise Unavailable(f"{folder.label}: {str(error).partition(chr(10))[0]}") from error


class Say(Protocol):
    """Tells the user a line."""

    def __call__(self, text: str, /) -> object:
        """Tell it."""


def sound(number: int, states: Sequence[Tensor]) -> None:
    """Refuse what holds NaN or infinite values before it is written.

    Raises:
        Unavailable: it does.
    """
    for one in states:
        if not bool(torch.isfinite(one).all()):
            raise Unavailable(
                f"text {number}: the target's hidden states hold NaN or infinite values; float16 overflows "
                "where bfloat16 does not."
            )
