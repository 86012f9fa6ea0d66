"""Random drafts for the tests of this folder."""

import torch

from eagle3_interop.schemas.draft import (
    Draft,
    Fc,
    Gqa,
    Layers,
    Mla,
    Mlp,
    Rope,
    Target,
    Vocabulary,
)
from eagle3_interop.validators.network.reference import Network
from eagle3_interop.validators.network.weights import Weights


def make_draft(**changes):
    """A small draft; `changes` are named after the description's parts, flattened."""
    options = {
        "hidden": 64, "target_hidden": 64, "target_layers": 6, "taps": (1, 3, 5), "blocks": 3,
        "fc_bias": False, "input_norm": False, "block_norms": False, "no_fc": False, "count": 1,
        "heads": 4, "kv_heads": 2, "head_dim": 16, "qk_norm": False, "qkv_bias": False,
        "output_bias": False, "mlp_width": 96, "mlp_bias": False, "windows": None,
        "vocabulary": 128, "draft_vocabulary": 128, "head": "own", "embeddings": "own",
        "logit_scale": 1.0, "rope": Rope(), "residual": "raw", "feedback": "pre-norm",
        "max_position": 512, "latent": None,
    }  # fmt: skip
    assert set(changes) <= set(options), changes
    o = options | changes
    taps = None if o["no_fc"] else o["taps"]
    return Draft(
        hidden_size=o["hidden"],
        target=Target(hidden_size=o["target_hidden"], layers=o["target_layers"]),
        taps=taps,
        fc=None
        if o["no_fc"]
        else Fc(
            blocks=len(taps) if taps else o["blocks"],
            bias=o["fc_bias"],
            input_norm=o["input_norm"],
            block_norms=o["block_norms"],
        ),
        layers=Layers(
            count=o["count"],
            attention=o["latent"]
            or Gqa(
                heads=o["heads"],
                kv_heads=o["kv_heads"],
                head_dim=o["head_dim"],
                qk_norm=o["qk_norm"],
                qkv_bias=o["qkv_bias"],
                output_bias=o["output_bias"],
            ),
            mlp=Mlp(width=o["mlp_width"], bias=o["mlp_bias"]),
            norm_eps=1e-5,
            windows=o["windows"] or (None,) * o["count"],
        ),
        residual=o["residual"],
        feedback=o["feedback"],
        rope=o["rope"],
        max_position=o["max_position"],
        vocabulary=Vocabulary(
            target_size=o["vocabulary"],
            draft_size=o["draft_vocabulary"],
            mapped=o["draft_vocabulary"] != o["vocabulary"],
            head=o["head"],
            embeddings=o["embeddings"],
            logit_scale=o["logit_scale"],
        ),
        dtype="float32",
    )


def shapes(draft):
    """Canonical name to shape of every floating-point tensor of a draft."""
    h, t = draft.hidden_size, draft.target.hidden_size
    a, m = draft.layers.attention, draft.layers.mlp
    found = {"norm.weight": (h,)}
    if draft.vocabulary.embeddings == "own":
        found["embed_tokens.weight"] = (draft.vocabulary.target_size, h)
    if draft.vocabulary.head == "own":
        found["lm_head.weight"] = (draft.vocabulary.draft_size, h)
    if draft.fc is not None:
        n = draft.fc.blocks
        found["fc.weight"] = (h, n * t)
        found |= {"fc.bias": (h,)} if draft.fc.bias else {}
        found |= {"input_norm.weight": (n * t,)} if draft.fc.input_norm else {}
        if draft.fc.block_norms:
            found |= {f"fc_norm.{i}.weight": (t,) for i in range(n)}
    for i in range(draft.layers.count):
        name, width = f"layers.{i}", 2 * h if i == 0 else h
        found |= {f"{name}.hidden_norm.weight": (h,)} if i == 0 else {}
        found[f"{name}.input_layernorm.weight"] = found[
            f"{name}.post_attention_layernorm.weight"
        ] = (h,)
        attention = latent_shapes if isinstance(a, Mla) else grouped_shapes
        found |= {
            f"{name}.self_attn.{part}": shape for part, shape in attention(a, h, width).items()
        }
        for part, shape in (("gate", (m.width, h)), ("up", (m.width, h)), ("down", (h, m.width))):
            found[f"{name}.mlp.{part}_proj.weight"] = shape
            found |= {f"{name}.mlp.{part}_proj.bias": shape[:1]} if m.bias else {}
    return found


def grouped_shapes(a, h, width):
    """Of the attention of a layer whose input is `width` wide."""
    found = {}
    for part, heads in (("q", a.heads), ("k", a.kv_heads), ("v", a.kv_heads)):
        found[f"{part}_proj.weight"] = (heads * a.head_dim, width)
        if a.qkv_bias:
            found[f"{part}_proj.bias"] = (heads * a.head_dim,)
        if a.qk_norm and part != "v":
            found[f"{part}_norm.weight"] = (a.head_dim,)
    found["o_proj.weight"] = (h, a.heads * a.head_dim)
    return found | ({"o_proj.bias": (h,)} if a.output_bias else {})


def latent_shapes(a, h, width):
    """The same of latent attention."""
    rows = a.heads * (a.nope_dim + a.rope_dim)
    found = {"q_proj.weight": (rows, width)}
    if a.q_rank is not None:
        found = {
            "q_a_proj.weight": (a.q_rank, width),
            "q_a_layernorm.weight": (a.q_rank,),
            "q_b_proj.weight": (rows, a.q_rank),
        }
    return found | {
        "kv_a_proj_with_mqa.weight": (a.kv_rank + a.rope_dim, width),
        "kv_a_layernorm.weight": (a.kv_rank,),
        "kv_b_proj.weight": (a.heads * (a.nope_dim + a.v_dim), a.kv_rank),
        "o_proj.weight": (h, a.heads * a.v_dim),
    }


def make_tensors(draft, seed=0):
    """Random weights: norms about 1, matrices scaled to keep activations of order 1."""
    generator = torch.Generator().manual_seed(seed)
    tensors = {}
    for name, shape in shapes(draft).items():
        noise = torch.randn(shape, generator=generator)
        if "norm" in name:
            tensors[name] = 1.0 + 0.3 * noise
        elif name.endswith("bias"):
            tensors[name] = 0.3 * noise
        elif name == "embed_tokens.weight":
            tensors[name] = noise
        else:
            tensors[name] = 1.5 * noise / shape[-1] ** 0.5
    if draft.vocabulary.mapped:
        chosen = torch.randperm(draft.vocabulary.target_size, generator=generator)
        chosen = chosen[: draft.vocabulary.draft_size].sort().values
        tensors["d2t"] = chosen - torch.arange(len(chosen))
        tensors["t2d"] = torch.zeros(draft.vocabulary.target_size, dtype=torch.bool)
        tensors["t2d"][chosen] = True
    return tensors


def make_network(draft, seed=0, **options):
    """The draft with random weights."""
    return Network(draft, Weights.of(draft, make_tensors(draft, seed), **options))
