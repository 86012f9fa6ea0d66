"""The EAGLE-3 draft network in plain PyTorch. Read it as the specification.

One pass answers, for every position p of a text at once, "the target has read x[0..p] and chosen
x[p+1]; what comes next?". Shapes: B texts, T positions, Q queries, H the draft's width.

* **Input.** The target's residual stream at the taps, each optionally normed, concatenated and
  projected by fc to ``hidden`` [H] (`Network.fuse`). It is paired with the token that *follows* it:
  position p takes (embedding of x[p+1], hidden of p).
* **Layer 0** attends with ``[norm(embedding), norm(hidden)]``, 2H wide; its residual is ``hidden``,
  raw or normed. Later layers are plain pre-norm decoder layers.
  Attention is grouped-query (llama, qwen3), or latent (MLA: DeepSeek, Kimi), where queries, keys and
  values are expanded from narrow latents.
* **Output.** ``norm``, then the head: logits over the draft's own vocabulary for x[p+2].
* **Next step.** The same network at position p+1, with the drafted token and, in hidden's place,
  its own output before (or after) the final norm: the *feedback*. fc is not applied again.

A draft that proposes **all tokens in one pass** (P-EAGLE) knows neither drafted tokens nor feedback: every later
position takes a mask token's embedding and fc of one learned input, ``mask_hidden``, in their place. Nothing else
differs, since position p+j sees the real keys of 0..p and its own chain's masks alone: an engine's next pass
overwrites the masks of this one before anything reads them.

Keys of the first pass come from the target's features and are shared by all that follows; those
of later steps belong to the draft that made them (`Cache`). A step of the draft that starts at p
sees the shared keys of 0..p and its own. That is what an engine's cache holds at that moment: it
overwrites draft keys by feature-based ones once tokens are accepted.

Sources: vLLM 0.32 and SGLang 0.5.23 ``llama_eagle3.py``, speculators 0.9 ``models/eagle3/core.py``; of latent
attention vLLM's ``deepseek_eagle3.py`` and SGLang's ``kimi_k25_eagle3.py``. They differ in one point. With a sliding window of W, position q sees q-W+1..q in the engines (W
positions, itself included: vLLM, and transformers' ``masking_utils.py``), whatever wrote the keys.
speculators, in training, keeps the *start* position's window for every later step and never hides a
step's own keys, so its step j sees up to j keys more. This module follows the engines.
"""

from collections.abc import Collection, Mapping, MutableMapping
from dataclasses import dataclass

import torch
from torch import Size, Tensor
from torch.nn import functional as F  # noqa: N812
from transformers.activations import ACT2FN

from eagle3_interop.schemas.draft import Draft, Fc, Gqa, Mla
from eagle3_interop.schemas.findings import Refused, finding
from eagle3_interop.validators.network.attention import Cache, LayerCache, attend
from eagle3_interop.validators.network.rotary import Rotary, rotate
from eagle3_interop.validators.network.weights import Weights

Trace = MutableMapping[str, Tensor]
"""Named stages of one pass, filled by the network where a caller passes an empty dict."""


@dataclass(frozen=True)
class Features:
    """What the target hands to a draft, of B texts of T positions.

    Attributes:
        taps: tap (as `Draft.taps` counts them) to the residual stream there, [B, T, H_target].
        final: [B, T, H_target], the target's output after its final norm; [B, T, 0] if not computed.
    """

    taps: Mapping[int, Tensor]
    final: Tensor


@dataclass(frozen=True)
class Output:
    """One pass: [B, Q, H] each.

    Attributes:
        normed: after the final norm; the head's input.
        feedback: what the next step takes in hidden's place.
    """

    normed: Tensor
    feedback: Tensor


