"""A draft in a few lines that a person can scan, and the words that only EAGLE-3 or this tool use."""

from collections.abc import Iterator

from eagle3_interop.convert.decide.loaded import Loaded
from eagle3_interop.schemas.draft import Draft, Gqa
from eagle3_interop.schemas.findings import Usage, errors

_WORDS = {
    "taps": "after how many target layers each hidden state is taken that fc concatenates: 0 is the embedding "
    "output, k the input of layer k",
    "residual": "what layer 0 adds the output of its attention to: the hidden state as it is (raw), or after its "
    "norm (normed)",
    "feedback": "what one draft step hands to the next: the hidden state before the final norm, or after it",
}


def describe(described: Draft | Loaded) -> list[str]:
    """The network in a few lines, for people: those of `named`."""
    return [f"{name:<14}{value}" for name, value in named(described)]


def named(described: Draft | Loaded) -> list[tuple[str, str]]:
    """The network for people, a name and its value each.

    A value that an error of the source leaves in doubt names that error.

    Raises:
        Usage: it is neither a description nor what `api.load` gives.
    """
    draft = described.reading.draft if isinstance(described, Loaded) else described
    if not isinstance(draft, Draft):
        kind = type(draft).__name__
        raise Usage(
            f"a {kind} was given where a Draft is needed: load(SOURCE).reading.draft gives one."
        )
    doubts = {}
    if isinstance(described, Loaded):
        doubts = {i.settled_by: i.code for i in errors(described.reading.findings) if i.settled_by}
    pairs = []
    for name, paths, value in _rows(draft):
        asked = sorted({code for path, code in doubts.items() if path.startswith(paths)})
        if asked and name == "taps" and draft.taps is None:
            value = "not settled"
        doubt = f"  (in doubt: {', '.join(asked)})" if asked else ""
        pairs.append((name, f"{value}{doubt}"))
    return pairs


def words() -> list[str]:
    """What the words of a description mean."""
    return [f"{word}: {meaning}." for word, meaning in _WORDS.items()]


def _rows(draft: Draft) -> Iterator[tuple[str, tuple[str, ...], str]]:
    """Name, the paths of the description that it speaks of, and value."""
    layers, vocabulary = draft.layers, draft.vocabulary
    yield "target", ("target.",), _target(draft)
    number = "1 layer" if layers.count == 1 else f"{layers.count} layers"
    bias = ", with biases" if layers.mlp.bias else ""
    yield (
        "draft",
        ("layers.count", "layers.mlp", "layers.norm_eps", "hidden_size", "dtype"),
        f"{number} of width {draft.hidden_size}, {layers.mlp.activation} MLP of width "
        f"{layers.mlp.width}{bias}, RMS norm eps {layers.norm_eps:g}, {draft.dtype}",
    )
    yield "attention", ("layers.attention",), _attention(draft)
    yield "window", ("layers.windows",), _windows(draft)
    yield "rope", ("rope",), _rope(draft)
    yield "context", ("max_position",), f"{draft.max_position} positions"
    yield "fc", ("fc",), _fc(draft)
    yield "taps", ("taps",), _taps(draft)
    yield "residual", ("residual",), draft.residual
    if draft.parallel is None:
        yield "feedback", ("feedback",), draft.feedback
    mapped = " (the maps d2t and t2d)" if vocabulary.mapped else ""
    scale = f", logits times {vocabulary.logit_scale:g}" if vocabulary.logit_scale != 1 else ""
    yield (
        "vocabulary",
        ("vocabulary.",),
        f"{vocabulary.draft_size} of the target's {vocabulary.target_size} tokens{mapped}{scale}",
    )
    heads = {"own": "its own", "tied": "its embedding table (tied)", "target": "the target's"}
    trained = ", trained" if draft.trains_embeddings else ""
    tables = {"own": f"its own{trained}", "target": f"the target's{trained}"}
    yield (
        "tables",
        ("vocabulary.head", "vocabulary.embeddings"),
        f"head: {heads[vocabulary.head]}; embeddings: {tables[vocabulary.embeddings]}",
    )
    tokens = draft.speculative_tokens
    yield (
        "draft tokens",
        ("speculative_tokens",),
        "not said" if tokens is None else f"{tokens} a step",
    )
    if draft.parallel is not None:
        mask = draft.parallel.mask_token_id
        yield "drafting", ("parallel",), f"all tokens in one pass (P-EAGLE), mask token {mask}"
    if draft.quantisation is not None:
        yield "quantised", ("quantisation",), str(draft.quantisation)


def _target(draft: Draft) -> str:
    target = draft.target
    facts = [f"width {target.hidden_size}"]
    if target.layers is not None:
        facts.append(f"{target.layers} layers")
    if target.architectures:
        facts.append(", ".join(target.architectures))
    return f"{target.name or 'not named'} ({', '.join(facts)})"


def _attention(draft: Draft) -> str:
    attention = draft.layers.attention
    if not isinstance(attention, Gqa):
        pairs = "neighbours" if attention.interleaved else "halves"
        queries = "" if attention.q_rank is None else f", of {attention.q_rank} for queries"
        return (
            f"multi-head latent (MLA): {attention.heads} heads of {attention.nope_dim} + {attention.rope_dim} "
            f"rotated ({pairs}), values of {attention.v_dim}, latent of {attention.kv_rank}{queries}; "
            f"scores times {attention.softmax_scale:.6g}"
        )
    parts = [f"{attention.heads} heads of {attention.head_dim}, {attention.kv_heads} KV heads"]
    extras = (
        ("q/k norms", attention.qk_norm),
        ("q/k/v biases", attention.qkv_bias),
        ("bias on o_proj", attention.output_bias),
    )
    return ", ".join([*parts, *(name for name, there in extras if there)])


def _windows(draft: Draft) -> str:
    windows = draft.layers.windows
    if not any(windows):
        return "none (full attention)"
    if len(set(windows)) == 1:
        return f"{windows[0]} positions"
    shown = ", ".join("full" if window is None else str(window) for window in windows)
    return f"by layer: {shown}"


def _rope(draft: Draft) -> str:
    rope = draft.rope
    parts = [f"theta {rope.theta:g}"]
    if rope.scaling:
        numbers = ", ".join(f"{key} {_number(value)}" for key, value in rope.parameters.items())
        parts.append(f"{rope.scaling} scaling ({numbers})")
    elif rope.parameters:
        parts.append(", ".join(f"{key} {value}" for key, value in rope.parameters.items()))
    if rope.partial != 1:
        parts.append(f"{rope.partial:g} of each head rotated")
    if rope.mrope_sections is not None:
        parts.append(f"multimodal sections {list(rope.mrope_sections)}")
    return ", ".join(parts)


def _number(value: object) -> str:
    if isinstance(value, list):
        return f"[{len(value)} numbers]"
    return f"{value:g}" if isinstance(value, float) else f"{value}"


def _fc(draft: Draft) -> str:
    fc = draft.fc
    if fc is None:
        return "none: the draft reads the target's last hidden state"
    blocks = "1 hidden state" if fc.blocks == 1 else f"{fc.blocks} hidden states"
    extras = (
        ("with a bias", fc.bias),
        ("one norm over all before it", fc.input_norm),
        ("a norm for each before it", fc.block_norms),
    )
    names = [name for name, there in extras if there]
    return ", ".join([f"over {blocks} of the target", *names])


def _taps(draft: Draft) -> str:
    if draft.fc is None:
        return "none"
    if draft.taps is None:
        return "not given: the default (2, L // 2, L - 3) of a target of L layers"
    return ", ".join(map(str, draft.taps))
