"""The reference forward, judged by the real speculators class and by plain arithmetic."""

import json
import os
import subprocess
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import LlamaConfig
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

from eagle3_interop.schemas.dialects.base import Reading
from eagle3_interop.schemas.draft import ParallelDrafting, Rope
from eagle3_interop.schemas.findings import Refused
from eagle3_interop.validators.network.reference import Features, Network
from eagle3_interop.validators.network.rotary import Rotary
from eagle3_interop.validators.network.weights import Tables, Weights, as_tensor

T = 24
STEPS = 4

LLAMA3 = {
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 16,
}
YARN = {"factor": 4.0, "original_max_position_embeddings": 16, "beta_fast": 16.0}
LONG = {
    "factor": 4.0,
    "original_max_position_embeddings": 512,
    "short_factor": [1.0 + 0.1 * i for i in range(8)],
    "long_factor": [2.0 + 0.2 * i for i in range(8)],
}
DYNAMIC = Rope(scaling="dynamic", parameters={"factor": 2.0})

GRID = {
    "plain": {},
    "normed-residual": {"residual": "normed"},
    "post-norm-feedback": {"feedback": "post-norm"},
    "both-flags": {"residual": "normed", "feedback": "post-norm"},
    "input-norm": {"input_norm": True},
    "block-norms": {"block_norms": True},
    "one-tap": {"taps": (6,)},
    "five-taps": {"taps": (0, 1, 3, 5, 6), "block_norms": True},
    "no-grouping": {"kv_heads": 4},
    "one-kv-head": {"kv_heads": 1},
    "wide-heads": {"head_dim": 32},
    "qk-norm": {"qk_norm": True},
    "biases": {"qkv_bias": True, "output_bias": True, "mlp_bias": True},
    "three-layers": {"count": 3},
    "everything-qwen3": {"count": 2, "qk_norm": True, "residual": "normed", "feedback": "post-norm",
                         "block_norms": True, "draft_vocabulary": 48, "qkv_bias": True,
                         "output_bias": True},
    "reduced-vocabulary": {"draft_vocabulary": 48},
    "theta": {"rope": Rope(theta=1e6)},
    "linear": {"rope": Rope(scaling="linear", parameters={"factor": 4.0})},
    "dynamic": {"rope": DYNAMIC},
    "dynamic-beyond": {"rope": DYNAMIC, "max_position": 8},
    "yarn": {"rope": Rope(scaling="yarn", parameters=YARN)},
    "llama3": {"rope": Rope(theta=5e5, scaling="llama3", parameters=LLAMA3)},
    "longrope": {"rope": Rope(scaling="longrope", parameters=LONG)},
    "partial": {"rope": Rope(partial=0.5, scaling="linear", parameters={"factor": 1.0})},
    "partial-yarn": {"rope": Rope(partial=0.5, scaling="yarn", parameters=YARN)},
}  # fmt: skip
WINDOWS = {
    "window": {"windows": (6,)},
    "window-in-one-layer": {"count": 3, "windows": (None, 6, None)},
}
TOLERANCE = 1e-5


def inputs_of(draft, seed=7):
    generator = torch.Generator().manual_seed(seed)
    tokens = torch.randint(draft.vocabulary.target_size, (T,), generator=generator)
    width = draft.target.hidden_size * draft.fc.blocks
    scales = torch.logspace(0, 1, draft.fc.blocks).repeat_interleave(draft.target.hidden_size)
    return tokens, torch.randn(T, width, generator=generator) * scales


def teacher_forced(network, tokens, features, steps):
    """Fused input, and for each step logits [T, D] and the stream before the final norm [T, H]."""
    blocks = features.chunk(network.draft.fc.blocks, dim=-1)
    taps = dict(zip(network.draft.taps, (block[None] for block in blocks), strict=True))
    fused = network.fuse(Features(taps, features))
    results, cache, hidden, fed = [], None, fused, tokens
    for step in range(steps):
        trace = {}
        if cache is None:
            out, cache = network.begin(fed[None], hidden, trace)
        else:
            out = network.step(fed[None], hidden, cache, trace)
        hidden = out.feedback
        results.append((network.logits(out.normed)[0], trace["stream"][0]))
        fed = torch.cat([tokens[1 + step :], torch.zeros(1 + step, dtype=torch.long)])
    return fused[0], results


