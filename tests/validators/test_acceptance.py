"""Acceptance against an engine that runs one token at a time, and its statistics."""

import gc
import json
import weakref
from pathlib import Path

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from eagle3_interop.convert.read.checkpoint import open_checkpoint
from eagle3_interop.schemas import intervals
from eagle3_interop.schemas.draft import Mla
from eagle3_interop.schemas.engines.releases import newest
from eagle3_interop.schemas.findings import Usage
from eagle3_interop.schemas.intervals import accept_length_interval
from eagle3_interop.validators.accept.acceptance import (
    Acceptance,
    batch_lengths,
    best_by_cost,
    measure,
    measure_sampled,
    walk,
)
from eagle3_interop.validators.accept.drafting import batches, chain_lengths, draft_steps
from eagle3_interop.validators.accept.shape import Shape
from eagle3_interop.validators.network.reference import Network
from eagle3_interop.validators.network.weights import Weights
from eagle3_interop.validators.target.prompts import read_prompts
from eagle3_interop.validators.target.running import Target
from eagle3_interop.validators.target.texts import Text, encode
from eagle3_interop.validators.target.writing import write_texts

DATA = Path(__file__).parents[1] / "data"

VOCABULARY = 7
PROMPTS = [[1, 2, 3], [4], [5, 6, 1, 2, 3, 3, 1], [2, 2], [6, 5, 4, 3, 2, 1]]
DRAFT = {"target_hidden": 32, "hidden": 32, "vocabulary": VOCABULARY, "draft_vocabulary": VOCABULARY,
         "heads": 4, "kv_heads": 2, "head_dim": 8, "mlp_width": 48, "target_layers": 3,
         "taps": (0, 2, 3)}  # fmt: skip
LATENT = Mla(heads=4, q_rank=12, kv_rank=16, nope_dim=8, rope_dim=4, v_dim=6, softmax_scale=0.4)
KINDS = {
    "plain": {},
    "normed-post": {"residual": "normed", "feedback": "post-norm"},
    "reduced-vocabulary": {"draft_vocabulary": 5},
    "two-layers-one-window": {"count": 2, "windows": (4, None), "block_norms": True},
    "narrow-window": {"windows": (2,)},
    "draft-narrower-than-target": {"hidden": 16},
    "latent-attention": {"latent": LATENT},
}


@pytest.fixture(scope="module")
def target():
    """So few tokens that a random draft is right every now and then."""
    torch.manual_seed(3)
    config = LlamaConfig(
        hidden_size=32, intermediate_size=48, num_hidden_layers=3, num_attention_heads=4,
        num_key_value_heads=2, head_dim=8, vocab_size=VOCABULARY, pad_token_id=None,
        bos_token_id=None, eos_token_id=None,
    )  # fmt: skip
    model = LlamaForCausalLM(config)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim > 1:
                parameter.normal_(0, 2 * parameter.shape[-1] ** -0.5)
    return Target(model)


@pytest.fixture(scope="module")
def sampled(target):
    """Texts that do not settle into a loop: sampled, and of different lengths."""
    made = write_texts(target, PROMPTS, 30, 5, temperature=1.0, seed=1).texts
    return [
        Text(t.prompt, t.completion, scored)
        for t, scored in zip(made, (30, 1, 12, 25, 30), strict=True)
    ]


def replay(serial, target, draft, tensors, text, propose):
    tokens = [*text.prompt, *text.completion]
    streams = target.features(torch.tensor([tokens]), draft.taps).taps
    features = torch.stack([streams[tap][0] for tap in draft.taps], dim=1)
    arguments = list(text.prompt), list(text.completion), features, text.scored
    return serial.run_engine(draft, tensors, *arguments, propose)


