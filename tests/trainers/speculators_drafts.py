"""Drafts by speculators: its own model classes, their own ``save_pretrained`` and training forward.

python speculators_drafts.py OUT [VARIANT ...]
"""

from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

import producing
import torch
from speculators import SpeculatorsConfig, VerifierConfig
from speculators.models.eagle3 import Eagle3DraftModel, Eagle3SpeculatorConfig
from speculators.models.peagle import PEagleDraftModel, PEagleSpeculatorConfig
from speculators.models.peagle import core as parallel_core
from speculators.proposals.greedy import GreedyTokenProposalConfig
from torch import Tensor, nn
from transformers import LlamaConfig, Qwen3Config

YARN = {
    "rope_type": "yarn",
    "factor": 4.0,
    "original_max_position_embeddings": 128,
}
SLIDING = {"sliding_window": 8, "use_sliding_window": True, "layer_types": ["sliding_attention"]}
PARALLEL = {"mask_token_id": 7}

VARIANTS: dict[str, dict[str, Any]] = {
    "plain": {},
    "norm_before_residual": {"norm_before_residual": True},
    "norm_output": {"fc_norm": True, "norm_output": True},
    "input_norm": {"norm_before_fc": True},
    "sliding": {"layer": {"kind": Qwen3Config, **SLIDING}},
    "parallel": {**PARALLEL, "layer": {"num_hidden_layers": 2}},
    "parallel_yarn": {**PARALLEL, "layer": {"rope": YARN}},
}
"""What each one's config has beside the usual keys; ``layer`` is that of its decoder layers."""

TAPS = (2, 4, 5)
DEPTHS = 2


def config_of(variant: str) -> Eagle3SpeculatorConfig:
    """As its training command builds it."""
    own = dict(VARIANTS[variant])
    layer = {"num_hidden_layers": 1, "rope": {"rope_type": "default"}, "kind": LlamaConfig}
    layer |= own.pop("layer", {})
    rope, kind = layer.pop("rope"), layer.pop("kind")
    transformer = kind(
        **producing.SIZES,
        max_position_embeddings=512,
        rms_norm_eps=1e-5,
        rope_parameters={**rope, "rope_theta": 77000.0},
        **layer,
    )
    transformer._attn_implementation = "eager"
    parallel = "mask_token_id" in own
    config = PEagleSpeculatorConfig if parallel else Eagle3SpeculatorConfig
    algorithm = "peagle" if parallel else "eagle3"
    verifier = VerifierConfig(name_or_path="org/target", architectures=["LlamaForCausalLM"])
    return config(
        transformer_layer_config=transformer,
        draft_vocab_size=producing.DRAFT_VOCABULARY,
        eagle_aux_hidden_state_layer_ids=list(TAPS),
        speculators_config=SpeculatorsConfig(
            algorithm=algorithm,
            proposal_methods=[GreedyTokenProposalConfig(speculative_tokens=3)],
            default_proposal_method="greedy",
            verifier=verifier,
        ),
        **own,
    )


def make(variant: str, folder: Path) -> None:
    """Export one variant, and run it."""
    parallel = "parallel" in variant
    draft = (PEagleDraftModel if parallel else Eagle3DraftModel)(config_of(variant))
    target = producing.target()
    producing.randomise(draft)
    with torch.no_grad():
        draft.embed_tokens.weight.copy_(target.model.embed_tokens.weight)
        for parameter in draft.parameters():  # as its trainer stores them
            parameter.copy_(parameter.bfloat16())
    ids = producing.vocabulary()
    producing.set_vocabulary(draft, ids)
    draft.to(torch.bfloat16).save_pretrained(folder)
    draft = draft.float().eval()
    draft.rotary_emb = type(draft.rotary_emb)(draft.rotary_emb.config)  # bfloat16 has rounded it
    tokens = producing.text()
    features = producing.fed(target, tokens, TAPS)[:, :-1]
    found, hooks = watched(draft)
    with torch.no_grad():
        (in_one_pass if parallel else step_by_step)(draft, features, tokens[None, 1:])
    for hook in hooks:
        hook.remove()
    length = features.shape[1]
    if parallel:
        found = {name: x.view(DEPTHS, length, -1) for name, x in found.items()}
        found = {f"{name[:-2]}.{j}": x[j] for name, x in found.items() for j in range(DEPTHS)}
    computed = {name: x[: length - int(name[-1])] for name, x in found.items() if name != "fc.1"}
    computed = {"fused": computed.pop("fc.0"), **computed}
    if parallel:  # nothing is handed on
        computed = {name: x for name, x in computed.items() if "stream" not in name}
    about = f"PyPI speculators {version('speculators')}"
    producing.write(folder, about, {"x": tokens, "d2t": ids, **computed})


def watched(draft: nn.Module) -> tuple[dict[str, Tensor], list[Any]]:
    """What passes fc, the final norm and the head, call by call."""
    found: dict[str, Tensor] = {}

    def keep(name: str, *, entry: bool = False) -> Callable[..., None]:
        def hook(_module: nn.Module, inputs: Any, output: Any) -> None:
            count = sum(key.startswith(name) for key in found)
            found[f"{name}.{count}"] = (inputs[0] if entry else output)[0].clone()

        return hook

    before = not draft.config.norm_output
    return found, [
        draft.fc.register_forward_hook(keep("fc")),
        draft.norm.register_forward_hook(keep("stream", entry=before)),
        draft.lm_head.register_forward_hook(keep("logits")),
    ]


def step_by_step(draft: Any, features: Tensor, tokens: Tensor) -> None:
    """Its training forward."""
    length = tokens.shape[1]
    draft(
        hidden_states=features,
        input_ids=tokens,
        document_ids=torch.zeros(1, length, dtype=torch.long),
        position_ids=torch.arange(length)[None],
        ttt_steps=DEPTHS,
    )


def in_one_pass(draft: Any, features: Tensor, tokens: Tensor) -> None:
    """The same of a parallel draft, with every start sampled at every depth."""
    length = tokens.shape[1]
    every = torch.arange(length).repeat(DEPTHS), torch.arange(DEPTHS).repeat_interleave(length)
    sample, metrics = parallel_core.generate_cod_sample_indices, parallel_core.compute_metrics
    parallel_core.generate_cod_sample_indices = lambda **_: every
    parallel_core.compute_metrics = lambda **_: (None, {})
    # Positions past the text are masks, whose own tokens and features are never looked at.
    room = (0, DEPTHS - 1)
    try:
        draft(
            hidden_states=nn.functional.pad(features, (0, 0, *room)),
            input_ids=nn.functional.pad(tokens, room),
            document_ids=torch.zeros(1, length + room[1], dtype=torch.long),
            verifier_last_hidden_states=features.new_zeros(1, length + room[1], draft.hidden_size),
        )
    finally:
        parallel_core.generate_cod_sample_indices = sample
        parallel_core.compute_metrics = metrics


if __name__ == "__main__":
    producing.main(VARIANTS, make)