def speculators_case(draft):
    """The config of speculators' own class for this draft."""
    a, m = draft.layers.attention, draft.layers.mlp
    rope = draft.rope.parameters | {
        "rope_theta": draft.rope.theta,
        "rope_type": draft.rope.scaling or "default",
        "partial_rotary_factor": draft.rope.partial,
    }
    windows = draft.layers.windows
    layer = {
        "hidden_size": draft.hidden_size, "num_hidden_layers": draft.layers.count,
        "rms_norm_eps": draft.layers.norm_eps,
        "num_attention_heads": a.heads, "num_key_value_heads": a.kv_heads, "head_dim": a.head_dim,
        "attention_bias": a.qkv_bias, "intermediate_size": m.width, "hidden_act": m.activation,
        "vocab_size": draft.vocabulary.target_size, "max_position_embeddings": draft.max_position,
        "rope_parameters": rope,
    }  # fmt: skip
    if m.bias:
        layer["mlp_bias"] = True
    if any(windows):
        layer["sliding_window"] = max(filter(None, windows))
        layer["layer_types"] = ["sliding_attention" if w else "full_attention" for w in windows]
    config = {
        "draft_vocab_size": draft.vocabulary.draft_size,
        "norm_before_residual": draft.residual == "normed",
        "norm_output": draft.feedback == "post-norm",
        "norm_before_fc": draft.fc.input_norm,
        "fc_norm": draft.fc.block_norms,
        "eagle_aux_hidden_state_layer_ids": list(draft.taps),
    }
    kind = "qwen3" if a.qk_norm else "llama"
    partial = draft.rope.partial != 1.0
    return {
        "config": config,
        "layer": layer,
        "model_type": kind,
        "steps": STEPS,
        "partial": partial,
    }