@pytest.mark.parametrize("kind", KINDS)
def test_chains_equal_a_serial_engine(drafts, serial, target, sampled, kind):
    draft = drafts.make_draft(**DRAFT | KINDS[kind])
    tensors = drafts.make_tensors(draft, seed=5)
    shapes = [Shape.chain(k) for k in (1, 2, 3, 5)]
    found = measure(drafts.make_network(draft, seed=5), target, sampled, shapes, token_budget=64)
    for shape, result in found.items():
        steps = [
            replay(serial, target, draft, tensors, text, serial.chain(shape.steps))
            for text in sampled
        ]
        assert result.prompts == tuple((len(s), sum(s)) for s in steps)
        flat = [taken for s in steps for taken in s]
        assert result.per_position == tuple(sum(t > j for t in flat) for j in range(shape.steps))
        assert result.tokens == 98
    assert found[Shape.chain(5)].accepted > 5, "nothing was accepted: the test shows nothing"


def test_steps_do_not_depend_on_what_is_dropped(drafts, target, sampled):
    """`draft_steps` runs every start to the end, `chain_lengths` only those that are right."""
    network = drafts.make_network(drafts.make_draft(**DRAFT, count=2), seed=5)
    for batch in batches(target, sampled, network.draft.taps):
        right = torch.ones_like(batch.valid)
        expected = torch.zeros_like(batch.starts)
        for step, out in enumerate(draft_steps(network, batch, 4)):
            best = network.logits(out.normed).argmax(-1)
            right = right & (best == batch.text(2 + step)) & batch.valid
            expected += right
        assert torch.equal(chain_lengths(network, batch, 4), expected)


def test_batches_change_nothing_and_stay_in_the_budget(drafts, target, sampled):
    network = drafts.make_network(drafts.make_draft(**DRAFT), seed=5)
    done = []
    one = measure(network, target, sampled, [Shape.chain(4)], progress=done.append)
    for budget in (1, 50, 90):
        again = measure(network, target, sampled, [Shape.chain(4)], token_budget=budget)
        assert again == one
        for batch in batches(target, sampled, (0,), token_budget=budget):
            rows, length = batch.features.final.shape[:2]
            assert rows == 1 or rows * length <= budget
    assert sum(done) == sum(text.starts[-1] + 1 for text in sampled if text.scored > 1)


def test_a_text_too_short_to_judge_is_an_error(drafts, target):
    network = drafts.make_network(drafts.make_draft(**DRAFT))
    short = [Text((1, 2), (1, 2, 3, 4), 3)]
    measure(network, target, short, [Shape.chain(2)])
    with pytest.raises(ValueError, match="3 steps"):
        measure(network, target, short, [Shape.chain(3)])


def test_the_walk():
    assert walk([0, 3, 0, 0, 0, 1], 7) == [0, 3, 1]
    assert walk([], 1) == []
    assert walk([4], 2) == [4]


def made(prompts, shape):
    return Acceptance(shape, 100, tuple(prompts), (1,) * shape.steps)


def test_the_accept_length_and_its_interval():
    result = made([(10, 12), (20, 10), (5, 9)], Shape.chain(4))
    assert result.accept_length == 1 + 31 / 35
    low, high = result.interval(seed=1)
    assert low <= result.accept_length <= high
    assert result.interval(seed=1) == (low, high)
    assert made([(10, 12)] * 4, Shape.chain(4)).interval() == (2.2, 2.2)
    assert accept_length_interval([]) == (1.0, 1.0)
    assert made([], Shape.chain(2)).accept_length == 1.0


def test_the_interval_is_the_same_however_much_is_drawn_at_a_time(monkeypatch):
    prompts = [(float(10 + i % 7), float(i % 23)) for i in range(30)]
    at_once = accept_length_interval(prompts, seed=3)
    for entries in (1, 31, 1000):
        monkeypatch.setattr(intervals, "AT_ONCE", entries)
        assert accept_length_interval(prompts, seed=3) == at_once


def test_the_interval_covers_the_truth_about_as_often_as_it_says():
    generator = torch.Generator().manual_seed(0)
    hits = 0
    for seed in range(60):
        gained = torch.rand(30, generator=generator) * 20
        low, high = accept_length_interval(
            [(10.0, float(g)) for g in gained], seed=seed, rounds=300
        )
        hits += low <= 2.0 <= high
    assert hits >= 50


