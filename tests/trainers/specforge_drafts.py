"""Drafts by SpecForge: its own draft class, a training state as its trainer saves it, its own exporter.

python specforge_drafts.py OUT [VARIANT ...]
"""

import json
import tempfile
from importlib.metadata import version
from pathlib import Path
from typing import Any

import producing
import torch
from specforge.export.to_hf import export_to_hf
from specforge.modeling.auto import AutoDraftModel, AutoDraftModelConfig
from torch import Tensor
from torch.nn.attention.flex_attention import create_block_mask

NESTED = {
    "eagle_aux_hidden_state_layer_ids": [0, 3, 6],
    "use_aux_hidden_state": True,
}
YARN = {
    "rope_type": "yarn",
    "factor": 4.0,
    "original_max_position_embeddings": 128,
    "beta_fast": 32.0,
    "beta_slow": 1.0,
}
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
PARALLEL = {"architectures": ["PEagleDraftModel"], "num_hidden_layers": 2, "mask_token_id": 7}

VARIANTS: dict[str, dict[str, Any]] = {
    "plain": {},
    "nested_ids": {"eagle_config": NESTED},
    "full_vocabulary": {"draft_vocab_size": producing.VOCABULARY},
    "yarn": {"rope_scaling": {**YARN, "mscale": 0.707, "mscale_all_dim": 0.707}},
    "llama3": {"rope_scaling": LLAMA3},
    "sections": {"rope_scaling": {"type": "mrope", "mrope_section": [2, 3, 3]}},
    "norm_output": {"fc_norm": True, "norm_output": True},
    "no_norm_output": {"norm_output": False},
    "ids_as_option": {},
    "parallel": PARALLEL,
    "parallel_yarn": {**PARALLEL, "rope_scaling": YARN},
}
"""What each one's draft config has beside the usual keys."""

TAPS = {"nested_ids": (1, 4, 7), "ids_as_option": (1, 4, 7)}
"""What was fed where it is not the default: by the config's ids, by the option of the run."""

DEPTHS = 2


def config_of(variant: str) -> dict[str, Any]:
    """A draft config as users write it."""
    usual = {
        "architectures": ["LlamaForCausalLMEagle3"],
        "model_type": "llama",
        **producing.SIZES,
        "num_hidden_layers": 1,
        "hidden_act": "silu",
        "rms_norm_eps": 1e-5,
        "max_position_embeddings": 512,
        "draft_vocab_size": producing.DRAFT_VOCABULARY,
        "tie_word_embeddings": False,
        "rope_theta": 77000.0,
        "rope_scaling": None,
        "attention_bias": False,
        "bos_token_id": 0,
        "eos_token_id": 1,
        "torch_dtype": "bfloat16",
    }
    return usual | VARIANTS[variant]


def make(variant: str, folder: Path) -> None:
    """Export one variant, and run it."""
    raw, target = config_of(variant), producing.target()
    with tempfile.TemporaryDirectory() as work:
        written = Path(work) / "draft_config.json"
        written.write_text(json.dumps(raw))
        config = AutoDraftModelConfig.from_file(str(written))
        draft = AutoDraftModel.from_config(config, torch_dtype=torch.bfloat16)
        producing.randomise(draft)
        with torch.no_grad():
            draft.embed_tokens.weight.copy_(target.model.embed_tokens.weight)
        ids = producing.vocabulary(raw["draft_vocab_size"])
        producing.set_vocabulary(draft, ids)
        parallel = "parallel" in variant
        kept = {name: x.clone() for name, x in draft.state_dict().items() if "embed" not in name}
        state = Path(work) / "training_state.pt"
        strategy = "peagle" if parallel else "eagle3"
        torch.save({"strategy": strategy, "draft_state_dict": kept}, state)
        export_to_hf(str(state), str(written), str(folder), embedding_source=str(producing.TARGET))
    draft = draft.float().eval()
    for module in draft.modules():  # the cast to bfloat16 has rounded the rotation's tables
        if hasattr(module, "_init_rope"):
            module._init_rope()
    if parallel:
        draft._rebuild_rotary_embedding()
    taps = TAPS.get(variant, producing.default_taps(len(target.model.layers)))
    tokens = producing.text()
    features = producing.fed(target, tokens, taps)[:, :-1]
    run = in_one_pass if parallel else step_by_step
    with torch.no_grad():
        computed = run(draft, features, tokens, variant)
    about = f"SpecForge, PyPI specforge {version('specforge')}"
    producing.write(folder, about, {"x": tokens, "d2t": ids, **computed})


def step_by_step(draft: Any, features: Tensor, tokens: Tensor, variant: str) -> dict[str, Tensor]:
    """As its online trainer unrolls: each step is fed what the one before returned."""
    hidden = draft.project_hidden_states(features)
    length = hidden.shape[1]
    found = {"fused": hidden[0]}
    allowed = torch.ones(1, length, dtype=torch.bool)
    mask = draft.prepare_decoder_attention_mask(allowed, hidden, 1, length, 0)
    positions = torch.arange(length)[None]
    if variant == "sections":
        positions = positions[None].expand(3, 1, length)
    cache: list[list[Tensor]] = [[], []]
    fed = tokens[None, 1:]
    for depth in range(DEPTHS):
        hidden = draft.backbone(
            input_embeds=draft.embed_input_ids(fed),
            hidden_states=hidden,
            cache_hidden=cache,
            attention_mask=mask,
            position_ids=positions,
        )
        valid = length - depth
        found[f"stream.{depth}"] = hidden[0, :valid]
        found[f"logits.{depth}"] = draft.compute_logits(hidden)[0, :valid]
        fed = producing.next_tokens(fed)
    return found


def in_one_pass(draft: Any, features: Tensor, tokens: Tensor, variant: str) -> dict[str, Tensor]:
    """All depths of all starts in one sequence, in the order and under the mask of its trainer.

    The mask is that of ``algorithms/peagle``, whose module does not import without a GPU's libraries: real positions
    up to its own, and the masks of its own rollout.
    """
    del variant
    hidden = draft.project_hidden_states(features)
    length = hidden.shape[1]
    anchor = torch.arange(length).repeat(DEPTHS)
    depth = torch.arange(DEPTHS).repeat_interleave(length)

    def seen(_batch: Tensor, _head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        real = (depth[key] == 0) & (anchor[query] >= anchor[key])
        return real | ((anchor[query] == anchor[key]) & (depth[query] >= depth[key]))

    total = length * DEPTHS
    mask = create_block_mask(seen, None, None, total, total, device="cpu")
    masked = draft.project_hidden_states(draft.mask_hidden)
    later = length * (DEPTHS - 1)
    embedded = draft.embed_input_ids(
        torch.cat([tokens[None, 1:], torch.full((1, later), draft.config.mask_token_id)], dim=1)
    )
    out = draft.backbone(
        input_embeds=embedded,
        hidden_states=torch.cat([hidden, masked.expand(1, later, -1)], dim=1),
        attention_mask=mask,
        position_ids=(anchor + depth)[None],
    )
    logits = draft.compute_logits(out)[0].view(DEPTHS, length, -1)
    found = {f"logits.{j}": logits[j, : length - j] for j in range(DEPTHS)}
    return {"fused": hidden[0], **found}


if __name__ == "__main__":
    producing.main(VARIANTS, make)