@pytest.fixture(scope="module")
def judged(drafts, tmp_path_factory):
    """The grid through the real class, in one process: name to (draft, tensors, outputs)."""
    python = os.environ.get("EAGLE3_SPECULATORS_PYTHON")
    if not python:
        pytest.fail("EAGLE3_SPECULATORS_PYTHON is unset: run make speculators, which sets it.")
    folder = tmp_path_factory.mktemp("judged")
    made = {}
    for name, changes in (GRID | WINDOWS).items():
        draft = drafts.make_draft(**changes)
        tensors = drafts.make_tensors(draft)
        tokens, features = inputs_of(draft)
        inputs = {"inputs.tokens": tokens, "inputs.features": features}
        save_file(tensors | inputs, folder / f"{name}.in.safetensors")
        made[name] = draft, tensors
    cases = {name: speculators_case(draft) for name, (draft, _) in made.items()}
    (folder / "cases.json").write_text(json.dumps(cases))
    judge = Path(__file__).with_name("judge_speculators.py")
    done = subprocess.run([python, judge, folder], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    return {
        name: (*pair, load_file(folder / f"{name}.out.safetensors")) for name, pair in made.items()
    }


def difference(found, expected):
    """Largest difference, relative to the expected values' own largest magnitude."""
    return float((found - expected).abs().max() / expected.abs().max())


@pytest.mark.speculators
@pytest.mark.parametrize("name", GRID)
def test_equals_the_real_speculators_class(judged, name):
    """Logits and recurrent states of every step.

    The same sums in another order: float32 rounding (2**-24) times the few hundred terms of a row.

    Seen: at most 1e-6 of the largest value; a wrong flag or
    frequency moves them by more than 1e-2.
    """
    draft, tensors, expected = judged[name]
    network = Network(draft, Weights.of(draft, tensors))
    fused, steps = teacher_forced(network, *inputs_of(draft), STEPS)
    assert difference(fused, expected["fused"]) < TOLERANCE
    for step, (logits, stream) in enumerate(steps):
        live = T - step
        assert difference(stream[:live], expected[f"stream.{step}"][:live]) < TOLERANCE, step
        assert difference(logits[:live], expected[f"logits.{step}"][:live]) < TOLERANCE, step


@pytest.mark.speculators
@pytest.mark.parametrize("name", WINDOWS)
def test_windows_equal_speculators_at_depth_0_and_the_engines_later(judged, name):
    """speculators keeps the start position's window in later steps; engines move it along."""
    draft, tensors, expected = judged[name]
    network = Network(draft, Weights.of(draft, tensors))
    _, steps = teacher_forced(network, *inputs_of(draft), STEPS)
    assert difference(steps[0][1], expected["stream.0"]) < TOLERANCE
    inside = draft.layers.windows[-1 if draft.layers.count == 1 else 1] - 1
    assert difference(steps[1][1][: inside - 1], expected["stream.1"][: inside - 1]) < TOLERANCE
    assert difference(steps[1][1][inside : T - 1], expected["stream.1"][inside : T - 1]) > 1e-3


def test_a_later_step_equals_a_plain_causal_pass(drafts):
    """One draft, written out as a single sequence: features up to its start, then feedback."""
    draft = drafts.make_draft(count=2, windows=(5, None), residual="normed")
    network = drafts.make_network(draft)
    tokens, features = inputs_of(draft)
    _, steps = teacher_forced(network, tokens, features, STEPS)
    taps = dict(zip(draft.taps, (b[None] for b in features.chunk(3, dim=-1)), strict=True))
    hidden = network.fuse(Features(taps, features))
    for start in (0, 3, 11):
        row = hidden[:, : start + 1]
        for step in range(STEPS):
            out, _ = network.begin(tokens[None, : start + 1 + step], row)
            assert difference(network.logits(out.normed)[0, -1], steps[step][0][start]) < TOLERANCE
            row = torch.cat([row, out.feedback[:, -1:]], dim=1)


def test_selected_drafts_go_on_alike(drafts):
    draft = drafts.make_draft()
    network = drafts.make_network(draft)
    tokens, _ = inputs_of(draft)
    hidden = torch.randn(2, T, 64, generator=torch.Generator().manual_seed(1))
    rows = torch.stack([tokens, tokens.flip(0)])
    out, cache = network.begin(rows, hidden)
    whole = network.step(rows, out.feedback, cache)
    out, cache = network.begin(rows, hidden)
    index, columns = torch.arange(2)[:, None], torch.tensor([[1, 5, 20], [0, 2, 23]])
    part = network.step(
        rows[index, columns], out.feedback[index, columns], cache.select(index, columns)
    )
    assert difference(part.normed, whole.normed[index, columns]) < TOLERANCE


def test_scores_are_taken_in_chunks_without_a_trace(drafts, monkeypatch):
    network = drafts.make_network(drafts.make_draft(windows=(7,)))
    tokens, hidden = inputs_of(network.draft)[0][None], torch.randn(1, T, 64)
    whole, _ = network.begin(tokens, hidden)
    monkeypatch.setattr("eagle3_interop.validators.network.attention._SCORES", 1)
    chunked, _ = network.begin(tokens, hidden)
    assert difference(chunked.normed, whole.normed) < TOLERANCE


def test_without_fc_the_final_hidden_state_is_taken_directly(drafts):
    network = drafts.make_network(drafts.make_draft(no_fc=True))
    final = torch.randn(1, T, 64)
    assert torch.equal(network.fuse(Features({}, final)), final)
    with pytest.raises(ValueError, match="not computed"):
        network.fuse(Features({}, final[..., :0]))


def test_default_taps_are_resolved_from_the_depth(drafts):
    network = drafts.make_network(drafts.make_draft(taps=None, target_layers=12))
    blocks = torch.randn(3, 1, T, 64)
    known = drafts.make_network(drafts.make_draft(taps=(2, 6, 9), target_layers=12))
    features = Features({2: blocks[0], 6: blocks[1], 9: blocks[2]}, blocks[0])
    assert torch.equal(network.fuse(features), known.fuse(features))
    with pytest.raises(ValueError, match="depth"):
        drafts.make_network(drafts.make_draft(taps=None, target_layers=None)).fuse(features)


def test_logit_scale_and_vocabulary_map(drafts):
    draft = drafts.make_draft(draft_vocabulary=48, logit_scale=0.25)
    network = drafts.make_network(draft)
    normed = torch.randn(9, 64)
    logits = normed @ network.weights["lm_head.weight"].T
    assert torch.allclose(network.logits(normed), 0.25 * logits, atol=1e-5)
    best = logits.argmax(-1)
    assert torch.equal(network.propose(normed, chunk=4), best + network.weights["d2t"][best])


@pytest.mark.parametrize("reduced", [False, True])
def test_tables_of_the_target(drafts, reduced):
    draft = drafts.make_draft(
        head="target", embeddings="target", draft_vocabulary=48 if reduced else 128
    )
    tables = Tables(torch.randn(128, 64), torch.randn(128, 64))
    weights = Weights.of(draft, drafts.make_tensors(draft), tables=lambda: tables)
    assert torch.equal(weights.embeddings, tables.embeddings)
    ids = weights.target_ids if reduced else slice(None)
    assert torch.equal(weights.head, tables.head[ids])
    with pytest.raises(Refused, match="uses the target's"):
        _ = Weights.of(draft, drafts.make_tensors(draft)).embeddings
    narrow = Tables(torch.randn(128, 32), torch.randn(128, 32))
    with pytest.raises(Refused, match="32 wide"):
        _ = Weights.of(draft, drafts.make_tensors(draft), tables=lambda: narrow).head


def test_tied_head_is_the_embedding_table(drafts):
    draft = drafts.make_draft(head="tied")
    weights = Weights.of(draft, drafts.make_tensors(draft))
    assert weights.head is weights.embeddings


def test_rotation_equals_transformers(drafts):
    rotary = Rotary(drafts.make_draft(rope=Rope(theta=1234.0)))
    positions = torch.arange(50)[None]
    config = LlamaConfig(
        head_dim=16, rope_parameters={"rope_theta": 1234.0, "rope_type": "default"}
    )
    expected = LlamaRotaryEmbedding(config)(torch.zeros(1), positions)
    for found, wanted in zip(rotary(positions, torch.float32), expected, strict=True):
        assert torch.allclose(found, wanted, atol=1e-6)


def test_partial_rotation_is_the_plain_one_on_fewer_dims(drafts):
    linear = Rope(partial=0.5, scaling="linear", parameters={"factor": 1.0})
    positions = torch.arange(20)[None]
    plain, scaled = (
        Rotary(drafts.make_draft(rope=rope))(positions, torch.float32)
        for rope in (Rope(partial=0.5), linear)
    )
    for found, wanted in zip(plain, scaled, strict=True):
        assert torch.equal(found, wanted)
        assert found.shape == (1, 20, 8)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_stays_close(drafts, dtype):
    draft = drafts.make_draft(count=2, block_norms=True, draft_vocabulary=48)
    tokens, features = inputs_of(draft)
    exact = teacher_forced(drafts.make_network(draft), tokens, features, 2)
    rough = teacher_forced(drafts.make_network(draft, dtype=dtype), tokens, features, 2)
    assert rough[0].dtype == dtype
    assert difference(rough[1][1][0][: T - 1].float(), exact[1][1][0][: T - 1]) < 0.1


def test_unknown_networks_are_refused_by_name(drafts):
    draft = drafts.make_draft()
    for change, name in (
        ({"parallel": ParallelDrafting()}, "P-EAGLE"),
        ({"quantisation": "fp8"}, "fp8"),
    ):
        with pytest.raises(Refused, match=name):
            Network(draft.model_copy(update=change), Weights.of(draft, {}))


def test_weights_are_read_once_and_must_be_finite(drafts):
    draft = drafts.make_draft()
    reads = []
    stored = {"norm.weight": torch.ones(64), "fc.weight": torch.full((64, 192), float("nan"))}
    weights = Weights(draft, lambda name: reads.append(name) or stored[name], dtype=torch.bfloat16)
    assert weights["norm.weight"].dtype == torch.bfloat16
    assert weights["norm.weight"] is weights["norm.weight"]
    assert reads == ["norm.weight"]
    with pytest.raises(Refused, match="NaN"):
        _ = weights["fc.weight"]


def test_stored_bfloat16_becomes_a_tensor():
    array = np.arange(6, dtype=np.float32).reshape(2, 3).astype(ml_dtypes.bfloat16)
    tensor = as_tensor(array)
    assert tensor.dtype == torch.bfloat16
    assert tensor.tolist() == [[0, 1, 2], [3, 4, 5]]


def test_weights_of_a_reading(drafts):
    class Folder:
        def values(self, name):
            return {"midlayer.norm": np.full(64, 2.0, np.float32)}[name]

    reading = Reading(
        draft=drafts.make_draft(draft_vocabulary=48),
        names={"norm.weight": "midlayer.norm"},
        maps={"d2t": np.arange(48)},
    )
    weights = Weights.read(reading, Folder())
    assert weights["norm.weight"].mean() == 2
    assert weights.target_ids.tolist() == list(range(0, 96, 2))


def test_a_weight_that_torch_would_stretch_is_refused(drafts):
    draft = drafts.make_draft()
    weights = Weights.of(draft, {"norm.weight": torch.ones(1)})
    with pytest.raises(Refused, match=r"norm.weight.*\[1\].*\[64\]"):
        weights["norm.weight"]
