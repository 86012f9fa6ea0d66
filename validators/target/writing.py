"""Texts that the target writes, and the features of every token that it reads on the way.

A token passes the target once. What is known of a text (its prompt, and a completion from elsewhere) is read in
one pass, which also tells whether the completion is the target's own choice. What is missing is written from
there on the same cache, and whoever has enough leaves the batch. What a draft needs is caught as it goes by.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from eagle3_interop.validators.network.reference import Features
from eagle3_interop.validators.target.cache import made_roomy, selectable
from eagle3_interop.validators.target.running import Progress, Target, pack
from eagle3_interop.validators.target.texts import Text

TOKEN_BUDGET = 16384
"""Tokens, padding included, that one group may hold in the target's cache."""


@dataclass(frozen=True)
class Order:
    """What shall be written.

    Attributes:
        prompts: token ids, none of them empty.
        new_tokens: tokens to score of each text.
        extra: tokens after those: as many as the longest draft.
        given: completions from elsewhere, or None for those that the target shall write; a shorter one is
            scored at its own length.
        stop_ids: end-of-sequence ids at which a text's scored part ends (the id included); without any a text
            never ends early, as with ``ignore_eos`` in the engines.
        temperature: 0 for greedy.
        seed: of the sampling.
    """

    prompts: Sequence[Sequence[int]]
    new_tokens: int
    extra: int
    given: Sequence[Sequence[int] | None] | None = None
    stop_ids: Sequence[int] = ()
    temperature: float = 0.0
    seed: int = 0


@dataclass(frozen=True)
class Written:
    """Texts that were written together.

    Attributes:
        indices: which of the order's prompts these are.
        texts: of those.
        features: text by text, at all positions but the last token's that was written; zero beyond.
        given: tokens that came from elsewhere.
        wrong: how many of those are not the target's own greedy choice.
    """

    indices: list[int]
    texts: list[Text]
    features: Features
    given: int
    wrong: int


@dataclass
class Texts:
    """All texts of an order, in its order, gathered as their groups come by.

    Attributes:
        texts: what is there so far.
        given: tokens that came from elsewhere.
        disagreements: how many of those are not the target's own greedy choice.
    """

    given: int = 0
    disagreements: int = 0
    _found: dict[int, Text] = field(default_factory=dict)

    @property
    def texts(self) -> tuple[Text, ...]:
        """In the prompts' order."""
        return tuple(self._found[index] for index in sorted(self._found))

    def through(self, groups: Iterable[Written]) -> Iterator[Written]:
        """The same groups, noted."""
        for group in groups:
            self._found.update(zip(group.indices, group.texts, strict=True))
            self.given += group.given
            self.disagreements += group.wrong
            yield group


def write_texts(
    target: Target,
    prompts: Sequence[Sequence[int]],
    new_tokens: int,
    extra: int,
    *,
    given: Sequence[Sequence[int] | None] | None = None,
    stop_ids: Sequence[int] = (),
    temperature: float = 0.0,
    seed: int = 0,
    token_budget: int = TOKEN_BUDGET,
    progress: Progress | None = None,
) -> Texts:
    """Let the target continue each prompt; nothing is kept but the tokens. Arguments as of `Order` and `write`."""
    order = Order(prompts, new_tokens, extra, given, stop_ids, temperature, seed)
    made = Texts()
    for _ in made.through(write(target, order, (), token_budget=token_budget, progress=progress)):
        pass
    return made


def write(
    target: Target,
    order: Order,
    taps: Sequence[int],
    *,
    final: bool = False,
    token_budget: int = TOKEN_BUDGET,
    progress: Progress | None = None,
) -> Iterator[Written]:
    """Let the target continue each prompt by exactly the scored tokens and the extra ones.

    Memory does not grow with the number of texts: a group's features live until the next one is asked for.

    Args:
        target: writes, and judges what is given.
        order: what shall be written.
        taps: whose streams are caught, as `Draft.taps` counts them.
        final: catch the output after the final norm as well.
        token_budget: tokens a group may hold.
        progress: told the tokens of completions that are done.
    """
    generator = torch.Generator(device=target.device).manual_seed(order.seed)
    given = order.given or [None] * len(order.prompts)
    rows = [_Row.of(prompt, text, order) for prompt, text in zip(order.prompts, given, strict=True)]
    short = sorted(range(len(rows)), key=lambda i: rows[i].length)
    for group in pack([rows[i].end for i in short], token_budget):
        indices = [short[i] for i in group]
        pen = _Pen(target, [rows[i] for i in indices], order, taps, final, generator)
        yield pen.written(indices, progress)
        for index in indices:
            rows[index].completion = []


