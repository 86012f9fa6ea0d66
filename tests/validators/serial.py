"""An EAGLE-3 draft and its engines a second time: one token at a time, one text at a time, no batching.

Shares no code with the package. Keys live in a list that an engine appends to and cuts back, as a server's
cache does.
"""

import math

import torch


class SerialDraft:
    """The network, a token at a time."""

    def __init__(self, draft, tensors):
        self.d, self.w = draft, tensors

    def rms(self, x, name):
        eps = self.d.layers.norm_eps
        return x / math.sqrt(float((x * x).mean()) + eps) * self.w[f"{name}.weight"]

    def turn(self, x, position):
        """Rotate one head by complex multiplication."""
        half = x.shape[-1] // 2
        angle = position * self.d.rope.theta ** (
            -torch.arange(half, dtype=torch.float64) * 2 / (2 * half)
        )
        z = torch.complex(x[:half].double(), x[half:].double()) * torch.exp(1j * angle)
        return torch.cat([z.real, z.imag]).float()

    def fused(self, blocks):
        if self.d.fc is None:
            return blocks
        if self.d.fc.block_norms:
            blocks = [self.rms(b, f"fc_norm.{i}") for i, b in enumerate(blocks)]
        return self.w["fc.weight"] @ torch.cat(list(blocks))

    def feed(self, token, hidden, position, caches):
        """One token; `caches` holds, for each layer, a list of (position, keys, values) to append to."""
        a = self.d.layers.attention
        stream = hidden
        for i in range(self.d.layers.count):
            name = f"layers.{i}"
            if i == 0:
                normed = self.rms(stream, f"{name}.hidden_norm")
                embedding = self.rms(
                    self.w["embed_tokens.weight"][token], f"{name}.input_layernorm"
                )
                entry = torch.cat([embedding, normed])
                stream = normed if self.d.residual == "normed" else stream
            else:
                entry = self.rms(stream, f"{name}.input_layernorm")
            attend = self.latent if a.kind == "mla" else self.grouped
            mixed = attend(
                f"{name}.self_attn", entry, position, caches[i], self.d.layers.windows[i]
            )
            stream = stream + self.w[f"{name}.self_attn.o_proj.weight"] @ torch.cat(mixed)
            x = self.rms(stream, f"{name}.post_attention_layernorm")
            gate, up = (self.w[f"{name}.mlp.{p}_proj.weight"] @ x for p in ("gate", "up"))
            stream = stream + self.w[f"{name}.mlp.down_proj.weight"] @ (gate * gate.sigmoid() * up)
        normed = self.rms(stream, "norm")
        logits = self.w["lm_head.weight"] @ normed
        return logits, normed if self.d.feedback == "post-norm" else stream

    def grouped(self, name, entry, position, cache, window):
        a = self.d.layers.attention
        q, k, v = (self.w[f"{name}.{p}_proj.weight"] @ entry for p in "qkv")
        q = [self.turn(x, position) for x in q.view(a.heads, -1)]
        k = [self.turn(x, position) for x in k.view(a.kv_heads, -1)]
        cache.append((position, k, list(v.view(a.kv_heads, -1))))
        seen = [kept for kept in cache if position - kept[0] < (window or 10**9)]
        mixed = []
        for h in range(a.heads):
            group = h // (a.heads // a.kv_heads)
            scores = torch.stack([q[h] @ keys[group] for _, keys, _ in seen]) / math.sqrt(
                a.head_dim
            )
            values = torch.stack([values[group] for _, _, values in seen])
            mixed.append(scores.softmax(0) @ values)
        return mixed

    def latent(self, name, entry, position, cache, window):
        """As engines serve it: a position keeps its latent and one rotated key, and no head's keys or values."""
        a = self.d.layers.attention
        down = self.rms(self.w[f"{name}.q_a_proj.weight"] @ entry, f"{name}.q_a_layernorm")
        q = (self.w[f"{name}.q_b_proj.weight"] @ down).view(a.heads, -1)
        kept = self.w[f"{name}.kv_a_proj_with_mqa.weight"] @ entry
        latent = self.rms(kept[: a.kv_rank], f"{name}.kv_a_layernorm")
        cache.append((position, latent, self.turn_pairs(kept[a.kv_rank :], position)))
        seen = [kept for kept in cache if position - kept[0] < (window or 10**9)]
        latents, keys = (torch.stack(x) for x in list(zip(*seen, strict=True))[1:])
        up = self.w[f"{name}.kv_b_proj.weight"].view(a.heads, -1, a.kv_rank)
        mixed = []
        for h in range(a.heads):
            absorbed = q[h, : a.nope_dim] @ up[h, : a.nope_dim]
            turned = self.turn_pairs(q[h, a.nope_dim :], position)
            scores = (latents @ absorbed + keys @ turned) * a.softmax_scale
            mixed.append(up[h, a.nope_dim :] @ (scores.softmax(0) @ latents))
        return mixed

    def turn_pairs(self, x, position):
        """Rotate neighbours by complex multiplication."""
        steps = torch.arange(0, len(x), 2, dtype=torch.float64) / len(x)
        z = torch.view_as_complex(x.double().view(-1, 2))
        turned = z * torch.exp(1j * position * self.d.rope.theta**-steps)
        return torch.view_as_real(turned).flatten().float()

    def target_id(self, draft_id):
        return draft_id + int(self.w["d2t"][draft_id]) if self.d.vocabulary.mapped else draft_id


