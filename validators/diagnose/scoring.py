"""How well a wiring fits: the cross-entropy that training minimised, and the acceptance that users see.

The score of a wiring is the cross-entropy between the target's distribution, restricted to the draft's
vocabulary, and the draft's own, in nats, averaged over all start positions and summed over the depths
0..3. The target's half is one vector a position: with p the target's probabilities and W the head, the sum
of p times logits is ``normed . (p W)``, so that a wiring costs its logits' normaliser and a dot product.

**Equal knowledge.** Scores of wirings can be compared where each of them predicts the same token from the same
features. Depth d of a draft that starts at p predicts x[p+2+d], and has read features up to p: unless they are
shifted. With shift 1 it has read those of p+1 too, which are what the target itself predicts x[p+2] from: any draft
fits better so, trained that way or not. So a shifted draft is started where its features end as all others' do, one
position earlier for shift 1, and scored on the same tokens: its depths 1..4. For shift -1 it is one position later,
depths 0..2; before that it cannot have read the last feature, and does without.
"""

import itertools
import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass

import torch
from torch import Tensor

from eagle3_interop.schemas.intervals import paired_interval, ratio_interval
from eagle3_interop.schemas.parameters import shapes
from eagle3_interop.validators.accept.acceptance import walk
from eagle3_interop.validators.accept.drafting import CHUNK, Batch, draft_steps
from eagle3_interop.validators.diagnose.wiring import Subject, Wired, Wiring
from eagle3_interop.validators.network.reference import Features
from eagle3_interop.validators.target.captured import Fusion, Streams
from eagle3_interop.validators.target.running import pack
from eagle3_interop.validators.target.source import Source
from eagle3_interop.validators.target.texts import Text

DEPTHS = 4
"""Depths that the score sums over."""

SIEVE_STARTS = 640
"""Start positions of the sieve; its texts lie first."""

TOGETHER = 4096
"""Tokens that a draft runs over at once."""

WIDE = 256
"""Positions whose logits over the target's whole vocabulary exist at once."""

HEAT = 4
"""The sieve's texts are scored in two heats, the first one of this part of them."""

LOST = {1: 0.3, DEPTHS: 0.8}
"""Nats, by the depths summed over, by which a wiring that lies behind after the first heat runs no second one. Two
wirings differ from one position to the next by about a nat a depth; these are more than three standard errors."""

UNITS, PIECE = 8, 6
"""Fewest pieces that texts are cut into, where there are fewer texts, and fewest start positions of a piece."""


@dataclass(frozen=True)
class Result:
    """What a wiring did on every text.

    Attributes:
        wiring: the hypothesis.
        starts: [m], start positions of each unit: a text, or a piece of one where there are few texts.
        entropy: [m, DEPTHS], summed cross-entropy of each.
        steps: [n], verification steps of each text.
        accepted: [n], draft tokens that were accepted.
    """

    wiring: Wiring
    starts: Tensor
    entropy: Tensor
    steps: Tensor
    accepted: Tensor

    @property
    def score(self) -> float:
        """Cross-entropy summed over the depths."""
        return float(self.entropy.sum() / self.starts.sum())

    @property
    def by_depth(self) -> list[float]:
        """The same, depth by depth."""
        found: list[float] = (self.entropy.sum(dim=0) / self.starts.sum()).tolist()
        return found

    @property
    def accept_length(self) -> float:
        """Tokens a step."""
        return 1 + float(self.accepted.sum() / self.steps.sum())

    def interval(self, seed: int = 0) -> tuple[float, float]:
        """95 % bootstrap interval of the accept length, over prompts."""
        low, high = ratio_interval(self.accepted, self.steps, seed)
        return 1 + low, 1 + high

    def gain(self, other: "Result") -> float:
        """How much lower this score is than another's."""
        return other.score - self.score

    def gain_interval(self, other: "Result", level: float = 0.95) -> tuple[float, float]:
        """Interval of the gain over texts, or pieces of them, both scored on the same."""
        return paired_interval((other.entropy - self.entropy).sum(dim=1), self.starts, level)

    def lengthening(self, other: "Result") -> tuple[float, float]:
        """Interval of how much longer this accept length is, over texts, both on the same."""
        ratios = [one.accepted.sum() / one.steps.sum() for one in (self, other)]
        residuals = [
            (one.accepted - ratio * one.steps) / one.steps.mean()
            for one, ratio in zip((self, other), ratios, strict=True)
        ]
        shift = float(ratios[0] - ratios[1])
        low, high = paired_interval(residuals[0] - residuals[1], torch.ones_like(self.steps))
        return shift + low, shift + high


