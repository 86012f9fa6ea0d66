"""The table of parameters: shapes typed by hand, axes where the rewrites expect them."""

import ast
import sys
from pathlib import Path

import pytest

from eagle3_interop.schemas import draft as neutral
from eagle3_interop.schemas import parameters, quantisation
from eagle3_interop.schemas.draft import (
    Draft,
    Fc,
    Gqa,
    Layers,
    Mla,
    Mlp,
    ParallelDrafting,
    Target,
    Vocabulary,
)
from eagle3_interop.schemas.parameters import DRAFT_VOCAB, ENTRY, PARAMETERS, TAPS

GQA = Gqa(heads=4, kv_heads=2, head_dim=5)
MLA = Mla(heads=4, q_rank=7, kv_rank=9, nope_dim=3, rope_dim=2, v_dim=5, softmax_scale=0.4)
EVERYTHING = GQA.model_copy(update={"qk_norm": True, "qkv_bias": True, "output_bias": True})


def draft(attention=GQA, *, layers=1, everything=False, **changes):
    """Width 8, a target of width 6, three taps, 12 MLP columns, 30 target and 20 draft tokens."""
    told = {
        "hidden_size": 8,
        "target": Target(hidden_size=6),
        "taps": None,
        "fc": Fc(blocks=3, bias=everything, input_norm=everything, block_norms=everything),
        "layers": Layers(
            count=layers,
            attention=attention,
            mlp=Mlp(width=12, bias=everything),
            norm_eps=1e-6,
            windows=(None,) * layers,
        ),
        "vocabulary": Vocabulary(target_size=30, draft_size=20, mapped=True, embeddings="own"),
        "parallel": ParallelDrafting() if everything else None,
    }
    return Draft(**told | changes)


def test_the_shapes_of_a_plain_draft():
    assert parameters.shapes(draft()) == {
        "embed_tokens.weight": (30, 8),
        "fc.weight": (8, 18),
        "layers.0.input_layernorm.weight": (8,),
        "layers.0.hidden_norm.weight": (8,),
        "layers.0.self_attn.q_proj.weight": (20, 16),
        "layers.0.self_attn.k_proj.weight": (10, 16),
        "layers.0.self_attn.v_proj.weight": (10, 16),
        "layers.0.self_attn.o_proj.weight": (8, 20),
        "layers.0.post_attention_layernorm.weight": (8,),
        "layers.0.mlp.gate_proj.weight": (12, 8),
        "layers.0.mlp.up_proj.weight": (12, 8),
        "layers.0.mlp.down_proj.weight": (8, 12),
        "norm.weight": (8,),
        "lm_head.weight": (20, 8),
        "d2t": (20,),
    }


def test_a_later_layer_takes_one_input_and_has_one_norm_before_attention():
    names = {
        name: shape for name, shape in parameters.shapes(draft(layers=2)).items() if "1" in name
    }
    assert names == {
        "layers.1.input_layernorm.weight": (8,),
        "layers.1.self_attn.q_proj.weight": (20, 8),
        "layers.1.self_attn.k_proj.weight": (10, 8),
        "layers.1.self_attn.v_proj.weight": (10, 8),
        "layers.1.self_attn.o_proj.weight": (8, 20),
        "layers.1.post_attention_layernorm.weight": (8,),
        "layers.1.mlp.gate_proj.weight": (12, 8),
        "layers.1.mlp.up_proj.weight": (12, 8),
        "layers.1.mlp.down_proj.weight": (8, 12),
    }


def test_what_a_network_may_have_besides():
    more = (
        parameters.shapes(draft(EVERYTHING, everything=True)).items()
        - parameters.shapes(draft()).items()
    )
    assert dict(more) == {
        "fc.bias": (8,),
        "input_norm.weight": (18,),
        "fc_norm.0.weight": (6,),
        "fc_norm.1.weight": (6,),
        "fc_norm.2.weight": (6,),
        "mask_hidden": (1, 1, 18),
        "layers.0.self_attn.q_proj.bias": (20,),
        "layers.0.self_attn.k_proj.bias": (10,),
        "layers.0.self_attn.v_proj.bias": (10,),
        "layers.0.self_attn.o_proj.bias": (8,),
        "layers.0.self_attn.q_norm.weight": (5,),
        "layers.0.self_attn.k_norm.weight": (5,),
        "layers.0.mlp.gate_proj.bias": (12,),
        "layers.0.mlp.up_proj.bias": (12,),
        "layers.0.mlp.down_proj.bias": (8,),
    }


def test_the_attention_of_a_latent_draft():
    found = {
        name.removeprefix("layers.0.self_attn."): shape
        for name, shape in parameters.shapes(draft(MLA)).items()
        if "self_attn" in name
    }
    assert found == {
        "q_a_proj.weight": (7, 16),
        "q_a_layernorm.weight": (7,),
        "q_b_proj.weight": (4 * (3 + 2), 7),
        "kv_a_proj_with_mqa.weight": (9 + 2, 16),
        "kv_a_layernorm.weight": (9,),
        "kv_b_proj.weight": (4 * (3 + 5), 9),
        "o_proj.weight": (8, 4 * 5),
    }