class Network:
    """A draft that runs: its description and its weights.

    Every flag is read from `draft` when a pass runs, so another wiring of the same weights is
    ``Network(draft.model_copy(update=...), weights)`` and costs nothing.
    """

    def __init__(self, draft: Draft, weights: Weights) -> None:
        """Check that this implementation knows the network.

        Raises:
            Refused: quantised weights, which are not implemented; no mask token.
        """
        refuse_unknown(draft)
        self.draft = draft
        self.weights = weights

    # From the target's features to the first hidden state.

    def fuse(self, features: Features, trace: Trace | None = None) -> Tensor:
        """The hidden state [B, T, H] of depth 0: fc over the taps, or the target's own output.

        A draft that has both norms takes the one over the concatenation first (vLLM, SGLang).
        """
        if self.draft.fc is None:
            if features.final.shape[-1] == 0:
                raise ValueError(
                    "this draft reads the target's final output, which was not computed"
                )
            return self._record(trace, "fc_output", self._cast(features.final))
        taps = torch.cat([self._cast(features.taps[tap]) for tap in self._taps()], dim=-1)
        return self._project(self.draft.fc, taps, trace)

    def _project(self, fc: Fc, taps: Tensor, trace: Trace | None = None) -> Tensor:
        if fc.input_norm:
            taps = self._norm("input_norm", taps)
        if fc.block_norms:
            blocks = taps.chunk(fc.blocks, dim=-1)
            taps = torch.cat([self._norm(f"fc_norm.{i}", x) for i, x in enumerate(blocks)], dim=-1)
        self._record(trace, "fc_input", taps)
        return self._record(trace, "fc_output", self._linear("fc", taps, bias=fc.bias))

    def _masks(self, token: int | None, shape: Size) -> tuple[Tensor, Tensor]:
        """Tokens and hidden states of a later position of a parallel draft, of this shape."""
        fc = self.draft.fc
        if fc is None or token is None:
            raise ValueError("a parallel draft needs an fc and a mask token")
        hidden = self._project(fc, self.weights["mask_hidden"].flatten())
        tokens = torch.full(shape, token, device=self.weights.device)
        return tokens, hidden.expand(*shape, -1)

    def _taps(self) -> tuple[int, ...]:
        taps = self.draft.network.taps
        if taps is None:
            raise ValueError("the taps need the target's depth: resolve them first")
        return taps

    # The passes.

    def begin(
        self, tokens: Tensor, hidden: Tensor, trace: Trace | None = None
    ) -> tuple[Output, Cache]:
        """Depth 0 of every start position at once.

        Args:
            tokens: [B, T], at position p the token x[p+1].
            hidden: [B, T, H], `fuse`'s output at the same positions.
            trace: stages by name, filled if given.

        Returns:
            The output, whose logits predict x[p+2], and the cache to go on from.
        """
        rows, length = tokens.shape
        starts = torch.arange(length, device=tokens.device).expand(rows, length)
        cache = Cache([], starts)
        return self._forward(tokens, hidden, starts, cache, trace), cache

    def step(
        self, tokens: Tensor, hidden: Tensor, cache: Cache, trace: Trace | None = None
    ) -> Output:
        """One more token for each of the cache's drafts.

        Args:
            tokens: [B, Q], the token each draft goes on with; a parallel draft takes its mask token.
            hidden: [B, Q, H], the feedback of the step that proposed it; a parallel draft takes fc of its
                ``mask_hidden``.
            cache: of the steps before; this step's keys are added to it.
            trace: stages by name, filled if given.

        Returns:
            The output; the logits of depth j predict x[p+2+j].
        """
        if self.draft.parallel is not None:
            tokens, hidden = self._masks(self.draft.parallel.mask_token_id, tokens.shape)
            self._record(trace, "mask", hidden)
        out = self._forward(tokens, hidden, cache.starts + cache.depth, cache, trace)
        cache.depth += 1
        return out

    def logits(self, normed: Tensor, trace: Trace | None = None) -> Tensor:
        """[..., D] over the draft's own vocabulary; D is large, so pass few positions."""
        logits = F.linear(normed, self.weights.head)
        if self.draft.vocabulary.logit_scale != 1.0:
            logits = logits * self.draft.vocabulary.logit_scale
        return self._record(trace, "logits", logits)

    def to_target(self, ids: Tensor) -> Tensor:
        """Draft ids as the target's ids."""
        table = self.weights.target_ids
        return ids if table is None else table[ids]

    @property
    def expressible(self) -> Collection[int]:
        """The target's ids that can be proposed."""
        table = self.weights.target_ids
        return range(self.draft.vocabulary.draft_size) if table is None else set(table.tolist())

    def propose(self, normed: Tensor, chunk: int = 1024) -> Tensor:
        """The greedy draft token of each position, as target ids: normed [N, H] to [N]."""
        best = [self.logits(part).argmax(dim=-1) for part in torch.split(normed, chunk)]
        return self.to_target(torch.cat(best)) if best else normed.new_empty(0, dtype=torch.long)

    def _forward(
        self, tokens: Tensor, hidden: Tensor, positions: Tensor, cache: Cache, trace: Trace | None
    ) -> Output:
        hidden = self._cast(hidden)
        embedding = self.weights.embedded(tokens)
        self._record(trace, "embedding", embedding)
        rotation = Rotary(self.draft)(positions, self.weights.dtype)
        stream = hidden
        for index in range(self.draft.layers.count):
            stream = self._layer(index, embedding, stream, rotation, cache, trace)
        self._record(trace, "stream", stream)
        normed = self._record(trace, "norm", self._norm("norm", stream))
        feedback = normed if self.draft.feedback == "post-norm" else stream
        return Output(normed, self._record(trace, "feedback", feedback))

    # One decoder layer.

    def _layer(
        self,
        index: int,
        embedding: Tensor,
        stream: Tensor,
        rotation: tuple[Tensor, Tensor],
        cache: Cache,
        trace: Trace | None,
    ) -> Tensor:
        name = f"layers.{index}"
        if index == 0:
            hidden = self._norm(f"{name}.hidden_norm", stream)
            entry = torch.cat([self._norm(f"{name}.input_layernorm", embedding), hidden], dim=-1)
            residual = hidden if self.draft.residual == "normed" else stream
        else:
            entry = self._norm(f"{name}.input_layernorm", stream)
            residual = stream
        self._record(trace, f"{name}.input", entry)
        self._record(trace, f"{name}.residual", residual)
        attention = self._attention(index, entry, rotation, cache)
        stream = residual + self._record(trace, f"{name}.attention", attention)
        mlp = self._mlp(f"{name}.mlp", self._norm(f"{name}.post_attention_layernorm", stream))
        return stream + self._record(trace, f"{name}.mlp", mlp)

    def _mlp(self, name: str, x: Tensor) -> Tensor:
        mlp = self.draft.layers.mlp
        gate = self._linear(f"{name}.gate_proj", x, bias=mlp.bias)
        up = self._linear(f"{name}.up_proj", x, bias=mlp.bias)
        activated: Tensor = ACT2FN[mlp.activation](gate) * up
        return self._linear(f"{name}.down_proj", activated, bias=mlp.bias)

    def _attention(
        self, index: int, x: Tensor, rotation: tuple[Tensor, Tensor], cache: Cache
    ) -> Tensor:
        shape, name = self.draft.layers.attention, f"layers.{index}.self_attn"
        if isinstance(shape, Mla):
            q, k, v = self._latent(shape, name, x, rotation)
        else:
            q, k, v = self._grouped(shape, name, x, rotation)
        if index == len(cache.layers):
            cache.layers.append(LayerCache(k.transpose(1, 2), v.transpose(1, 2)))
        else:
            cache.layers[index].own_keys.append(k)
            cache.layers[index].own_values.append(v)
        mixed = self._attend(index, q, cache).flatten(2)
        biased = isinstance(shape, Gqa) and shape.output_bias
        return self._linear(f"{name}.o_proj", mixed, bias=biased)

    def _attend(self, index: int, q: Tensor, cache: Cache) -> Tensor:
        window = self.draft.layers.windows[index]
        return attend(q, cache.layers[index], cache.starts, window)

    def _grouped(
        self, shape: Gqa, name: str, x: Tensor, rotation: tuple[Tensor, Tensor]
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, scaled, with keys and values of fewer heads: [B, Q, heads, d] each."""
        q, k, v = (
            heads(self._linear(f"{name}.{part}_proj", x, bias=shape.qkv_bias), count)
            for part, count in (("q", shape.heads), ("k", shape.kv_heads), ("v", shape.kv_heads))
        )
        if shape.qk_norm:
            q, k = self._norm(f"{name}.q_norm", q), self._norm(f"{name}.k_norm", k)
        return rotate(q, rotation) * shape.head_dim**-0.5, rotate(k, rotation), v

    def _latent(
        self, shape: Mla, name: str, x: Tensor, rotation: tuple[Tensor, Tensor]
    ) -> tuple[Tensor, Tensor, Tensor]:
        """The same of latent attention, its latents expanded: heads differ in the part that is not rotated.

        Of a query and of a key the rotated part comes last, and that of the keys is one for all heads. Engines
        keep the latents instead, and fold ``kv_b_proj`` into q and o: the same sums in another order.
        """
        q = self._queries(shape, name, x)
        plain, turned = parts(heads(q, shape.heads), shape.nope_dim)
        q = torch.cat([plain, self._turn(shape, turned, rotation)], dim=-1)
        entry = self._linear(f"{name}.kv_a_proj_with_mqa", x, bias=False)
        latent, turned = parts(entry, shape.kv_rank)
        latent = self._norm(f"{name}.kv_a_layernorm", latent)
        expanded = heads(self._linear(f"{name}.kv_b_proj", latent, bias=False), shape.heads)
        plain, v = parts(expanded, shape.nope_dim)
        shared = self._turn(shape, heads(turned, 1), rotation)
        k = torch.cat([plain, shared.expand(*plain.shape[:-1], -1)], dim=-1)
        return q * shape.softmax_scale, k, v

    def _queries(self, shape: Mla, name: str, x: Tensor) -> Tensor:
        """From a latent of their own, or at once."""
        if shape.q_rank is None:
            return self._linear(f"{name}.q_proj", x, bias=False)
        latent = self._linear(f"{name}.q_a_proj", x, bias=False)
        return self._linear(
            f"{name}.q_b_proj", self._norm(f"{name}.q_a_layernorm", latent), bias=False
        )

    @staticmethod
    def _turn(shape: Mla, x: Tensor, rotation: tuple[Tensor, Tensor]) -> Tensor:
        """Rotate; of neighbouring pairs the firsts go before the seconds, which no product of q and k sees."""
        if shape.interleaved:
            x = torch.cat([x[..., 0::2], x[..., 1::2]], dim=-1)
        return rotate(x, rotation)

    # Small parts.

    def _linear(self, name: str, x: Tensor, *, bias: bool) -> Tensor:
        offset = self.weights[f"{name}.bias"] if bias else None
        return F.linear(x, self.weights[f"{name}.weight"], offset)

    def _norm(self, name: str, x: Tensor) -> Tensor:
        return rms_norm(x, self.weights[f"{name}.weight"], self.draft.layers.norm_eps)

    def _cast(self, x: Tensor) -> Tensor:
        return x.to(self.weights.device, self.weights.dtype)

    @staticmethod
    def _record(trace: Trace | None, name: str, x: Tensor) -> Tensor:
        if trace is not None:
            trace[name] = x
        return x


def heads(x: Tensor, count: int) -> Tensor:
    """[..., count * d] as [..., count, d]."""
    return x.reshape(*x.shape[:-1], count, -1)


def parts(x: Tensor, first: int) -> tuple[Tensor, Tensor]:
    """The first so many of the last dimension, and the rest."""
    return x[..., :first], x[..., first:]


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Root-mean-square norm, computed in float32 as every framework does, in x's dtype."""
    wide = x.float()
    wide = wide * torch.rsqrt(wide.square().mean(dim=-1, keepdim=True) + eps)
    return weight * wide.to(x.dtype)


def refuse_unknown(draft: Draft) -> None:
    """Raise `Refused` for what this implementation does not compute."""
    unknown = {
        "no-mask-token": draft.parallel is not None
        and draft.parallel.mask_token_id is None
        and "parallel drafting (P-EAGLE) without a mask token",
        "quantised-draft": draft.quantisation is not None and f"{draft.quantisation}",
    }
    findings = [
        finding(code, "draft", f"{what}: recognised, but not computed here")
        for code, what in unknown.items()
        if what
    ]
    if findings:
        raise Refused(findings)
