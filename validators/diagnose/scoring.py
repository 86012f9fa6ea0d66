"""How well a wiring fits: the cross-entropy that training minimised, and the acceptance that users see.

The score of a wiring is the cross-entropy between the target's distribution, restricted to the draft's
vocabulary, and the draft's own, in nats, averaged over all start positions and summed over the depths
0..3. The target's half is one vector a position: with p the target's probabilities and W the head, the sum
of p times logits is ``normed . (p W)``, so that a wiring costs its logits' normaliser and a dot product.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from eagle3_interop.schemas.intervals import ratio_interval
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


@dataclass(frozen=True)
class Result:
    """What a wiring did on every text.

    Attributes:
        wiring: the hypothesis.
        starts: [n], start positions of each text.
        entropy: [n, DEPTHS], summed cross-entropy of each.
        steps: [n], verification steps of each.
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

    def gain_interval(self, other: "Result", seed: int = 0) -> tuple[float, float]:
        """95 % bootstrap interval of the gain, over prompts, both scored on the same draws."""
        return ratio_interval((other.entropy - self.entropy).sum(dim=1), self.starts, seed)


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
        """[B, length], where the features of each position lie."""
        positions = torch.arange(self.length, device=self.first.device) + shift
        return self.first + torch.minimum(positions.clamp(min=0), self.last)


def order_texts(texts: Sequence[Text]) -> tuple[list[Text], int]:
    """The sieve's texts first, spread over all; and how many they are."""
    usable = [text for text in texts if text.scored > 1]
    average = sum(len(text.starts) for text in usable) / max(1, len(usable))
    wanted = min(len(usable), max(1, round(SIEVE_STARTS / max(average, 1))))
    chosen = {i * len(usable) // wanted for i in range(wanted)}
    sieve = [text for i, text in enumerate(usable) if i in chosen]
    return sieve + [text for i, text in enumerate(usable) if i not in chosen], len(sieve)


def sheets(streams: Streams, indices: Sequence[int], device: torch.device) -> list[Sheet]:
    """Batches of these texts, of about as many tokens as `drafting` takes at once."""
    order = sorted(indices, key=lambda i: len(streams.texts[i]))
    groups = pack([len(streams.texts[i]) for i in order], 8192)
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
        self._small = sheets(streams, range(sieve), device)
        self._all = sheets(streams, everything, device)
        self._small_count = sum(len(streams.texts[i]) for i in range(sieve))
        self._expected: dict[tuple[str, int], Tensor] = {}
        self._sieve: dict[Wiring, float] = {}
        self._deep: dict[Wiring, float] = {}
        self._results: dict[Wiring, Result] = {}

    @property
    def tried(self) -> set[Wiring]:
        """Every wiring that was scored."""
        return {*self._sieve, *self._deep, *self._results}

    def sieve(self, wiring: Wiring) -> float:
        """Cross-entropy at depth 0 on the sieve's texts."""
        if wiring not in self._sieve:
            self._sieve[wiring] = self._quick(wiring, 1)
        return self._sieve[wiring]

    def sieved(self, wiring: Wiring) -> float | None:
        """The same, where it was computed already."""
        return self._sieve.get(wiring)

    def deep(self, wiring: Wiring) -> float:
        """Cross-entropy over all depths on the sieve's texts."""
        if wiring not in self._deep:
            whole = self._small_count == self.streams.count
            score = self.result(wiring).score if whole else self._quick(wiring, DEPTHS)
            self._deep[wiring] = score
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

    def _quick(self, wiring: Wiring, depths: int) -> float:
        total, count = 0.0, 0
        for _, sheet, entropy, _ in self._run(wiring, self._small, self._small_count, depths):
            total += float(entropy.sum())
            count += int(sheet.valid.sum())
        return total / count

    def _full(self, wiring: Wiring) -> Result:
        texts = self.streams.texts
        shape = (len(texts), DEPTHS)
        entropy = torch.zeros(shape, dtype=torch.float64)
        walks = torch.zeros(len(texts), 2, dtype=torch.float64)
        depths = max(DEPTHS, self.steps)
        for network, sheet, found, normed in self._run(
            wiring, self._all, self.streams.count, depths
        ):
            entropy[sheet.indices] = found[..., :DEPTHS].double().sum(dim=1).cpu()
            lengths = self._lengths(network, sheet, normed)
            for index, row in zip(sheet.indices, lengths.tolist(), strict=True):
                walked = (walk(row[at:], n) for at, n in texts[index].walks)
                steps = [taken for one in walked for taken in one]
                walks[index] = torch.tensor([len(steps), sum(steps)])
        starts = torch.tensor([len(text.starts) for text in texts], dtype=torch.float64)
        return Result(wiring, starts, entropy, walks[:, 0], walks[:, 1])

    @torch.no_grad()
    def _run(
        self, wiring: Wiring, batches: Sequence[Sheet], count: int, depths: int
    ) -> Iterator[tuple[Wired, Sheet, Tensor, list[Tensor]]]:
        """Each batch's cross-entropies [B, S, depths], zero where there is no start, and its outputs."""
        network = self.subject.network(wiring)
        hidden = self.fusion.hidden(wiring, count)
        expected = self._expectation(wiring.flag("map"), count)
        shift = int(wiring.flag("shift"))
        for sheet in batches:
            fused = hidden[sheet.places(shift)]
            batch = Batch(
                sheet.indices, sheet.tokens, sheet.starts, sheet.valid, Features({}, fused)
            )
            found, normed = [], []
            for depth, out in enumerate(draft_steps(network, batch, depths)):
                at = sheet.first + torch.minimum(sheet.starts + 1 + depth, sheet.last)
                found.append(_cross_entropy(network, out.normed, expected[at], sheet.valid))
                normed.append(out.normed)
            yield network, sheet, torch.stack(found, dim=-1), normed

    @torch.no_grad()
    def _lengths(self, network: Wired, sheet: Sheet, normed: list[Tensor]) -> Tensor:
        """[B, S], tokens accepted from each start."""
        hits = []
        for depth in range(self.steps):
            text = sheet.tokens.gather(1, sheet.starts + 2 + depth)
            proposed = network.propose(normed[depth].flatten(0, 1), CHUNK)
            hits.append(proposed.view_as(text) == text)
        return torch.stack(hits, dim=-1).long().cumprod(dim=-1).sum(dim=-1)

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
        for first in range(0, count, CHUNK):
            last = min(first + CHUNK, count)
            logits = self.streams.likely(self._target, first, last).to(device)
            chosen = logits[:, :size] if ids is None else logits[:, ids.to(device)]
            yield first, chosen.softmax(dim=-1)


def _cross_entropy(network: Wired, normed: Tensor, expected: Tensor, valid: Tensor) -> Tensor:
    """[B, S], zero where not valid."""
    scale = network.draft.vocabulary.logit_scale
    rows, wanted = normed[valid], expected[valid]
    logits = (network.logits(part).float().logsumexp(-1) for part in torch.split(rows, CHUNK))
    found = torch.cat(list(logits)) - scale * (rows.float() * wanted.float()).sum(dim=-1)
    result = torch.zeros(valid.shape, device=valid.device)
    result[valid] = found
    return result
