"""Drafts from every start position of a text at once: chains, and SGLang's trees.

A draft that starts at position p knows the target's features of x[0..p] and the token x[p+1]; its depth j
proposes x[p+2+j]. While it is right, feeding it the text is feeding it its own proposals, so each depth
is one batched pass over all starts, whatever the text.

Trees follow SGLang 0.5.23 (``eagle_worker_v2.draft_forward``, ``spec_utils.select_top_k_tokens``,
``eagle_utils.organize_draft_results``). One point there is easy to miss: a branch's keys stay in its own
slot when the frontier is chosen anew (``cache_locs.generate_draft_decode_kv_indices``), so frontier node t
attends to what *slot t* wrote in earlier steps, which need not be its ancestors. (Measured on the tiny
pair with 5 steps, top-k 4, 16 tokens: SGLang and this rule 702 steps, 1621 accepted; ancestors' keys 700
and 1619.)
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from eagle3_interop.validators.accept.shape import Shape
from eagle3_interop.validators.network.attention import Cache
from eagle3_interop.validators.network.reference import Features, Network, Output
from eagle3_interop.validators.target.running import Progress, pack
from eagle3_interop.validators.target.source import Source
from eagle3_interop.validators.target.texts import Text
from eagle3_interop.validators.target.writing import Written

CHUNK = 1024
"""Positions whose logits exist at once."""


@dataclass(frozen=True)
class Batch:
    """Some texts on the device, right-padded, with the target's features.

    Attributes:
        indices: which of the caller's texts these are.
        tokens: [B, L] token ids.
        starts: [B, S] start positions, row by row; the padding repeats the last one.
        valid: [B, S], which of them are real.
        features: at positions 0..T-1, for every start at least.
        texts: the rows, where they are to be counted.
    """

    indices: list[int]
    tokens: Tensor
    starts: Tensor
    valid: Tensor
    features: Features
    texts: Sequence[Text] = ()

    def text(self, offset: int) -> Tensor:
        """[B, S], the token `offset` places after each start."""
        return self.tokens.gather(1, self.starts + offset)


def batches(
    target: Source,
    texts: Sequence[Text],
    taps: Sequence[int],
    *,
    reach: int = 0,
    final: bool = True,
    token_budget: int = 4096,
    progress: Progress | None = None,
) -> Iterator[Batch]:
    """One teacher-forced pass of the target over each text, a budget of tokens at a time.

    Args:
        target: the target.
        texts: any number; memory does not grow with it.
        taps: of all the drafts that will be run on these features.
        reach: positions after the last start that the features must cover too.
        final: compute the target's final output too, which only drafts without fc read.
        token_budget: tokens a batch may hold, padding included.
        progress: told the tokens done.
    """
    for indices, length in _groups(texts, reach, token_budget):
        chosen = [texts[i] for i in indices]
        tokens = _padded(chosen).to(target.device)
        features = target.features_of(chosen, tokens[:, :length], taps, final=final)
        yield _batch(chosen, indices, tokens, features)
        if progress is not None:
            progress(sum(texts[i].starts[-1] + 1 + reach for i in indices))


def written_batches(group: Written, *, reach: int = 0, token_budget: int = 4096) -> Iterator[Batch]:
    """What the target has just written, a budget of tokens at a time; its features are there already.

    Args:
        group: texts that were written together.
        reach: positions after the last start that the features must cover too.
        token_budget: tokens a batch may hold, padding included.
    """
    for rows, length in _groups(group.texts, reach, token_budget):
        chosen = [group.texts[row] for row in rows]
        taps = {tap: stream[rows, :length] for tap, stream in group.features.taps.items()}
        final = group.features.final[rows, :length]
        tokens = _padded(chosen).to(final.device)
        indices = [group.indices[row] for row in rows]
        yield _batch(chosen, indices, tokens, Features(taps, final))


def _groups(
    texts: Sequence[Text], reach: int, token_budget: int
) -> Iterator[tuple[list[int], int]]:
    """Texts to draft on together, and the positions whose features they need."""
    order = sorted(
        (i for i, text in enumerate(texts) if text.scored > 1), key=lambda i: len(texts[i])
    )
    lengths = [texts[i].starts[-1] + 1 + reach for i in order]
    for group in pack(lengths, token_budget):
        yield [order[i] for i in group], max(lengths[i] for i in group)


def _padded(texts: Sequence[Text]) -> Tensor:
    longest = max(map(len, texts))
    return torch.tensor(
        [[*text.prompt, *text.completion, *[0] * (longest - len(text))] for text in texts]
    )


def _batch(texts: list[Text], indices: list[int], tokens: Tensor, features: Features) -> Batch:
    columns = torch.arange(max(len(text.starts) for text in texts))
    first = torch.tensor([text.starts[0] for text in texts])[:, None]
    counts = torch.tensor([len(text.starts) for text in texts])[:, None]
    starts = first + torch.minimum(columns, counts - 1)
    valid = columns < counts
    device = tokens.device
    return Batch(indices, tokens, starts.to(device), valid.to(device), features, texts)


@torch.no_grad()
def draft_steps(network: Network, batch: Batch, depth: int) -> Iterator[Output]:
    """Every start's draft, fed the text: the output [B, S, H] of depth 0, 1, ... in turn."""
    out, cache = _at_starts(network, batch)
    yield out
    for step in range(1, depth):
        out = network.step(batch.text(1 + step), out.feedback, cache)
        yield out


