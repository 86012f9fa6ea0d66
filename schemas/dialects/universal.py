"""One folder that vLLM, SGLang (stock, or with the plugin) and speculators all load to the same network.

A flat config with speculators' own keys beside it: each reader finds its own keys and ignores the rest.
"""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from eagle3_interop.schemas.dialects import sglang, speculators, vllm
from eagle3_interop.schemas.dialects.base import Reading, Source, TargetFacts, Wishes, Writing
from eagle3_interop.schemas.dialects.hf import CONFIG
from eagle3_interop.schemas.dialects.spelling import Spelling
from eagle3_interop.schemas.dialects.writing import widen_windows, zero_biases
from eagle3_interop.schemas.draft import Draft, Target
from eagle3_interop.schemas.engines import targets
from eagle3_interop.schemas.engines.powers import Powers, both, lacks
from eagle3_interop.schemas.findings import Finding, errors, finding

SPELLING = Spelling(roots=("",), layer0=("layers.0.",), later_norm="input_layernorm")


def recognise(config: Mapping[str, Any]) -> str | None:
    """Speculators' keys beside a flat config."""
    if "speculators_model_type" in config and "num_hidden_layers" in config:
        return "speculators' keys beside flat ones"
    return None


def refuses(config: Mapping[str, Any]) -> str:
    """All three do."""
    return speculators.refuses(config) or sglang.refuses(config) or vllm.refuses(config)


def read(source: Source, target: TargetFacts | None) -> Reading:
    """Read as all three do: by speculators' keys, and an error where another finds another network."""
    own = speculators.read(source, target)
    found = list(own.findings)
    facts = target or targets.facts_named(own.draft)
    for engine, layout in (("vLLM", vllm), ("SGLang", sglang)):
        other = layout.read(source, facts)
        found += errors(other.findings)
        ours, theirs = _network(own.draft), _network(other.draft)
        differing = [
            key for key in Draft.model_fields if getattr(ours, key) != getattr(theirs, key)
        ]
        if differing:
            message = f"{engine} and speculators find different networks in this folder: {', '.join(differing)}."
            settles = differing[0] if len(differing) == 1 else ""
            found.append(finding("readers-disagree", CONFIG, message, settled_by=settles))
    return replace(own, findings=tuple(dict.fromkeys(found)))


def _network(draft: Draft) -> Draft:
    """The description without what only one of the three can say."""
    vocabulary = draft.vocabulary.model_copy(update={"embeddings": "target"})
    target = Target(hidden_size=draft.target.hidden_size)
    unsaid = {"target": target, "speculative_tokens": None, "trains_embeddings": False}
    return draft.model_copy(update={**unsaid, "vocabulary": vocabulary})


def uncaptured(draft: Draft, target: TargetFacts) -> Iterator[Finding]:
    """What either engine's class of this target cannot capture."""
    yield from vllm.uncaptured(draft, target)
    yield from sglang.uncaptured(draft, target)


def draft_class(draft: Draft, wishes: Wishes) -> Powers:
    """What the classes of all three compute."""
    both_others = both(speculators.draft_class(draft, wishes), vllm.draft_class(draft, wishes))
    return both(both_others, sglang.draft_class(draft, wishes))


def write(draft: Draft, wishes: Wishes) -> Writing:
    """Write the folder for all three, or say which feature stands in the way for which of them."""
    readers = [layout.draft_class(draft, wishes) for layout in (speculators, vllm, sglang)]
    flat = sglang.write(draft, wishes)
    own, said = speculators.own_keys(draft, wishes)
    config: dict[str, Any] = {**flat.config, **own}
    ids = [
        *vllm.write_ids(config, draft, wishes.target),
        *widen_windows(config, draft, wishes.target),
    ]
    shared = both(readers[0], readers[1])
    # One flag switches other biases on in each reader; a zero that a reader does not need, it passes over.
    zeros = tuple(dict.fromkeys(name for one in readers for name in zero_biases(draft, one)))
    findings = [*flat.findings, *lacks(draft, shared), *said, *ids]
    if draft.layers.count > 1:
        message = "written under both names: SGLang reads hidden_norm, the others input_layernorm."
        findings.append(finding("norm-twice", "layers.N.input_layernorm.weight", message))
    return replace(
        flat,
        config=config,
        spelling=SPELLING,
        findings=tuple(dict.fromkeys(findings)),
        later_norms_twice=draft.layers.count > 1,
        zeros=zeros,
    )
