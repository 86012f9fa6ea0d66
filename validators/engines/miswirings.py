"""Which known mistake counts what the engine counted.

Each is a way in which an engine, or a folder, is known to compute another network than the checkpoint
means (``docs/frameworks.md``). The reference computes it, and its counters are held against the engine's.
"""

import copy
from collections.abc import Iterator
from dataclasses import dataclass

from eagle3_interop.schemas.draft import Attention, Draft, Mla, Rope, default_taps
from eagle3_interop.schemas.engines.windows import window_of
from eagle3_interop.validators.accept.acceptance import Acceptance
from eagle3_interop.validators.accept.shape import Shape
from eagle3_interop.validators.engines.answers import Served
from eagle3_interop.validators.engines.prediction import count, figures
from eagle3_interop.validators.network.reference import Network
from eagle3_interop.validators.target.source import Source
from eagle3_interop.validators.target.texts import Text

NEAR = 0.05
"""Accept lengths that differ by less, relative to what was accepted, are near."""


_NEXT = "feeds each block of fc the next one's tap"
_LAST = 4
"""Streams, the target's last ones, that the last block may have got then: 59 of 61, where [0, 3, 31] was trained."""


@dataclass(frozen=True)
class Miswiring:
    """A mistake.

    Attributes:
        name: kebab-case.
        message: what the engine does, to follow "the engine".
        draft: what it computes.
    """

    name: str
    message: str
    draft: Draft


@dataclass(frozen=True)
class Cause:
    """A mistake, and what it counts.

    Attributes:
        miswiring: the mistake.
        counted: of it, on the engine's texts.
        exact: the counters are the engine's to the last token.
    """

    miswiring: Miswiring
    counted: Acceptance
    exact: bool


def likeliest(
    network: Network, target: Source, texts: tuple[Text, ...], shape: Shape, served: Served
) -> tuple[list[Cause], int]:
    """The mistakes that count as the engine did, or else the nearest, if one is near; and how many were tried.

    Several are returned only where they count exactly alike.
    """
    window = window_of(target.config.to_dict())
    known = list(miswirings(network.draft, target.depth, target.hidden_size, window))
    networks = [_wired(network, one.draft) for one in known]
    counted = count(networks, target, texts, shape)
    got = figures(served)
    causes = [Cause(a, b, figures(b) == got) for a, b in zip(known, counted, strict=True)]
    exact = [one for one in causes if one.exact]
    if exact or not causes:
        return exact, len(causes)
    nearest = min(causes, key=lambda one: _apart(one, served))
    near = _apart(nearest, served) <= NEAR * max(served.accept_length - 1, 0.1)
    return [nearest] if near else [], len(causes)


def _apart(cause: Cause, served: Served) -> float:
    return abs(cause.counted.accept_length - served.accept_length)


def _wired(network: Network, draft: Draft) -> Network:
    weights = copy.copy(network.weights)
    weights.draft = draft
    return Network(draft, weights)


def miswirings(
    draft: Draft, depth: int, width: int, window: int | None = None
) -> Iterator[Miswiring]:
    """Every known mistake that makes sense for a draft.

    Args:
        draft: as the checkpoint means it.
        depth: of the target.
        width: of the target.
        window: that the whole target slides by.
    """
    yield from _taps(draft, depth)
    if draft.fc is not None and draft.parallel is None and width == draft.hidden_size:
        message = "skips fc and feeds the target's last hidden state (EAGLE in place of EAGLE3)"
        yield _changed("fc-skipped", message, draft, fc=None, taps=None)
    residual = "normed" if draft.residual == "raw" else "raw"
    message = f"adds attention's output to the {residual} hidden state (norm_before_residual)"
    yield _changed("residual", message, draft, residual=residual)
    yield _later_steps(draft)
    yield from _vocabulary(draft, width)
    yield from _ignored(draft)
    if window is not None and None in draft.layers.windows:
        windows = tuple(own or window for own in draft.layers.windows)
        layers = draft.layers.model_copy(update={"windows": windows})
        message = f"gives the draft's layers the target's window of {window}"
        yield _changed("target-window", message, draft, layers=layers)


def _later_steps(draft: Draft) -> Miswiring:
    """What a step may take in place of what it should."""
    if draft.parallel is not None:
        message = "drafts token by token, without masks (parallel_drafting is not set)"
        return _changed("token-by-token", message, draft, parallel=None)
    feedback = "post-norm" if draft.feedback == "pre-norm" else "pre-norm"
    place = "after" if feedback == "post-norm" else "before"
    message = f"hands on the hidden state from {place} the final norm (norm_output)"
    return _changed("feedback", message, draft, feedback=feedback)