@dataclass(frozen=True)
class Sheet:
    """Some texts, right-padded, and where their positions lie in the streams.

    Attributes:
        indices: of the texts.
        tokens: [B, L].
        starts: [B, S]; the padding repeats the last one.
        valid: [B, S].
        first: [B, 1], place of each text's first position.
        last: [B, 1], position of each text's last token.
        length: positions that a draft runs over.
    """

    indices: list[int]
    tokens: Tensor
    starts: Tensor
    valid: Tensor
    first: Tensor
    last: Tensor
    length: int

    def places(self, shift: int) -> Tensor:
        """[B, T], where the features of each position lie; T reaches as far as any start may."""
        length = self.length + max(0, -shift)
        positions = torch.arange(length, device=self.first.device) + shift
        return self.first + torch.minimum(positions.clamp(min=0), self.last)

    def begun(self, shift: int, fused: Tensor) -> Batch:
        """The drafts that have read features up to each start, and no further.

        With a negative shift there is one column more: the drafts that start at the first positions themselves.
        """
        starts = (self.starts - shift).clamp(min=0)
        valid = self.valid
        if shift < 0:
            starts = torch.cat([self.starts[:, :1], starts], dim=1)
            valid = torch.cat([self.valid[:, :1], valid], dim=1)
        return Batch(self.indices, self.tokens, starts, valid, Features({}, fused))


def order_texts(texts: Sequence[Text]) -> tuple[list[Text], int]:
    """The sieve's texts first, spread over all, and among them those of the first heat; and how many the sieve has."""
    usable = [text for text in texts if text.scored > 1]
    average = sum(len(text.starts) for text in usable) / max(1, len(usable))
    wanted = min(len(usable), max(1, round(SIEVE_STARTS / max(average, 1))))
    sieve, rest = _spread(usable, wanted)
    heat, others = _spread(sieve, math.ceil(wanted / HEAT)) if sieve else ([], [])
    return heat + others + rest, len(sieve)


