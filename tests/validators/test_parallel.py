"""Drafts that propose all tokens in one pass (P-EAGLE): against an engine that runs one token at a time."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from eagle3_interop.convert import api
from eagle3_interop.schemas.draft import ParallelDrafting
from eagle3_interop.schemas.findings import Refused, Usage
from eagle3_interop.validators.accept.acceptance import Acceptance, measure
from eagle3_interop.validators.accept.drafting import batches
from eagle3_interop.validators.accept.shape import Shape
from eagle3_interop.validators.diagnose.suspect import subject_of
from eagle3_interop.validators.engines import miswirings
from eagle3_interop.validators.engines.answers import Work
from eagle3_interop.validators.engines.started import arguments_of
from eagle3_interop.validators.network.reference import Network
from eagle3_interop.validators.network.weights import Weights
from eagle3_interop.validators.prove.request import Request
from eagle3_interop.validators.prove.stages import first_parting
from eagle3_interop.validators.prove.validate import validate
from eagle3_interop.validators.target.running import Target
from eagle3_interop.validators.target.writing import write_texts

DATA = Path(__file__).parents[1] / "data"
TRAINED = DATA / "parallel" / "peagle"
VOCABULARY = 7
PROMPTS = [[1, 2, 3], [4], [5, 6, 1, 2, 3, 3, 1], [6, 5, 4, 3, 2, 1]]
DRAFT = {
    "target_hidden": 32, "hidden": 32, "vocabulary": VOCABULARY, "draft_vocabulary": VOCABULARY,
    "heads": 4, "kv_heads": 2, "head_dim": 8, "mlp_width": 48, "target_layers": 3, "taps": (0, 2, 3),
}  # fmt: skip
KINDS = {
    "plain": {},
    "a-norm-on-each-block": {"block_norms": True},
    "normed-residual-and-fewer-tokens": {"residual": "normed", "draft_vocabulary": 5},
    "two-layers-one-window": {"count": 2, "windows": (4, None)},
}


@pytest.fixture(scope="module")
def target():
    torch.manual_seed(3)
    config = LlamaConfig(
        hidden_size=32, intermediate_size=48, num_hidden_layers=3, num_attention_heads=4,
        num_key_value_heads=2, head_dim=8, vocab_size=VOCABULARY, pad_token_id=None,
        bos_token_id=None, eos_token_id=None,
    )  # fmt: skip
    return Target(LlamaForCausalLM(config))


@pytest.fixture(scope="module")
def texts(target):
    return write_texts(target, PROMPTS, 30, 5, temperature=1.0, seed=1).texts


def make(drafts, token=2, *, mask=13, **changes):
    draft = drafts.make_draft(**DRAFT | changes)
    draft = draft.model_copy(update={"parallel": ParallelDrafting(mask_token_id=token)})
    generator = torch.Generator().manual_seed(mask)
    hidden = {"mask_hidden": torch.randn((1, 1, 3 * 32), generator=generator)}
    tensors = drafts.make_tensors(draft, seed=5) | hidden
    return draft, tensors, Network(draft, Weights.of(draft, tensors))


def replay(serial, target, draft, tensors, text, propose):
    tokens = [*text.prompt, *text.completion]
    streams = target.features(torch.tensor([tokens]), draft.taps).taps
    features = torch.stack([streams[tap][0] for tap in draft.taps], dim=1)
    arguments = list(text.prompt), list(text.completion), features, text.scored
    return serial.run_engine(draft, tensors, *arguments, propose)


@pytest.mark.parametrize("kind", KINDS)
def test_masks_of_one_pass_equal_a_serial_engine(drafts, serial, target, texts, kind):
    draft, tensors, network = make(drafts, **KINDS[kind])
    shapes = [Shape.chain(k) for k in (1, 2, 3, 5)]
    found = measure(network, target, texts, shapes)
    for shape, result in found.items():
        steps = [
            replay(serial, target, draft, tensors, text, serial.masks(shape.steps))
            for text in texts
        ]
        assert result.prompts == tuple((len(s), sum(s)) for s in steps)
    assert found[Shape.chain(5)].per_position[1] > 0, "no mask was right: the test shows nothing"


def test_the_norm_over_the_concatenation_is_passed_once(drafts):
    _, tensors, network = make(drafts, input_norm=True)
    streams = tensors["mask_hidden"].flatten()
    normed = streams / (streams.square().mean() + 1e-5).sqrt() * tensors["input_norm.weight"]
    trace = {}
    out, cache = network.begin(torch.tensor([[1, 2]]), torch.randn(1, 2, 32))
    network.step(torch.tensor([[0, 0]]), out.feedback, cache, trace)
    assert torch.allclose(trace["mask"], tensors["fc.weight"] @ normed, atol=1e-5)


def test_nothing_that_is_fed_back_counts(drafts):
    _, _, network = make(drafts)
    tokens, hidden = torch.tensor([[1, 2, 3]]), torch.randn(1, 3, 32)
    found = []
    for token, scale in ((0, 1.0), (6, -3.0)):
        out, cache = network.begin(tokens, hidden)
        fed = torch.full_like(tokens, token), out.feedback * scale
        found.append(network.step(*fed, cache).normed)
    assert torch.equal(*found)


def test_a_network_without_its_mask_token_is_refused(drafts):
    with pytest.raises(Refused, match="mask token"):
        make(drafts, token=None)


@pytest.mark.parametrize(
    ("other", "stage"),
    [
        ({"mask": 12}, "mask of step 2"),
        ({"token": 3}, "embedding of step 2"),
        ({"residual": "normed"}, "residual"),
    ],
)
def test_where_two_part_is_named(drafts, target, texts, other, stage):
    one, two = make(drafts)[2], make(drafts, **other)[2]
    (batch,) = batches(target, texts[:1], one.draft.taps)
    parting = first_parting(two, one, batch, 3)
    assert parting is not None
    assert parting.stage == stage


def test_one_that_drafts_token_by_token_parts_at_the_mask(drafts, target, texts):
    draft, tensors, network = make(drafts)
    without = draft.model_copy(update={"parallel": None})
    (batch,) = batches(target, texts[:1], draft.taps)
    parting = first_parting(Network(without, Weights.of(without, tensors)), network, batch, 3)
    assert parting is not None
    assert parting.stage == "mask of step 2"


def test_an_engine_without_the_flag_is_a_known_mistake(drafts):
    names = [one.name for one in miswirings.miswirings(make(drafts)[0], 3, 32)]
    assert "token-by-token" in names
    assert not {"feedback", "fc-skipped"} & set(names)


def test_one_pass_costs_as_much_as_one_step():
    chain = {
        "shape": Shape.chain(4),
        "tokens": 9,
        "prompts": ((4, 4),),
        "per_position": (4, 0, 0, 0),
    }
    assert Acceptance(**chain).speedup(0.25) == 1
    assert Acceptance(**chain, one_pass=True).speedup(0.25) == 1.6


def test_an_engine_is_started_with_the_flag():
    work = Work("t", "d", False, ((1,),), 8, (), Shape.chain(4), "float32")
    flag = "--speculative-config.parallel_drafting=true"
    assert flag in arguments_of("vllm", replace(work, parallel=True))
    assert flag not in arguments_of("vllm", work)


# The trained one.


def test_its_counters_are_those_that_vllm_counts():
    """vLLM's own are asked in tests/engines/test_parallel.py."""
    request = Request(
        str(TRAINED), str(DATA / "target"), prompts=DATA / "prompts.jsonl", new_tokens=96
    )
    found = validate(request)[0].acceptance
    assert (found.drafts, found.accepted) == (1317, 987)
    assert list(found.per_position) == [606, 183, 110, 88]


def test_a_tree_of_it_is_refused():
    request = Request(str(TRAINED), str(DATA / "target"), shape=Shape(3, 2, 4))
    with pytest.raises(Usage, match="one pass"):
        validate(request)


def test_a_diagnosis_does_not_ask_what_is_fed_back():
    target = Target.load(DATA / "target")
    loaded = api.load(str(TRAINED), "auto", api.Options(target=str(DATA / "target")))
    subject = subject_of(loaded, target, device=torch.device("cpu"), dtype=torch.float32)
    assert "feedback" not in subject.options