def _taps(draft: Draft, depth: int) -> Iterator[Miswiring]:
    taps = draft.fed_taps(depth)
    if not taps:
        return
    seen = {taps}
    others = [
        ("taps-lower", "takes every tap one layer lower", tuple(t - 1 for t in taps)),
        ("taps-higher", "takes every tap one layer higher", tuple(t + 1 for t in taps)),
        ("default-taps", "takes the default taps in place of the draft's", default_taps(depth)),
        ("taps-sorted", "feeds the taps in ascending order", tuple(sorted(taps))),
        ("taps-reversed", "feeds the taps in reverse order", tuple(reversed(taps))),
        *(("taps-next", _NEXT, (*taps[1:], last)) for last in range(depth, depth - _LAST, -1)),
    ]
    for name, message, found in others:
        if found is None or len(found) != len(taps) or found in seen:
            continue
        if name == "taps-next" and found[-1] <= taps[-1]:
            continue
        if all(0 <= tap <= depth for tap in found):
            seen.add(found)
            said = f"{message}: {list(found)}, not {list(taps)}"
            yield _changed(name, said, draft, taps=found)


def _vocabulary(draft: Draft, width: int) -> Iterator[Miswiring]:
    vocabulary = draft.vocabulary
    if vocabulary.mapped and vocabulary.head == "own":
        plain = vocabulary.model_copy(update={"mapped": False})
        message = "takes draft ids for the target's (d2t is not applied)"
        yield _changed("d2t-ignored", message, draft, vocabulary=plain)
    if vocabulary.embeddings == "own" and width == draft.hidden_size:
        borrowed = vocabulary.model_copy(update={"embeddings": "target"})
        message = "uses the target's embedding table in place of the draft's"
        yield _changed("target-embeddings", message, draft, vocabulary=borrowed)


def _ignored(draft: Draft) -> Iterator[Miswiring]:
    """Parts of a draft that some engine leaves out without a word."""
    fc, layers = draft.fc, draft.layers
    if fc is not None:
        for name, on in (("input_norm", fc.input_norm), ("block_norms", fc.block_norms)):
            if on:
                less = fc.model_copy(update={name: False})
                label = "norm_before_fc" if name == "input_norm" else "fc_norm"
                yield _changed(
                    f"no-{label.replace('_', '-')}", f"leaves out {label}", draft, fc=less
                )
    for name, message, attention in _attentions(layers.attention):
        changed = layers.model_copy(update={"attention": attention})
        yield _changed(name, message, draft, layers=changed)
    if any(window is not None for window in layers.windows):
        wide = layers.model_copy(update={"windows": (None,) * layers.count})
        yield _changed("no-window", "has no sliding window", draft, layers=wide)
    if layers.count > 1:
        one = layers.model_copy(update={"count": 1, "windows": layers.windows[:1]})
        yield _changed("one-layer", "runs the first draft layer only", draft, layers=one)
    if draft.rope != Rope():
        yield _changed("rope", "rotates with the default base of 10000", draft, rope=Rope())


def _attentions(attention: Attention) -> Iterator[tuple[str, str, Attention]]:
    """Other attention than was meant: name, what the engine does, and what it computes."""
    if isinstance(attention, Mla):
        paired = attention.interleaved
        message = f"rotates {'the two halves of each head' if paired else 'neighbours'} together (rope_interleave)"
        yield "rope-pairs", message, attention.model_copy(update={"interleaved": not paired})
        plain = (attention.nope_dim + attention.rope_dim) ** -0.5
        if abs(attention.softmax_scale / plain - 1) > 1e-6:
            message = "leaves yarn's mscale out of the scores"
            yield "no-mscale", message, attention.model_copy(update={"softmax_scale": plain})
        return
    for name, label in (
        ("qk_norm", "the norms on q and k"),
        ("qkv_bias", "the biases of q, k and v"),
        ("output_bias", "the bias of o_proj"),
    ):
        if getattr(attention, name):
            without = attention.model_copy(update={name: False})
            yield f"no-{name.replace('_', '-')}", f"leaves out {label}", without


def _changed(name: str, message: str, draft: Draft, **update: object) -> Miswiring:
    return Miswiring(name, message, draft.model_copy(update=update))
