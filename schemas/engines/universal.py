"""One folder that vLLM, SGLang (stock, or with the plugin) and speculators all load to the same network.

A flat config with speculators' own keys beside it: each reader finds its own keys and ignores the rest.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from eagle3_interop.schemas.dialects.base import Reading, Source, TargetFacts, Wishes, Writing
from eagle3_interop.schemas.dialects.hf import CONFIG
from eagle3_interop.schemas.dialects.keys import architecture
from eagle3_interop.schemas.dialects.recognition import is_latent
from eagle3_interop.schemas.dialects.spelling import Spelling
from eagle3_interop.schemas.dialects.writing import widen_windows, zero_biases
from eagle3_interop.schemas.draft import Draft, Mla, differences
from eagle3_interop.schemas.engines import sglang, speculators, targets, vllm
from eagle3_interop.schemas.engines.loaders import Loader
from eagle3_interop.schemas.engines.releases import newest
from eagle3_interop.schemas.findings import errors, finding
from eagle3_interop.schemas.powers import Powers, both, lacks

SPELLING = Spelling(roots=("",), layer0=("layers.0.",), later_norm="input_layernorm")


ENGINES = ("speculators", "vllm", "sglang")
"""Who loads such a folder; the first one's reading is compared with the others'."""

LATENT_ENGINES = ("vllm", "sglang")
"""The same, of a draft with latent attention, for which speculators has no form."""

LOADER = Loader(
    embeddings="either",
    shares_embeddings=False,
    strict_maps=True,
    attention_factor=False,
    wants_format=True,
)
LATENT_LOADER = Loader(embeddings="either", attention_factor=False)


def is_for_all(config: Mapping[str, Any]) -> bool:
    """Whether speculators' keys stand beside a flat config."""
    return "speculators_model_type" in config and "num_hidden_layers" in config


def read(source: Source, target: TargetFacts | None) -> Reading:
    """Read as all of them do: as the first of them, and an error where another finds another network."""
    latent = is_latent(architecture(source.config), source.config.get("kv_lora_rank"))
    first, *others = (newest(engine) for engine in (LATENT_ENGINES if latent else ENGINES))
    own = first.read(source, target)
    found = list(own.findings)
    facts = target or targets.facts_named(own.draft)
    for release in others:
        other = release.read(source, facts)
        found += errors(other.findings)
        differing = sorted(
            {path.partition(".")[0] for path in differences(own.draft, other.draft, tables=False)}
        )
        if differing:
            message = (
                f"{release.title} and {first.title} find different networks in this folder: "
                f"{', '.join(differing)}."
            )
            settles = differing[0] if len(differing) == 1 else ""
            found.append(finding("readers-disagree", CONFIG, message, settled_by=settles))
    return replace(own, findings=tuple(dict.fromkeys(found)))


def draft_class(draft: Draft, wishes: Wishes) -> Powers:
    """What the classes of all three compute, or of two where the third has no form for it."""
    if isinstance(draft.layers.attention, Mla):
        return both(vllm.draft_class(draft, wishes), sglang.draft_class(draft, wishes))
    both_others = both(speculators.draft_class(draft, wishes), vllm.draft_class(draft, wishes))
    return both(both_others, sglang.draft_class(draft, wishes))


def write(draft: Draft, wishes: Wishes) -> Writing:
    """Write the folder for all three, or say which feature stands in the way for which of them."""
    if isinstance(draft.layers.attention, Mla):
        return _write_latent(draft, wishes)
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
        message = "written under both names: SGLang reads hidden_norm, speculators and vLLM read input_layernorm."
        findings.append(finding("norm-twice", "layers.N.input_layernorm.weight", message))
    return replace(
        flat,
        config=config,
        spelling=SPELLING,
        findings=tuple(dict.fromkeys(findings)),
        later_norms_twice=draft.layers.count > 1,
        zeros=zeros,
    )


def _write_latent(draft: Draft, wishes: Wishes) -> Writing:
    """Write the folder for vLLM and SGLang, which read the same keys of it."""
    flat = sglang.write(draft, wishes)
    config = dict(flat.config)
    ids = vllm.write_ids(config, draft, wishes.target)
    message = "for vLLM and SGLang: speculators has no form for latent attention (MLA)."
    alone = finding("universal-of-two", f"{CONFIG}: architectures", message)
    findings = (*flat.findings, *lacks(draft, vllm.draft_class(draft, wishes)), *ids, alone)
    return replace(flat, config=config, spelling=SPELLING, findings=tuple(dict.fromkeys(findings)))
