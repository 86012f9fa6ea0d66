"""What one pass of the target leaves behind, and fc over it: equal to what is computed the plain way."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from transformers import Gemma2Config, Gemma2ForCausalLM, LlamaConfig, LlamaForCausalLM

from eagle3_interop.schemas.draft import Draft, Fc, Gqa, Layers, Mlp, Vocabulary
from eagle3_interop.schemas.draft import Target as Facts
from eagle3_interop.validators.accept.drafting import batches, chain_lengths, draft_steps
from eagle3_interop.validators.diagnose.scoring import DEPTHS, Evaluator, order_texts
from eagle3_interop.validators.diagnose.wiring import (
    NORMED,
    RESCALED,
    STREAM,
    SUBLAYER,
    Subject,
    Wiring,
    candidate_maps,
    configured_flags,
    rope_label,
)
from eagle3_interop.validators.network.reference import Features, Network
from eagle3_interop.validators.network.weights import Weights
from eagle3_interop.validators.target.captured import Fusion, capture
from eagle3_interop.validators.target.running import Target
from eagle3_interop.validators.target.texts import Text
from eagle3_interop.validators.target.writing import write_texts

H, V, D, LAYERS = 32, 96, 40, 4
SHAPE = {
    "vocab_size": V,
    "hidden_size": H,
    "intermediate_size": 48,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 16,
    "initializer_range": 0.2,
}


@pytest.fixture(scope="module")
def target():
    torch.manual_seed(0)
    return Target(LlamaForCausalLM(LlamaConfig(**SHAPE)))


@pytest.fixture(scope="module")
def texts(target):
    prompts = [[3, 1, 4, 1, 5], [9, 2, 6], [5, 3, 5, 8, 9, 7, 9], [32, 38, 4, 62]]
    return write_texts(target, prompts, 12, DEPTHS).texts


@pytest.fixture(scope="module")
def streams(target, texts):
    return capture(target, texts)


def tokens_of(text: Text):
    return torch.tensor([[*text.prompt, *text.completion]])


def places(streams, index):
    first = streams.offsets[index]
    return slice(first, first + len(streams.texts[index]))


def test_streams_are_the_targets_features(target, texts, streams):
    for index, text in enumerate(texts):
        features = target.features(tokens_of(text), range(LAYERS + 1))
        for tap, stream in features.taps.items():
            kept = streams.read(tap, STREAM, len(streams.final))[places(streams, index)]
            torch.testing.assert_close(kept.float(), stream[0], atol=1e-3, rtol=8e-3)
        final = streams.final[places(streams, index)]
        torch.testing.assert_close(final, features.final[0], atol=1e-4, rtol=1e-4)


def test_the_stream_after_the_next_norm(target, texts, streams):
    features = target.features(tokens_of(texts[0]), range(LAYERS + 1))
    for tap in range(LAYERS):
        norm = target.layers[tap].input_layernorm
        kept = streams.kept[tap, NORMED][places(streams, 0)]
        torch.testing.assert_close(kept.float(), norm(features.taps[tap])[0], atol=0.02, rtol=0.01)
    last = streams.kept[LAYERS, NORMED][places(streams, 0)]
    torch.testing.assert_close(last.float(), features.final[0], atol=1e-3, rtol=8e-3)


def test_the_sublayers_output_lacks_the_residual(target, texts, streams):
    """What a layer puts out is the stream between attention and MLP, plus the kept output."""
    between = {}
    handles = [
        layer.post_attention_layernorm.register_forward_pre_hook(
            lambda _m, args, k=k: between.__setitem__(k, args[0])
        )
        for k, layer in enumerate(target.layers)
    ]
    features = target.features(tokens_of(texts[1]), range(LAYERS + 1))
    for handle in handles:
        handle.remove()
    assert (0, SUBLAYER) not in streams.kept
    for tap in range(1, LAYERS + 1):
        kept = streams.kept[tap, SUBLAYER][places(streams, 1)].float()
        whole = features.taps[tap][0] - between[tap - 1][0]
        torch.testing.assert_close(kept, whole, atol=0.02, rtol=0.01)


def test_norms_after_a_sublayer_belong_to_its_output():
    """Gemma 2 norms what it adds; its embedding is scaled, and the scale is found."""
    torch.manual_seed(1)
    target = Target(Gemma2ForCausalLM(Gemma2Config(**SHAPE, query_pre_attn_scalar=16)))
    text = Text((3, 1, 4, 1, 5, 9), (2, 6, 5, 3, 5), 2)
    caught = []
    norm = target.layers[1].post_feedforward_layernorm
    handle = norm.register_forward_hook(lambda _m, _a, out: caught.append(out))
    streams = capture(target, [text])
    handle.remove()
    assert torch.equal(streams.kept[2, SUBLAYER], caught[0][0].bfloat16())
    assert streams.scale == pytest.approx(H**0.5, rel=0.02)
    assert RESCALED in streams.reads(0)
    table = target.tables().embeddings[tokens_of(text)[0]]
    rescaled = streams.read(0, RESCALED, len(text)).float()
    torch.testing.assert_close(rescaled, table, atol=0.02, rtol=0.02)


def test_one_pass_and_the_disk_where_memory_is_short(target, texts, streams, monkeypatch):
    passes = []
    features = Target.features
    monkeypatch.setattr(
        Target,
        "features",
        lambda self, tokens, taps: passes.append(tokens.shape) or features(self, tokens, taps),
    )
    few = capture(target, texts, memory=1 << 15)
    assert few.on_disk
    assert not streams.on_disk
    assert sum(rows for rows, _ in passes) == len(texts)
    assert few.kept.keys() == streams.kept.keys()
    assert all(torch.equal(few.kept[key], streams.kept[key]) for key in few.kept)
    folder = Path(few._folder.name)
    assert any(folder.iterdir())
    few.close()
    assert not folder.exists()


def draft(**changes):
    fc = Fc(blocks=3, **changes.pop("fc", {}))
    made = Draft(
        hidden_size=H,
        target=Facts(hidden_size=H, layers=LAYERS),
        taps=(1, 2, 4),
        fc=fc,
        layers=Layers(
            count=1,
            attention=Gqa(heads=2, kv_heads=1, head_dim=16),
            mlp=Mlp(width=48),
            norm_eps=1e-5,
            windows=(None,),
        ),
        vocabulary=Vocabulary(target_size=V, draft_size=D, mapped=True),
    )
    return made.model_copy(update=changes)


def subject(one: Draft, names=()):
    generator = torch.Generator().manual_seed(7)

    def random(*shape, around=0.0):
        return around + torch.randn(shape, generator=generator) * 0.3

    ids = torch.arange(D) * 2
    stem = "layers.0."
    tensors = {
        "embed_tokens.weight": random(V, H),
        "fc.weight": random(H, 3 * H),
        "fc.bias": random(H),
        "input_norm.weight": random(3 * H, around=1.0),
        **{f"fc_norm.{i}.weight": random(H, around=1.0) for i in range(3)},
        **{f"{stem}{n}.weight": random(H, around=1.0) for n in ("input_layernorm", "hidden_norm")},
        f"{stem}post_attention_layernorm.weight": random(H, around=1.0),
        f"{stem}self_attn.q_proj.weight": random(32, 2 * H),
        f"{stem}self_attn.k_proj.weight": random(16, 2 * H),
        f"{stem}self_attn.v_proj.weight": random(16, 2 * H),
        f"{stem}self_attn.o_proj.weight": random(H, 32),
        **{f"{stem}mlp.{n}_proj.weight": random(48, H) for n in ("gate", "up")},
        f"{stem}mlp.down_proj.weight": random(H, 48),
        "norm.weight": random(H, around=1.0),
        "lm_head.weight": random(D, H),
        "d2t": ids - torch.arange(D),
    }
    weights = Weights.of(one, tensors)
    flags = configured_flags(one)
    maps = candidate_maps(tensors["d2t"], None, V, D)
    return Subject(
        one,
        weights,
        Wiring(one.taps, (STREAM,) * 3, tuple(flags.items())),
        {},
        {rope_label(one.rope): one.rope},
        maps,
        {"own": weights.embeddings},
        frozenset(names or tensors),
    )


@pytest.mark.parametrize(
    "fc",
    [
        {},
        {"bias": True},
        {"input_norm": True, "bias": True},
        {"block_norms": True},
        {"input_norm": True, "block_norms": True, "bias": True},
    ],
    ids=lambda fc: "+".join(fc) or "plain",
)
def test_fusion_is_the_networks_own_fc(streams, fc):
    one = subject(draft(fc=fc))
    count = len(streams.final)
    rounded = {tap: streams.read(tap, STREAM, count)[None].float() for tap in (1, 2, 4)}
    wanted = Network(one.draft, one.weights).fuse(Features(rounded, streams.final[None]))[0]
    fusion = Fusion(one, streams)
    for _ in range(2):
        torch.testing.assert_close(
            fusion.hidden(one.configured, count), wanted, atol=1e-4, rtol=1e-4
        )


def test_products_stay_within_their_cap(streams):
    one = subject(draft())
    fusion = Fusion(one, streams, cap=3 * len(streams.final) * (H + 1) * 4)
    for tap in range(LAYERS + 1):
        fusion.hidden(one.configured.with_block(0, tap, STREAM), len(streams.final))
    assert len(fusion._kept) == 3
    assert fusion._bytes <= fusion._cap


def test_absent_norms_before_fc_are_ones():
    one = subject(draft(), names=["fc.weight"])
    network = one.network(one.configured.with_flag("input_norm", "on"))
    assert torch.equal(network.weights["input_norm.weight"], torch.ones(3 * H))


def test_weights_as_a_wiring_takes_them():
    one = subject(draft())
    norm, mlp_norm = (
        f"layers.1.{name}.weight" for name in ("input_layernorm", "post_attention_layernorm")
    )
    layers = one.draft.layers.model_copy(update={"count": 2, "windows": (None, None)})
    two = one.draft.model_copy(update={"layers": layers})
    tensors = {name: one.weights[name] for name in one.names}
    tensors |= {norm: torch.full((H,), 2.0), mlp_norm: torch.full((H,), 3.0)}
    table, other = torch.randn(V, H), torch.full((H,), 5.0)
    both = replace(
        one,
        draft=two,
        weights=Weights.of(two, tensors),
        tables={**one.tables, "target": table},
        other_norms={norm: other},
    )

    def taken(name, value):
        return both.network(one.configured.with_flag(name, value)).weights

    assert torch.equal(taken("embeddings", "target").embeddings, table)
    assert torch.equal(taken("embedding_scale", "scaled").embeddings, one.tables["own"] * H**0.5)
    assert torch.equal(taken("later_norms", "other-name")[norm], other)
    swapped = taken("later_norms", "swapped")
    assert torch.equal(swapped[norm], tensors[mlp_norm])
    assert torch.equal(swapped[mlp_norm], tensors[norm])
    q = "layers.0.self_attn.q_proj.weight"
    assert torch.equal(
        taken("order", "hidden-embedding")[q], torch.cat(tensors[q].chunk(2, dim=1)[::-1], dim=1)
    )
    assert taken("map", "absent").target_ids is None
    assert taken("map", "offset").target_ids.tolist() == list(range(0, 2 * D, 2))
    plain = taken("residual", "normed")
    assert plain[q] is one.weights[q]


@pytest.fixture(scope="module")
def scored(target, texts):
    ordered, sieve = order_texts(texts)
    streams = capture(target, ordered)
    one = subject(draft())
    return one, streams, Evaluator(one, target, streams, sieve, steps=3)


def rounded_batch(target, streams, one):
    """All texts in one batch, on the features that were kept."""
    (batch,) = batches(target, streams.texts, one.draft.taps, reach=DEPTHS)
    taps = {tap: x.bfloat16().float() for tap, x in batch.features.taps.items()}
    return batch.__class__(
        batch.indices, batch.tokens, batch.starts, batch.valid, Features(taps, batch.features.final)
    )


def test_the_score_is_the_cross_entropy(target, scored):
    one, streams, evaluator = scored
    batch, network = rounded_batch(target, streams, one), Network(one.draft, one.weights)
    rows, total = torch.arange(len(batch.starts))[:, None], []
    for depth, out in enumerate(draft_steps(network, batch, DEPTHS)):
        final = batch.features.final[rows, batch.starts + 1 + depth]
        p = target.logits(final)[..., one.weights.target_ids].softmax(-1)
        entropy = -(p * network.logits(out.normed).log_softmax(-1)).sum(-1)
        total.append(float(entropy[batch.valid].mean()))
    result = evaluator.result(one.configured)
    assert result.by_depth == pytest.approx(total, rel=1e-4)
    assert result.score == pytest.approx(sum(total), rel=1e-4)
    if evaluator._small_count == len(streams.final):
        # The search may multiply in bfloat16; what is reported does not.
        assert evaluator.sieve(one.configured) == pytest.approx(total[0], rel=2e-3)
        assert evaluator.deep(one.configured) == pytest.approx(sum(total), rel=2e-3)


def test_the_acceptance_is_the_chains(target, scored):
    one, streams, evaluator = scored
    batch, network = rounded_batch(target, streams, one), Network(one.draft, one.weights)
    wanted = chain_lengths(network, batch, 3)
    sheet = evaluator._all[0]
    assert sheet.indices == batch.indices
    run = evaluator._run(one.configured, [sheet], len(streams.final), 4)
    for where, _, proposed in run:
        lengths = evaluator._lengths(where, proposed)
        assert torch.equal(lengths[where.valid], wanted[batch.valid])


def test_shift_reads_the_features_beside(scored):
    one, _, evaluator = scored
    sheet = evaluator._all[0]
    plain, later, earlier = (sheet.places(shift) for shift in (0, 1, -1))
    assert torch.equal(plain[:, 1:], later[:, :-1])
    assert torch.equal(plain, earlier[:, 1:])
    assert torch.equal(plain[:, 0], earlier[:, 0])
    scores = {evaluator.sieve(one.configured.with_flag("shift", s)) for s in ("0", "1", "-1")}
    assert len(scores) == 3


def _fed(batch, shift):
    """The batch with the features of the positions beside; the first position has none before it."""
    taps = {tap: x.roll(-shift, dims=1) for tap, x in batch.features.taps.items()}
    if shift < 0:
        for tap, x in taps.items():
            x[:, 0] = batch.features.taps[tap][:, 0]
    return replace(batch, features=Features(taps, batch.features.final))


@pytest.mark.parametrize(
    ("shift", "starts", "depths"),
    [(1, (-1, -1, -1, -1), (1, 2, 3, 4)), (-1, (0, 1, 1, 1), (0, 0, 1, 2))],
)
def test_shifted_features_are_scored_on_tokens_that_they_tell_no_more_of(
    target, scored, shift, starts, depths
):
    """Features up to p are what every wiring predicts x[p+2], x[p+3], ... from."""
    one, streams, evaluator = scored
    batch, network = rounded_batch(target, streams, one), Network(one.draft, one.weights)
    fed, rows, wanted = _fed(batch, shift), torch.arange(len(batch.starts))[:, None], []
    for column, (start, depth) in enumerate(zip(starts, depths, strict=True)):
        begun = replace(fed, starts=fed.starts + start)
        out = list(draft_steps(network, begun, depth + 1))[-1]
        final = batch.features.final[rows, batch.starts + 1 + column]
        p = target.logits(final)[..., one.weights.target_ids].softmax(-1)
        entropy = -(p * network.logits(out.normed).log_softmax(-1)).sum(-1)
        wanted.append(float(entropy[batch.valid].mean()))
    result = evaluator.result(one.configured.with_flag("shift", str(shift)))
    assert result.by_depth == pytest.approx(wanted, rel=1e-4)


def test_every_switch_changes_what_is_computed(scored):
    """Each flag is felt by random weights; a factor on an embedding that is normed is not."""
    one, _, evaluator = scored
    before = evaluator.deep(one.configured)
    switches = {
        "residual": "normed",
        "feedback": "post-norm",
        "input_norm": "on",
        "block_norms": "on",
        "head_norm": "off",
        "order": "hidden-embedding",
        "map": "absent",
        "hidden_norms": "two",
        "entry_norms": "swapped",
    }
    for name, value in switches.items():
        assert abs(evaluator.deep(one.configured.with_flag(name, value)) - before) > 1e-3, name
    scaled = evaluator.deep(one.configured.with_flag("embedding_scale", "scaled"))
    assert scaled == pytest.approx(before, rel=1e-3)


def test_maps_that_leave_the_vocabulary_are_no_candidates():
    ids = torch.tensor([1, 4, 5, 9])
    rows = torch.arange(4)
    found = candidate_maps(ids - rows, None, 10, 4)
    assert found.keys() == {"offset", "absent"}
    assert found["offset"].tolist() == ids.tolist()
    assert candidate_maps(ids, None, 10, 4)["absolute"].tolist() == ids.tolist()
    assert candidate_maps(rows - ids, None, 10, 4)["inverted"].tolist() == ids.tolist()
    listed = torch.zeros(10, dtype=torch.bool)
    listed[ids] = True
    shuffled = torch.tensor([9, 1, 5, 4])
    assert candidate_maps(shuffled - rows, listed, 10, 4)["sorted"].tolist() == ids.tolist()
    assert candidate_maps(None, listed, 10, 4)["t2d-order"].tolist() == ids.tolist()