def test_the_best_shape_for_a_cost():
    results = [made([(100, gained)], Shape.chain(k)) for k, gained in ((1, 60), (2, 90), (4, 100))]
    assert best_by_cost(results, 0.0).shape == Shape.chain(4)
    assert best_by_cost(results, 0.1).shape == Shape.chain(2)
    assert best_by_cost(results, 1.0).shape == Shape.chain(1)
    assert results[1].speedup(0.25) == pytest.approx(1.9 / 1.5)


def test_the_summary_has_the_reports_keys():
    summary = made([(10, 12)], Shape.chain(3)).summary()
    assert summary == {
        "accept_length": 2.2, "interval": [2.2, 2.2], "drafts": 10, "accepted": 12,
        "per_position": [1, 1, 1], "num_draft_tokens": 3, "tree": None, "tokens": 100,
    }  # fmt: skip
    assert made([(1, 1)], Shape(2, 2, 5)).summary()["tree"] == [2, 2, 5]


@pytest.mark.parametrize("shape", [(0, 1, 1), (2, 1, 4), (2, 2, 8), (3, 2, 1), (2, 0, 2)])
def test_shapes_that_sglang_would_not_run(shape):
    with pytest.raises(Usage):
        Shape(*shape).checked()


def read(target, texts, network, depth, token_budget=4096):
    """Texts that are there already, read by the target as far as sampled acceptance needs."""
    return batches(target, texts, network.draft.taps, reach=depth, token_budget=token_budget)


def probabilities(target, tokens, temperature):
    final = target.features(torch.tensor([tokens]), ()).final[0, -1]
    return (target.logits(final) / temperature).softmax(-1)


@pytest.mark.parametrize("kind", ["plain", "reduced-vocabulary"])
def test_sampled_acceptance_is_unbiased(drafts, serial, target, kind):
    """Over all continuations, weighted as the target samples them, the estimate is the exact expectation.

    The exact one plays the engine's rule through: a greedy proposal d is accepted with p(d), one sampled from
    q with min(1, p/q), so the first token a is drafted and accepted with probability min(p(a), q(a)).
    """
    temperature, prompt = 0.8, [1, 2, 3, 5]
    draft = drafts.make_draft(**DRAFT | KINDS[kind])
    tensors = drafts.make_tensors(draft, seed=5)
    network, engine = drafts.make_network(draft, seed=5), serial.SerialDraft(draft, tensors)
    streams = target.features(torch.tensor([prompt[:-1]]), draft.taps).taps
    caches = [[]]
    for position in range(3):
        hidden = engine.fused([streams[tap][0, position] for tap in draft.taps])
        logits, state = engine.feed(prompt[position + 1], hidden, position, caches)

    def spread(logits):
        q = torch.zeros(VOCABULARY)
        for i, share in enumerate((logits / temperature).softmax(0)):
            q[engine.target_id(i)] = share
        return q

    p, q = probabilities(target, prompt, temperature), spread(logits)
    exact = torch.zeros(2, 2, dtype=torch.float64)
    found = torch.zeros(2, 2, dtype=torch.float64)
    for a in range(VOCABULARY):
        p2 = probabilities(target, [*prompt, a], temperature)
        q2 = spread(engine.feed(a, state, 3, [list(caches[0])])[0])
        if a == q.argmax():
            exact[0] += torch.tensor([p[a], p[a] * p2[q2.argmax()]])
        both = torch.minimum(p, q)[a]
        exact[1] += torch.tensor([both, both * torch.minimum(p2, q2).sum()])
        for b in range(VOCABULARY):
            text = Text(tuple(prompt[:-1]), (prompt[-1], a, b), 2)
            one = measure_sampled(network, target, read(target, [text], network, 2), 2, temperature)
            found += p[a] * p2[b] * torch.tensor([one.greedy, one.probabilistic])
    assert torch.allclose(found, exact, atol=1e-6)
    assert float(exact[:, 0].min()) > 1e-3