@torch.no_grad()
def chain_lengths(network: Network, batch: Batch, depth: int) -> Tensor:
    """[B, S], how many of `depth` greedy proposals in a row are the text, for every start.

    A draft that was wrong once is over, so each step runs only those that are still right.
    """
    out, cache = _at_starts(network, batch)
    lengths, valid = torch.zeros_like(batch.starts), batch.valid
    slots = torch.arange(lengths.shape[1], device=lengths.device).expand_as(lengths)
    for step in range(depth):
        text = batch.text(2 + step).gather(1, slots)
        hits = torch.zeros_like(valid)
        hits[valid] = network.propose(out.normed[valid], CHUNK) == text[valid]
        lengths.scatter_add_(1, slots, hits.long())
        if step == depth - 1 or not bool(hits.any()):
            break
        rows, keep = _front(hits)
        slots, valid, cache = slots[rows, keep], hits[rows, keep], cache.select(rows, keep)
        out = network.step(text[rows, keep], out.feedback[rows, keep], cache)
    return lengths


@dataclass(frozen=True)
class Paths:
    """Trees of M starts, and the text's way through each.

    Attributes:
        shape: [B, S] of the batch.
        where: rows and columns of the M starts; at all others the first token is in no tree.
        scores: [M, nodes] of all nodes, level by level.
        nodes: [M, steps], the text's node of each level, or -1.
    """

    shape: torch.Size
    where: tuple[Tensor, Tensor]
    scores: Tensor
    nodes: Tensor

    def lengths(self, tree: Shape) -> Tensor:
        """[B, S], tokens accepted when only the best nodes of the first ``tree.steps`` levels are kept."""
        kept = self.scores[:, : tree.nodes].topk(tree.tokens - 1, dim=-1).indices
        present = (self.nodes[:, : tree.steps, None] == kept[:, None]).any(dim=-1)
        lengths = torch.zeros(self.shape, dtype=torch.long, device=self.scores.device)
        lengths[self.where] = present.long().cumprod(dim=-1).sum(dim=-1)
        return lengths


@torch.no_grad()
def tree_paths(network: Network, batch: Batch, steps: int, topk: int) -> Paths:
    """Draft the tree of every start at once, and find the text in it.

    The first level is the k likeliest tokens. Each later step feeds the k nodes of the frontier and gives
    each its k likeliest children, scored by the product of probabilities; the best k of these are
    the next frontier. Fewer steps or kept nodes are a part of this tree: see `Paths.lengths`.

    Args:
        network: the draft.
        batch: texts and features.
        steps: levels of the tree.
        topk: k.
    """
    out, cache = _at_starts(network, batch)
    share, ids = (x.view(*batch.starts.shape, topk) for x in _children(network, out.normed, topk))
    text = batch.text(2)[..., None]
    rows, keep = _front((ids == text).any(dim=-1) & batch.valid)
    valid = ((ids == text).any(dim=-1) & batch.valid)[rows, keep]
    scores, ids, text = share[rows, keep], ids[rows, keep], text[rows, keep]
    node = (ids == text).int().argmax(dim=-1)
    frontier = torch.arange(topk, device=ids.device).expand_as(ids)
    hidden = out.feedback[rows, keep].unsqueeze(2).expand(-1, -1, topk, -1)
    cache = cache.select(rows, keep.repeat_interleave(topk, dim=1))
    all_scores, nodes = [scores], [node]
    for step in range(1, steps):
        out = network.step(ids.flatten(1), hidden.flatten(1, 2), cache)
        share, children = (x.view(*ids.shape, topk) for x in _children(network, out.normed, topk))
        base = topk + (step - 1) * topk**2
        joint, children = (scores[..., None] * share).flatten(2), children.flatten(2)
        text = batch.text(2 + step)[rows, keep][..., None]
        ours = frontier.repeat_interleave(topk, dim=-1) == node[..., None]
        match = (children == text) & ours
        node = torch.where(match.any(dim=-1), base + match.int().argmax(dim=-1), -1)
        all_scores.append(joint)
        nodes.append(node)
        scores, best = joint.topk(topk, dim=-1)
        ids, frontier = children.gather(-1, best), base + best
        parents = (best // topk)[..., None].expand(*best.shape, out.feedback.shape[-1])
        hidden = out.feedback.view(parents.shape).gather(2, parents)
    where = rows.expand_as(keep)[valid], keep[valid]
    found = torch.stack(nodes, dim=-1)[valid]
    return Paths(batch.starts.shape, where, torch.cat(all_scores, dim=-1)[valid], found)


def _children(network: Network, normed: Tensor, topk: int) -> tuple[Tensor, Tensor]:
    """Probabilities and target ids of the likeliest tokens: [B, Q, H] to [B * Q, k] each."""
    parts = [
        network.logits(part).float().softmax(dim=-1).topk(topk, dim=-1)
        for part in torch.split(normed.flatten(0, 1), CHUNK)
    ]
    ids = network.to_target(torch.cat([part.indices for part in parts]))
    return torch.cat([part.values for part in parts]), ids


def _front(chosen: Tensor) -> tuple[Tensor, Tensor]:
    """Index pair ([B, 1], [B, Q]) that moves each row's chosen columns to the front."""
    width = int(chosen.sum(dim=1).max())
    order = chosen.int().argsort(dim=1, descending=True, stable=True)[:, :width]
    return torch.arange(len(chosen), device=chosen.device)[:, None], order


def _at_starts(network: Network, batch: Batch) -> tuple[Output, Cache]:
    """Depth 0, at the start positions only."""
    hidden = network.fuse(batch.features)
    out, cache = network.begin(batch.tokens[:, 1 : hidden.shape[1] + 1], hidden)
    rows = torch.arange(len(batch.starts), device=batch.starts.device)[:, None]
    picked = Output(out.normed[rows, batch.starts], out.feedback[rows, batch.starts])
    return picked, cache.select(rows, batch.starts)