@dataclass
class _Row:
    """One text while it is written: prompt, completion so far, and how far it shall go."""

    prompt: tuple[int, ...]
    completion: list[int]
    scored: int
    extra: int
    given: int

    @classmethod
    def of(cls, prompt: Sequence[int], given: Sequence[int] | None, order: Order) -> "_Row":
        known = list(given or ())[: order.new_tokens + order.extra]
        scored = min(order.new_tokens, len(known)) if known else order.new_tokens
        row = cls(tuple(prompt), known, scored, order.extra, len(known))
        ends = (i for i, token in enumerate(known[:scored], 1) if token in order.stop_ids)
        row.scored = next(ends, scored)
        return row

    @property
    def length(self) -> int:
        return len(self.prompt) + len(self.completion)

    @property
    def end(self) -> int:
        """Length that it has in the end, unless it stops before."""
        return max(self.length, len(self.prompt) + self.scored + self.extra)

    @property
    def ready(self) -> bool:
        return len(self.completion) >= self.scored + self.extra

    def add(self, token: int, stop_ids: Sequence[int]) -> None:
        self.completion.append(token)
        if token in stop_ids and len(self.completion) < self.scored:
            self.scored = len(self.completion)


class _Pen:
    """Writes one group."""

    def __init__(
        self,
        target: Target,
        rows: list[_Row],
        order: Order,
        taps: Sequence[int],
        final: bool,
        generator: torch.Generator,
    ) -> None:
        self.target, self.rows, self.order = target, rows, order
        self.taps, self.generator = sorted(set(taps)), generator
        self.caught = _Caught(len(rows), max(row.end for row in rows), final)

    def written(self, indices: list[int], progress: Progress | None) -> Written:
        given, wrong = sum(row.given for row in self.rows), 0
        for done, differing in self._passes():
            wrong += differing
            if progress is not None:
                progress(done)
        texts = [Text(row.prompt, tuple(row.completion), row.scored) for row in self.rows]
        return Written(indices, texts, self.caught.features(self.target.device), given, wrong)

    @torch.no_grad()
    def _passes(self) -> Iterator[tuple[int, int]]:
        """Pass by pass: tokens of completions that it settled, and how many given ones it disagrees with."""
        rows, lengths = self.rows, [row.length for row in self.rows]
        longest, writes = max(lengths), not all(row.ready for row in self.rows)
        # New tokens follow the last column, so what they continue has to end there. Where nothing is to be
        # written, texts begin at the first column: attention is causal, and needs no mask then.
        shifts = torch.tensor([longest - n if writes else 0 for n in lengths])
        columns = torch.arange(longest)
        tokens, held = torch.zeros(len(rows), longest, dtype=torch.long), columns >= shifts[:, None]
        for row, shift, into in zip(rows, shifts.tolist(), tokens, strict=True):
            into[shift : shift + row.length] = torch.tensor([*row.prompt, *row.completion])
        positions = (columns - shifts[:, None]).clamp(min=0)
        mask = held.long() if bool(shifts.any()) else None
        out, streams = self._read(tokens, positions, mask, None, writes=writes)
        self.caught.block(streams, shifts.tolist(), lengths)
        yield sum(row.given for row in rows), self._wrong(out.last_hidden_state, shifts.tolist())
        if not writes:
            return
        last, cache = out.last_hidden_state[:, -1], made_roomy(out[self.target.cache_name])
        present, may_leave = list(range(len(rows))), selectable(cache)
        while True:
            tokens = self._choose(last)
            open_rows = [row for i in present if not (row := rows[i]).ready]
            for i, token in zip(present, tokens.tolist(), strict=True):
                if not rows[i].ready:
                    rows[i].add(token, self.order.stop_ids)
            yield len(open_rows), 0
            staying = [n for n, i in enumerate(present) if not rows[i].ready]
            if not staying:
                return
            if may_leave and len(staying) < len(present):
                chosen = torch.tensor(staying, device=self.target.device)
                cache.batch_select_indices(chosen)
                tokens, present = tokens[chosen], [present[n] for n in staying]
                mask = mask if mask is None else mask[staying]
            if mask is not None:
                mask = torch.cat([mask, mask.new_ones(len(present), 1)], dim=1)
            at = torch.tensor([rows[i].length - 1 for i in present])
            out, streams = self._read(tokens[:, None], at[:, None], mask, cache, writes=True)
            self.caught.column(streams, present, at)
            last, cache = out.last_hidden_state[:, -1], out[self.target.cache_name]

    def _read(
        self,
        tokens: Tensor,
        positions: Tensor,
        mask: Tensor | None,
        cache: Any,  # noqa: ANN401 - the model's own
        *,
        writes: bool,
    ) -> tuple[Any, dict[int | str, Tensor]]:
        device = self.target.device
        out, streams = self.target.run(
            self.taps,
            input_ids=tokens.to(device),
            attention_mask=None if mask is None else mask.to(device),
            position_ids=positions.to(device),
            use_cache=writes,
            **{self.target.cache_name: cache},
        )
        caught: dict[int | str, Tensor] = {"final": out.last_hidden_state}
        caught.update(streams.items())
        return out, caught

    def _choose(self, last: Tensor) -> Tensor:
        """The next token of each row, [B, H] to [B]."""
        logits = self.target.logits(last)
        if self.order.temperature == 0:
            return logits.argmax(dim=-1)
        shares = (logits / self.order.temperature).softmax(dim=-1)
        return torch.multinomial(shares, 1, generator=self.generator)[:, 0]

    def _wrong(self, final: Tensor, shifts: list[int]) -> int:
        """Given tokens that the target would not have chosen."""
        wrong = 0
        for row, states, shift in zip(self.rows, final, shifts, strict=True):
            first = shift + len(row.prompt) - 1
            if row.given:
                best = self.target.greedy(states[first : first + row.given]).tolist()
                wrong += sum(a != b for a, b in zip(best, row.completion, strict=False))
        return wrong