def run_engine(draft, tensors, prompt, text, features, scored, propose):
    """Serve one request: `text` is what the target will say. Returns the accepted count of each step.

    Args:
        draft, tensors: the network.
        prompt: token ids.
        text: the target's continuation, long enough to judge the last step.
        features: [len(prompt + text), blocks, T], the target's streams.
        scored: new tokens to put out.
        propose: chain(K) or tree(S, k, N): (network, logits, hidden, position, caches) to a function
            from the target's continuation to the accepted count.
    """
    network = SerialDraft(draft, tensors)
    tokens = prompt + text
    caches = [[] for _ in range(draft.layers.count)]
    known = len(prompt)  # positions whose features the target has computed
    out, steps, done = 1, [], 0
    while out < scored:
        for position in range(done, known):
            hidden = network.fused(features[position])
            logits, state = network.feed(tokens[position + 1], hidden, position, caches)
        done = known
        marks = [len(cache) for cache in caches]
        accept = propose(network, logits, state, known, caches)
        for cache, mark in zip(caches, marks, strict=True):
            del cache[mark:]
        taken = accept(tokens[known + 1 :])
        steps.append(taken)
        known += taken + 1
        out += taken + 1
    return steps


def chain(count):
    """Greedy proposals one after the other."""

    def propose(network, logits, state, position, caches):
        drafted = []
        for step in range(count):
            drafted.append(network.target_id(int(logits.argmax())))
            if step < count - 1:
                logits, state = network.feed(drafted[-1], state, position + step, caches)

        def accept(truth):
            taken = 0
            while taken < count and drafted[taken] == truth[taken]:
                taken += 1
            return taken

        return accept

    return propose


def masks(count):
    """Greedy proposals of one pass: behind the last real token stand masks, which see it and each other."""

    def propose(network, logits, _state, position, caches):
        parallel, width = network.d.parallel, network.d.target.hidden_size
        blank = network.fused(network.w["mask_hidden"].view(-1, width))
        drafted = [network.target_id(int(logits.argmax()))]
        for step in range(count - 1):
            logits, _ = network.feed(parallel.mask_token_id, blank, position + step, caches)
            drafted.append(network.target_id(int(logits.argmax())))

        def accept(truth):
            taken = 0
            while taken < count and drafted[taken] == truth[taken]:
                taken += 1
            return taken

        return accept

    return propose


def best(scores, count):
    """Indices of the largest, largest first."""
    return sorted(range(len(scores)), key=lambda i: -float(scores[i]))[:count]


def grow(network, logits, state, position, caches, steps, topk, ancestors=False):
    """SGLang's tree: [(token, score, parent)] in the order of making.

    Each of the k branch slots has its own keys, whichever node sits in it; with `ancestors` a node would
    take its parent's keys along instead, which SGLang does not do.
    """
    slots = [[list(cache) for cache in caches] for _ in range(topk)]
    share = logits.softmax(0)
    nodes = [(network.target_id(i), float(share[i]), None) for i in best(share, topk)]
    frontier = [(node, state, slot) for slot, node in enumerate(range(topk))]
    for step in range(1, steps):
        if ancestors:
            slots = [[list(cache) for cache in slots[parent]] for _, _, parent in frontier]
        made = []
        for slot, (node, hidden, _) in enumerate(frontier):
            token, score, _ = nodes[node]
            logits, state = network.feed(token, hidden, position + step - 1, slots[slot])
            share = logits.softmax(0)
            for i in best(share, topk):
                made.append((len(nodes), state, slot))
                nodes.append((network.target_id(i), score * float(share[i]), node))
        frontier = [made[i] for i in best([nodes[node][1] for node, _, _ in made], topk)]
    return nodes


def tree(steps, topk, count):
    """The best nodes of SGLang's tree, and the target's walk through them."""

    def propose(network, logits, state, position, caches):
        nodes = grow(network, logits, state, position, caches, steps, topk)
        kept = sorted(best([score for _, score, _ in nodes], count - 1))

        def accept(truth):
            at, taken = None, 0
            while True:
                below = [n for n in kept if nodes[n][2] == at and nodes[n][0] == truth[taken]]
                if not below:
                    return taken
                at, taken = below[0], taken + 1

        return accept

    return propose
