"""Everything that a target could have handed to a draft, from one pass: every layer's stream, three ways.

Texts lie one after another in one long list of positions, without padding. For each of the 0..L depths
there is the residual stream, the last sub-layer's output without the residual (what a hook on an engine's
fused layer records, which returns the two apart), and the stream after the next norm. They are kept in
bfloat16, on disk where they would take more memory than allowed.
"""

import math
import tempfile
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

from eagle3_interop.schemas.findings import Unavailable
from eagle3_interop.validators.diagnose.wiring import (
    NORMED,
    RESCALED,
    STREAM,
    SUBLAYER,
    Subject,
    Wiring,
)
from eagle3_interop.validators.network.reference import rms_norm
from eagle3_interop.validators.target.running import Progress, Target, pack
from eagle3_interop.validators.target.source import Source
from eagle3_interop.validators.target.texts import Text

MEMORY = 4 << 30
"""Bytes of streams that are kept in memory; beyond it they lie in a temporary folder."""

PRODUCTS = 1 << 27
"""Bytes of fc's products that are kept."""

AT_ONCE = 2048
"""Tokens of a pass: all depths of it exist at once."""


@dataclass
class Streams:
    """The streams of some texts.

    Attributes:
        texts: in the order in which their positions lie.
        offsets: first position of each text.
        depth: layers of the target, L.
        final: [N, T], the target's output after its final norm, in the target's dtype.
        kept: (tap, read) to [N, T] in bfloat16.
        scale: factor between the embedding table's rows and the stream at depth 0.
        on_disk: the streams lie in a temporary folder.
    """

    texts: Sequence[Text]
    offsets: list[int]
    depth: int
    final: Tensor
    kept: dict[tuple[int, str], Tensor]
    scale: float = 1.0
    on_disk: bool = False
    _folder: tempfile.TemporaryDirectory[str] | None = field(default=None, repr=False)

    def read(self, tap: int, read: str, count: int) -> Tensor:
        """The first `count` positions of a stream, as a block of fc could read it."""
        if read == RESCALED:
            factor = 1 / self.scale if self.scale != 1 else self.width**0.5
            return self.kept[tap, STREAM][:count] * factor
        return self.kept[tap, read][:count]

    @property
    def count(self) -> int:
        """Positions in all."""
        return len(self.final)

    @property
    def width(self) -> int:
        """Of a stream."""
        return int(self.final.shape[-1])

    @property
    def untried(self) -> tuple[int, ...]:
        """Taps of the target of which there is no stream."""
        return ()

    def ends(self, count: int) -> Tensor:
        """The target's output after its final norm, at the first `count` positions."""
        return self.final[:count]

    def likely(self, target: Source, first: int, last: int) -> Tensor:
        """[last - first, V], logits of the target's distribution at some positions."""
        return target.logits(self.final[first:last].to(target.device))

    def reads(self, tap: int) -> list[str]:
        """What can be read at a depth."""
        found = [read for read in (STREAM, SUBLAYER, NORMED) if (tap, read) in self.kept]
        return [*found, RESCALED] if tap == 0 else found

    def close(self) -> None:
        """Remove what lies on disk."""
        self.kept.clear()
        if self._folder is not None:
            self._folder.cleanup()