def _spread(texts: Sequence[Text], count: int) -> tuple[list[Text], list[Text]]:
    """So many of these texts, evenly spread, and the others."""
    chosen = {i * len(texts) // count for i in range(count)}
    taken = [text for i, text in enumerate(texts) if i in chosen]
    return taken, [text for i, text in enumerate(texts) if i not in chosen]


@contextmanager
def _quickly() -> Iterator[None]:
    """Let a CPU that can multiply in bfloat16 do so: three times as fast, and off by 0.0002 nats a score.

    Only the search, whose steps are ten times as large, is scored so; what is reported never is.
    """
    matmul = getattr(torch.backends.mkldnn, "matmul", None)
    before = getattr(matmul, "fp32_precision", None)
    if before is None:
        yield
        return
    setattr(matmul, "fp32_precision", "bf16")  # noqa: B010
    try:
        yield
    finally:
        setattr(matmul, "fp32_precision", before)  # noqa: B010


def _cut(counts: Sequence[int]) -> list[Tensor]:
    """Of each text's start positions, the unit of each: the text, or a piece of it where there are few texts."""
    pieces = -(-UNITS // max(1, len(counts)))
    units, first = [], 0
    for count in counts:
        parts = max(1, min(pieces, count // PIECE)) if len(counts) < UNITS else 1
        units.append(first + torch.arange(count) * parts // count)
        first += parts
    return units


def sheets(streams: Streams, indices: Sequence[int], device: torch.device) -> list[Sheet]:
    """Batches of these texts, of so many tokens."""
    order = sorted(indices, key=lambda i: len(streams.texts[i]))
    groups = pack([len(streams.texts[i]) for i in order], TOGETHER)
    return [_sheet(streams, [order[i] for i in group], device) for group in groups]


def _sheet(streams: Streams, indices: list[int], device: torch.device) -> Sheet:
    texts = [streams.texts[i] for i in indices]
    longest = max(map(len, texts))
    rows = [[*text.prompt, *text.completion, *[0] * (longest - len(text))] for text in texts]
    counts = torch.tensor([len(text.starts) for text in texts])[:, None]
    columns = torch.arange(int(counts.max()))
    starts = torch.tensor([text.starts[0] for text in texts])[:, None]
    starts = starts + torch.minimum(columns, counts - 1)
    return Sheet(
        indices,
        torch.tensor(rows, device=device),
        starts.to(device),
        (columns < counts).to(device),
        torch.tensor([streams.offsets[i] for i in indices], device=device)[:, None],
        torch.tensor([len(text) - 1 for text in texts], device=device)[:, None],
        int(starts.max()) + 1,
    )


class Evaluator:
    """Scores wirings of one draft on one target's streams; every figure is computed once.

    Attributes:
        subject: the weights.
        streams: of the target.
        spent: wirings scored, at any of the three levels.
    """

    def __init__(
        self, subject: Subject, target: Source, streams: Streams, sieve: int, steps: int = 3
    ) -> None:
        """Prepare the batches.

        Args:
            subject: the weights.
            target: gives the distributions.
            streams: of the target, the sieve's texts first.
            sieve: how many texts those are.
            steps: draft tokens a step of the acceptance that is told.
        """
        self.subject = subject
        self.streams = streams
        self.steps = steps
        self.fusion = Fusion(subject, streams)
        self._target = target
        device = subject.weights.device
        everything = range(len(streams.texts))
        heat = math.ceil(sieve / HEAT)
        self._heat = sheets(streams, range(heat), device)
        self._rest = sheets(streams, range(heat, sieve), device)
        self._all = sheets(streams, everything, device)
        self._units = _cut([len(text.starts) for text in streams.texts])
        self._starts = torch.cat(self._units).bincount().double()
        self._leaders: dict[int, tuple[float, float]] = {}
        self._small_count = sum(len(streams.texts[i]) for i in range(sieve))
        self._expected: dict[tuple[str, int], Tensor] = {}
        self._sieve: dict[Wiring, float] = {}
        self._deep: dict[Wiring, float] = {}
        self._results: dict[Wiring, Result] = {}

    @property
    def work(self) -> float:
        """Multiplications of scoring a wiring on all texts, roughly: each position once, each start at every depth."""
        draft = self.subject.draft
        head = draft.vocabulary.draft_size * draft.hidden_size
        tables = ("embed_tokens.weight", "lm_head.weight", "d2t", "t2d")
        sizes = {
            name: math.prod(shape) for name, shape in shapes(draft).items() if name not in tables
        }
        layers = sum(sizes.values())
        starts = sum(len(text.starts) for text in self.streams.texts)
        return self.streams.count * layers + starts * DEPTHS * (layers + head)

    @property
    def tried(self) -> set[Wiring]:
        """Every wiring that was scored."""
        return {*self._sieve, *self._deep, *self._results}

    def sieve(self, wiring: Wiring) -> float:
        """Cross-entropy at depth 0 on the sieve's texts."""
        if wiring not in self._sieve:
            self._sieve[wiring] = self._raced(wiring, 1)
        return self._sieve[wiring]

    def sieved(self, wiring: Wiring) -> float | None:
        """The same, where it was computed already."""
        return self._sieve.get(wiring)

    def deep(self, wiring: Wiring) -> float:
        """Cross-entropy over all depths on the sieve's texts."""
        if wiring not in self._deep:
            self._deep[wiring] = self._raced(wiring, DEPTHS)
        return self._deep[wiring]

    def known_deep(self) -> dict[Wiring, float]:
        """Every wiring that was scored over all depths."""
        return dict(self._deep)

    def result(self, wiring: Wiring) -> Result:
        """Score and acceptance on all texts."""
        if wiring not in self._results:
            self._results[wiring] = self._full(wiring)
        return self._results[wiring]

    @torch.no_grad()
    def constant_score(self) -> float:
        """Depth 0 of the best draft that ignores its input: each text scored by the mean of the others."""
        ids = self.subject.maps[self.subject.configured.flag("map")]
        places = torch.cat(
            [
                torch.full((len(text),), i)
                for i, text in enumerate(self.streams.texts)
                if self.streams.offsets[i] < self._small_count
            ]
        )
        sums = torch.zeros(int(places.max()) + 1, self.subject.draft.vocabulary.draft_size)
        for first, p in self._distributions(ids, self._small_count):
            sums.index_add_(0, places[first : first + len(p)], p.float().cpu())
        others = sums.sum(dim=0) - sums if len(sums) > 1 else sums
        share = others / others.sum(dim=1, keepdim=True)
        share = 0.99 * share + 0.01 / share.shape[1]
        return float(-(sums * share.log()).sum() / sums.sum())

    def _raced(self, wiring: Wiring, depths: int) -> float:
        """Score on the sieve's texts; of a wiring that is clearly lost after the first heat, what it is by that."""
        total, count = self._sums(wiring, self._heat, depths)
        leader = self._leaders.get(depths)
        if leader is not None and total / count > leader[0] + LOST[depths]:
            return leader[1] + total / count - leader[0]
        first = total / count
        more, others = self._sums(wiring, self._rest, depths)
        whole = (total + more) / (count + others)
        if leader is None or whole < leader[1]:
            self._leaders[depths] = (first, whole)
        return whole

    def _sums(self, wiring: Wiring, batches: Sequence[Sheet], depths: int) -> tuple[float, int]:
        total, count = 0.0, 0
        run = self._run(wiring, batches, self._small_count, depths, searching=True)
        for sheet, entropy, _ in run:
            total += float(entropy.sum())
            count += int(sheet.valid.sum())
        return total, count

    def _full(self, wiring: Wiring) -> Result:
        texts = self.streams.texts
        entropy = torch.zeros(len(self._starts), DEPTHS, dtype=torch.float64)
        walks = torch.zeros(len(texts), 2, dtype=torch.float64)
        depths = max(DEPTHS, self.steps)
        for sheet, found, proposed in self._run(wiring, self._all, self.streams.count, depths):
            lengths = self._lengths(sheet, proposed)
            for row, index in enumerate(sheet.indices):
                scores = found[row, : len(texts[index].starts), :DEPTHS].double().cpu()
                entropy.index_add_(0, self._units[index], scores)
                walked = (walk(lengths[row, at:].tolist(), n) for at, n in texts[index].walks)
                steps = [taken for one in walked for taken in one]
                walks[index] = torch.tensor([len(steps), sum(steps)])
        return Result(wiring, self._starts, entropy, walks[:, 0], walks[:, 1])

    @torch.no_grad()
    def _run(
        self,
        wiring: Wiring,
        batches: Sequence[Sheet],
        count: int,
        depths: int,
        *,
        searching: bool = False,
    ) -> Iterator[tuple[Sheet, Tensor, Tensor]]:
        """Each batch's cross-entropies, zero where there is no start, and proposals: [B, S, depths] both.

        A search has no use for proposals, and is computed quickly; but not what is kept for others to read.
        """
        network = self.subject.network(wiring)
        hidden = self.fusion.hidden(wiring, count)
        expected = self._expectation(wiring.flag("map"), count)
        shift = int(wiring.flag("shift"))
        for sheet in batches:
            scored = []
            with _quickly() if searching else nullcontext():
                for depth, normed in enumerate(_predictions(network, sheet, hidden, shift, depths)):
                    at = sheet.first + torch.minimum(sheet.starts + 1 + depth, sheet.last)
                    judged = _judged(
                        network, normed, expected[at], sheet.valid, propose=not searching
                    )
                    scored.append(judged)
            entropy, proposed = zip(*scored, strict=True)
            yield sheet, torch.stack(entropy, dim=-1), torch.stack(proposed, dim=-1)

    def _lengths(self, sheet: Sheet, proposed: Tensor) -> Tensor:
        """[B, S], tokens accepted from each start."""
        text = [sheet.tokens.gather(1, sheet.starts + 2 + depth) for depth in range(self.steps)]
        hits = proposed[..., : self.steps] == torch.stack(text, dim=-1)
        return hits.long().cumprod(dim=-1).sum(dim=-1)

    def _expectation(self, name: str, count: int) -> Tensor:
        """[count, H], the head's rows in the mean of the target's distribution at each position."""
        key = (name, count)
        if key not in self._expected:
            head = self.subject.weights.head
            ids = self.subject.maps[name]
            parts = [p.to(head.dtype) @ head for _, p in self._distributions(ids, count)]
            self._expected[key] = torch.cat(parts)
        return self._expected[key]

    @torch.no_grad()
    def _distributions(self, ids: Tensor | None, count: int) -> Iterator[tuple[int, Tensor]]:
        """The target's probabilities over the draft's vocabulary, a chunk of positions at a time."""
        device = self.subject.weights.device
        size = self.subject.draft.vocabulary.draft_size
        for first in range(0, count, WIDE):
            last = min(first + WIDE, count)
            logits = self.streams.likely(self._target, first, last).to(device)
            chosen = logits[:, :size] if ids is None else logits[:, ids.to(device)]
            yield first, chosen.softmax(dim=-1)


def _predictions(
    network: Wired, sheet: Sheet, hidden: Tensor, shift: int, depths: int
) -> Iterator[Tensor]:
    """[B, S, H] of each depth: the head's input for x[p+2+depth], of a draft that has read features up to p."""
    batch = sheet.begun(shift, hidden[sheet.places(shift)])
    steps = draft_steps(network, batch, max(1, depths + shift))
    if shift >= 0:
        yield from (out.normed for out in itertools.islice(steps, shift, None))
        return
    earlier = next(steps).normed
    yield earlier[:, :-1]
    later = itertools.chain([earlier], (out.normed for out in steps))
    yield from (normed[:, 1:] for normed in itertools.islice(later, depths - 1))


def _judged(
    network: Wired, normed: Tensor, expected: Tensor, valid: Tensor, *, propose: bool
) -> tuple[Tensor, Tensor]:
    """Cross-entropy and proposed token (if asked for) of each start, [B, S], zero where there is none."""
    scale = network.draft.vocabulary.logit_scale
    rows, wanted = normed[valid], expected[valid]
    entropy = rows.new_zeros(len(rows), dtype=torch.float32)
    best = torch.zeros(len(rows), dtype=torch.long, device=rows.device)
    for first in range(0, len(rows), CHUNK):
        logits = network.logits(rows[first : first + CHUNK]).float()
        entropy[first : first + CHUNK] = logits.logsumexp(dim=-1)
        if propose:
            best[first : first + CHUNK] = logits.argmax(dim=-1)
    entropy -= scale * (rows.float() * wanted.float()).sum(dim=-1)
    placed = [
        torch.zeros(valid.shape, dtype=x.dtype, device=x.device).masked_scatter(valid, x)
        for x in (entropy, network.to_target(best))
    ]
    return placed[0], placed[1]