def test_sampled_acceptance_agrees_with_walks_over_the_same_texts(drafts, target):
    """In expectation the engine's own counter; here within what 60 texts leave to chance."""
    network = drafts.make_network(drafts.make_draft(**DRAFT), seed=5)
    texts = write_texts(target, PROMPTS * 12, 40, 3, temperature=1.0, seed=4).texts
    read_texts = read(target, texts, network, 3, token_budget=300)
    expected = measure_sampled(network, target, read_texts, 3, 1.0)
    walked = measure(network, target, texts, [Shape.chain(3)])[Shape.chain(3)]
    assert expected.starts == 60 * 39
    assert abs(expected.accept_length - walked.accept_length) < 0.1
    assert list(expected.greedy) == sorted(expected.greedy, reverse=True)
    summary = expected.summary()
    assert summary["interval"][0] < summary["accept_length"] < summary["interval"][1]
    assert summary["accept_length"] == pytest.approx(1 + sum(e for _, e in expected.prompts) / 2340)


@pytest.fixture(scope="module")
def tiny():
    """The trained target and the texts that the recorded counters are of."""
    target = Target.load(DATA / "target")
    prompts = encode(read_prompts(DATA / "prompts.jsonl"), None, target.vocabulary_size)
    return target, write_texts(target, prompts, 96, 6).texts


def trained(name):
    source = open_checkpoint(str(DATA / "drafts" / name))
    reading = newest("speculators").read(source, None)
    return Network(reading.draft, Weights.read(reading, source))


RECORDED = json.loads((DATA / "acceptance.json").read_text())


@pytest.mark.parametrize("name", sorted(RECORDED.keys() - {"sliding"}))
def test_trained_drafts_have_the_counters_of_speculators_own_class(tiny, name):
    """Recorded when the pair was trained, from a serial replay with the real model class."""
    target, texts = tiny
    found = measure(trained(name), target, texts, [Shape.chain(4)])[Shape.chain(4)]
    expected = RECORDED[name]
    assert (found.drafts, found.accepted) == (expected["drafts"], expected["accepted"])
    assert list(found.per_position) == expected["per_position"]


def test_the_window_moves_on_with_the_draft_steps_as_in_the_engines(tiny):
    """vLLM's and SGLang's counters (docs/conformance.md); in speculators' own class it stays at the first step's."""
    target, texts = tiny
    found = measure(trained("sliding"), target, texts, [Shape.chain(4)])[Shape.chain(4)]
    assert (found.drafts, found.accepted) == (1186, 1121)
    assert (RECORDED["sliding"]["drafts"], RECORDED["sliding"]["accepted"]) == (1188, 1118)


def test_a_sliding_window_has_vllms_counters(tiny):
    """vLLM 0.32's own, for the same weights with a window of 8: 8 positions, the current one included."""
    target, texts = tiny
    network = trained("plain")
    layers = network.draft.layers.model_copy(update={"windows": (8,)})
    windowed = Network(network.draft.model_copy(update={"layers": layers}), network.weights)
    found = measure(windowed, target, texts, [Shape.chain(4)])[Shape.chain(4)]
    assert (found.drafts, found.accepted) == (922, 1400)
    assert found.per_position == (581, 395, 263, 161)


def test_one_batch_is_held_at_a_time(tiny, monkeypatch):
    target, texts = tiny
    seen = []

    def watch(network, batch, shapes):
        gc.collect()
        assert sum(reference() is not None for reference in seen) <= 1
        seen.append(weakref.ref(batch))
        return batch_lengths(network, batch, shapes)

    monkeypatch.setattr("eagle3_interop.validators.accept.acceptance.batch_lengths", watch)
    measure(trained("plain"), target, texts, [Shape.chain(2)], token_budget=300)
    assert len(seen) == 12


TREES = {
    Shape(6, 3, 20): (669, 1648, (549, 481, 337, 141, 89, 51)),
    Shape(3, 3, 8): (812, 1489, (688, 559, 242)),
    Shape(5, 4, 16): (702, 1621, (603, 530, 291, 115, 82)),
}


def test_trees_of_the_trained_draft_have_sglangs_counters(tiny):
    """SGLang 0.5.23's own counters; were keys to follow ancestors the second would be 700 and 1619."""
    target, texts = tiny
    for shape, found in measure(trained("plain"), target, texts, list(TREES)).items():
        assert (found.drafts, found.accepted, found.per_position) == TREES[shape]