class _Caught:
    """Streams of a group's texts, each from its first token on."""

    def __init__(self, rows: int, columns: int, final: bool) -> None:
        self.size = (rows, columns)
        self.final = final
        self.kept: dict[int | str, Tensor] = {}

    def _of(self, name: int | str, like: Tensor) -> Tensor:
        """Zero where no text is: values that are weighted by nothing must be numbers."""
        if name not in self.kept:
            self.kept[name] = like.new_zeros(*self.size, like.shape[-1])
        return self.kept[name]

    def _wanted(self, streams: dict[int | str, Tensor]) -> Iterator[tuple[Tensor, Tensor]]:
        for name, stream in streams.items():
            if name != "final" or self.final:
                yield self._of(name, stream), stream

    def block(
        self, streams: dict[int | str, Tensor], shifts: list[int], lengths: list[int]
    ) -> None:
        """Keep a pass over whole texts, each of which begins at its shift."""
        for kept, stream in self._wanted(streams):
            for into, x, shift, length in zip(kept, stream, shifts, lengths, strict=True):
                into[:length] = x[shift : shift + length]

    def column(self, streams: dict[int | str, Tensor], rows: list[int], at: Tensor) -> None:
        """Keep a pass over one token of some texts."""
        for kept, stream in self._wanted(streams):
            kept[torch.tensor(rows, device=kept.device), at.to(kept.device)] = stream[:, 0]

    def features(self, device: torch.device) -> Features:
        taps = {name: stream for name, stream in self.kept.items() if isinstance(name, int)}
        return Features(taps, self.kept.get("final", torch.empty(*self.size, 0, device=device)))