def capture(
    target: Target,
    texts: Sequence[Text],
    *,
    memory: int = MEMORY,
    progress: Progress | None = None,
) -> Streams:
    """Run the target once over the texts and keep what it computed at every depth.

    Args:
        target: the target.
        texts: to lie in this order.
        memory: bytes that the streams may take of main memory.
        progress: told the tokens done.

    Raises:
        Unavailable: they fit neither there nor on the disk.
    """
    lengths = [len(text) for text in texts]
    offsets = [sum(lengths[:i]) for i in range(len(texts))]
    count, width, depth = sum(lengths), target.hidden_size, target.depth
    places = (depth + 1) * 3
    folder = None
    if count * width * 2 * places > memory:
        folder = tempfile.TemporaryDirectory(prefix="eagle3-streams-", ignore_cleanup_errors=True)
    store = _Store(count, width, Path(folder.name) if folder else None)
    final = torch.empty(count, width, dtype=target.model.dtype)
    budget = max(1, memory // (places * width * 4))
    for group in pack(lengths, min(AT_ONCE, budget)):
        rows = [[*texts[i].prompt, *texts[i].completion] for i in group]
        longest = max(map(len, rows))
        tokens = torch.tensor([[*row, *[0] * (longest - len(row))] for row in rows])
        spans = [(offsets[i], len(row)) for i, row in zip(group, rows, strict=True)]
        with _sublayers(target, partial(store.put, spans=spans)):
            features = target.features(tokens, range(depth + 1))
        for tap, stream in features.taps.items():
            store.put(tap, STREAM, stream, spans)
        store.put(depth, NORMED, features.final, spans)
        for row, (first, length) in zip(features.final, spans, strict=True):
            final[first : first + length] = row[:length].to("cpu")
        if progress is not None:
            progress(sum(map(len, rows)))
    found = Streams(texts, offsets, depth, final, store.kept, 1.0, folder is not None, folder)
    found.scale = _scale(target, found)
    return found


class _Store:
    """Tensors of N positions, filled text by text."""

    def __init__(self, count: int, width: int, folder: Path | None) -> None:
        self.shape = (count, width)
        self.folder = folder
        self.kept: dict[tuple[int, str], Tensor] = {}

    def put(self, tap: int, read: str, x: Tensor, spans: Sequence[tuple[int, int]]) -> None:
        if x.shape[-1] != self.shape[1]:
            return
        if (tap, read) not in self.kept:
            self.kept[tap, read] = self._new(f"{tap}-{read}")
        held = self.kept[tap, read]
        for row, (first, length) in zip(x, spans, strict=True):
            held[first : first + length] = row[:length].to("cpu", torch.bfloat16)

    def _new(self, name: str) -> Tensor:
        if self.folder is None:
            return torch.empty(self.shape, dtype=torch.bfloat16)
        size = math.prod(self.shape)
        try:
            flat: Tensor = torch.from_file(
                str(self.folder / name), shared=True, size=size, dtype=torch.bfloat16
            )
        except RuntimeError as error:
            message = f"{self.folder}: no room for the target's streams; give fewer prompts"
            raise Unavailable(message) from error
        return flat.view(self.shape)


@contextmanager
def _sublayers(target: Target, put: Callable[[int, str, Tensor], object]) -> Iterator[None]:
    """Hooks that hand over each layer's first norm and its last sub-layer's output.

    By structure, not by name: of a layer's own children, the first that runs is the norm before attention
    if it only holds vectors, and the last that runs is what is added to the residual.
    """
    seen: dict[int, list[tuple[nn.Module, Any]]] = {}

    def child(index: int) -> Callable[..., None]:
        def hook(module: nn.Module, _args: Any, output: Any) -> None:  # noqa: ANN401
            seen.setdefault(index, [])[1:] = [(module, output)]

        return hook

    def whole(index: int) -> Callable[..., None]:
        def hook(_module: nn.Module, _args: Any, _output: Any) -> None:  # noqa: ANN401
            ran = seen.pop(index, [])
            if len(ran) < 2:
                return
            (first, entry), (_, last) = ran[0], ran[-1]
            if isinstance(entry, Tensor) and all(p.dim() <= 1 for p in first.parameters()):
                put(index, NORMED, entry)
            last = last[0] if isinstance(last, tuple) else last
            if isinstance(last, Tensor):
                put(index + 1, SUBLAYER, last)

        return hook

    with ExitStack() as stack:
        for index, layer in enumerate(target.layers):
            for module in layer.children():
                stack.callback(module.register_forward_hook(child(index)).remove)
            stack.callback(layer.register_forward_hook(whole(index)).remove)
        yield


def _scale(target: Target, streams: Streams) -> float:
    """How much longer the stream at depth 0 is than the table's rows; 1 unless it clearly differs."""
    text = streams.texts[0]
    tokens = torch.tensor([*text.prompt, *text.completion])
    rows = target.tables().embeddings[tokens.to(target.device)].float().norm().item()
    found = streams.kept[0, STREAM][: len(text)].float().norm().item() / max(rows, 1e-12)
    return 1.0 if abs(found - 1) < 0.02 else found


class Fusion:
    """fc over the streams, block by block: a hypothesis about taps is a sum of a few kept tensors.

    A norm over the whole concatenation keeps this form: its weights scale fc's columns, and its mean square is
    the mean of the blocks' own. Only the two norms together are computed whole.
    """

    def __init__(self, subject: Subject, streams: Streams, cap: int = PRODUCTS) -> None:
        """Keep both; nothing is computed yet."""
        self.subject = subject
        self.streams = streams
        self._cap = cap
        self._kept: OrderedDict[tuple[Any, ...], tuple[Tensor, Tensor]] = OrderedDict()
        self._bytes = 0

    @torch.no_grad()
    def hidden(self, wiring: Wiring, count: int) -> Tensor:
        """[count, H], fc's output at the first positions (the target's own output without fc)."""
        subject, flags = self.subject, dict(wiring.flags)
        network = subject.network(wiring)
        fc = network.draft.fc
        if fc is None:
            return self._placed(self.streams.ends(count))
        if fc.input_norm and fc.block_norms:
            return self._whole(wiring, count)
        parts = [self._part(wiring, flags, block, count) for block in range(fc.blocks)]
        total = torch.stack([product for product, _ in parts]).sum(dim=0)
        if fc.input_norm:
            width = fc.blocks * subject.draft.target.hidden_size
            square = torch.stack([squares for _, squares in parts]).sum(dim=0) / width
            total = total * torch.rsqrt(square + subject.draft.layers.norm_eps).to(total.dtype)
        return total + subject.weights["fc.bias"] if fc.bias else total

    def _part(
        self, wiring: Wiring, flags: dict[str, str], block: int, count: int
    ) -> tuple[Tensor, Tensor]:
        """A block's product, and the square sums of what it reads."""
        tap, read = wiring.taps[block], wiring.reads[block]
        key = (block, tap, read, flags["input_norm"], flags["block_norms"], count)
        if key in self._kept:
            self._kept.move_to_end(key)
            return self._kept[key]
        x = self._placed(self.streams.read(tap, read, count))
        network, width = self.subject.network(wiring), x.shape[-1]
        columns = slice(block * width, (block + 1) * width)
        weight = network.weights["fc.weight"][:, columns]
        squares = x.new_zeros(len(x), 1, dtype=torch.float32)
        if flags["input_norm"] == "on":
            weight = weight * network.weights["input_norm.weight"][columns]
            squares = x.float().square().sum(dim=-1, keepdim=True)
        elif flags["block_norms"] == "on":
            eps = self.subject.draft.layers.norm_eps
            x = rms_norm(x, network.weights[f"fc_norm.{block}.weight"], eps)
        return self._keep(key, (F.linear(x, weight), squares))

    def _keep(self, key: tuple[Any, ...], made: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        self._kept[key] = made
        self._bytes += _size(made)
        while self._bytes > self._cap and len(self._kept) > 1:
            self._bytes -= _size(self._kept.popitem(last=False)[1])
        return made

    def _whole(self, wiring: Wiring, count: int) -> Tensor:
        network, eps = self.subject.network(wiring), self.subject.draft.layers.norm_eps
        read = [self.streams.read(*at, count) for at in zip(wiring.taps, wiring.reads, strict=True)]
        x = rms_norm(
            self._placed(torch.cat(read, dim=-1)), network.weights["input_norm.weight"], eps
        )
        blocks = x.chunk(len(read), dim=-1)
        normed = [
            rms_norm(block, network.weights[f"fc_norm.{i}.weight"], eps)
            for i, block in enumerate(blocks)
        ]
        bias = network.weights["fc.bias"] if network.draft.fc and network.draft.fc.bias else None
        return F.linear(torch.cat(normed, dim=-1), network.weights["fc.weight"], bias)

    def _placed(self, x: Tensor) -> Tensor:
        return x.to(self.subject.weights.device, self.subject.weights.dtype)


def _size(made: tuple[Tensor, Tensor]) -> int:
    return sum(x.numel() * x.element_size() for x in made)