def test_a_latent_draft_may_project_its_queries_at_once():
    at_once = MLA.model_copy(update={"q_rank": None})
    shapes = parameters.shapes(draft(at_once, layers=2))
    assert shapes["layers.0.self_attn.q_proj.weight"] == (4 * (3 + 2), 16)
    assert shapes["layers.1.self_attn.q_proj.weight"] == (4 * (3 + 2), 8)
    assert not [name for name in shapes if ".q_a_" in name or ".q_b_" in name]


@pytest.mark.parametrize("attention", [GQA, MLA])
def test_a_description_of_either_attention_survives_json(attention):
    found = draft(attention)
    assert Draft.model_validate_json(found.model_dump_json()) == found
    assert found.model_dump()["layers"]["attention"]["kind"] == attention.kind


def test_tables_of_the_target_may_lie_in_the_file_and_are_not_owned():
    borrowed = Vocabulary(
        target_size=30, draft_size=30, mapped=False, head="target", embeddings="target"
    )
    found = draft(vocabulary=borrowed)
    owned, storable = parameters.shapes(found), parameters.storable(found)
    assert not {"embed_tokens.weight", "lm_head.weight", "d2t", "t2d"} & set(owned)
    assert dict(storable.items() - owned.items()) == {
        "embed_tokens.weight": (30, 8),
        "d2t": (30,),
        "t2d": (30,),
    }


def test_a_draft_without_fc_has_nothing_before_its_layers():
    assert next(iter(parameters.shapes(draft(fc=None)))) == "embed_tokens.weight"
    assert not [name for name in parameters.shapes(draft(fc=None)) if name.startswith("fc")]
    assert parameters.along(draft(fc=None), TAPS) == {}
    assert parameters.numbered(draft(fc=None), TAPS) == []


def test_what_follows_the_taps():
    found = draft(EVERYTHING, everything=True)
    assert parameters.along(found, TAPS) == {
        "fc.weight": 1,
        "input_norm.weight": 0,
        "mask_hidden": 2,
    }
    norms = [["fc_norm.0.weight"], ["fc_norm.1.weight"], ["fc_norm.2.weight"]]
    assert parameters.numbered(found, TAPS) == norms


def test_what_follows_the_map_and_the_halves_of_the_input():
    assert parameters.along(draft(), DRAFT_VOCAB) == {"lm_head.weight": 0, "d2t": 0}
    halves = {f"layers.0.self_attn.{part}_proj.weight": 1 for part in "qkv"}
    assert parameters.along(draft(layers=2), ENTRY) == halves
    latent = ("q_a_proj", "kv_a_proj_with_mqa")
    halves = {f"layers.0.self_attn.{part}.weight": 1 for part in latent}
    assert parameters.along(draft(MLA, layers=2), ENTRY) == halves


@pytest.mark.parametrize("row", PARAMETERS, ids=lambda row: row.name)
def test_axes_stand_where_the_rewrites_move_them(row):
    """Rows are gathered along the first dimension, and blocks of the last one are exchanged."""
    for number, dimension in enumerate(row.axes):
        assert not {TAPS, ENTRY} & {*dimension[1:]}
        if dimension[0] in (TAPS, ENTRY):
            assert number == len(row.axes) - 1
        assert DRAFT_VOCAB not in dimension or (number, dimension) == (0, (DRAFT_VOCAB,))


@pytest.mark.parametrize("row", PARAMETERS, ids=lambda row: row.name)
def test_every_row_is_some_networks(row):
    at_once = MLA.model_copy(update={"q_rank": None})
    networks = (
        draft(EVERYTHING, layers=2, everything=True),
        draft(MLA, layers=2),
        draft(at_once, layers=2),
    )
    assert row.repeats or any(
        row is owned for network in networks for _, owned in parameters.parameters(network)
    )


@pytest.mark.parametrize(
    ("name", "key"),
    [
        ("layers.3.self_attn.q_norm.weight", "layers.attention.qk_norm"),
        ("layers.0.self_attn.o_proj.bias", "layers.attention.output_bias"),
        ("fc_norm.7.weight", "fc.block_norms"),
        ("lm_head.weight", "vocabulary.head"),
        ("norm.weight", ""),
        ("layers.0.self_attn.rotary_emb.inv_freq", None),
        ("fc_norm.x.weight", None),
    ],
)
def test_the_key_that_says_whether_a_tensor_belongs(name, key):
    assert parameters.settled_by(name) == key


@pytest.mark.parametrize(
    ("module", "ours"),
    [
        (parameters, {"eagle3_interop.schemas.draft", "eagle3_interop.schemas.quantisation"}),
        (neutral, {"eagle3_interop.schemas.quantisation"}),
        (quantisation, set()),
    ],
)
def test_the_table_imports_pydantic_and_nothing_else_that_is_installed(module, ours):
    """The SGLang plugin reads it inside a server."""
    tree = ast.parse(Path(module.__file__).read_text())
    imported = {node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    imported |= {
        x.name for node in ast.walk(tree) if isinstance(node, ast.Import) for x in node.names
    }
    allowed = {"pydantic"} | sys.stdlib_module_names
    assert {name for name in imported if name.partition(".")[0] not in allowed} == ours
