"""Comparing networks: vocabularies met token by token, and the stage at which they part."""

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from eagle3_interop.schemas.draft import Mla
from eagle3_interop.validators.accept.acceptance import measure
from eagle3_interop.validators.accept.drafting import batches
from eagle3_interop.validators.accept.shape import Shape
from eagle3_interop.validators.network.reference import Network
from eagle3_interop.validators.network.weights import Weights
from eagle3_interop.validators.prove.agreement import LogitComparison, comparison_gates
from eagle3_interop.validators.prove.stages import MEANING, first_parting
from eagle3_interop.validators.target.running import Target
from eagle3_interop.validators.target.writing import write_texts

V, D = 60, 20
DRAFT = {
    "target_hidden": 32, "hidden": 32, "vocabulary": V, "draft_vocabulary": D, "heads": 4, "kv_heads": 2,
    "head_dim": 8, "mlp_width": 48, "target_layers": 3, "taps": (0, 2, 3),
}  # fmt: skip


@pytest.fixture(scope="module")
def target():
    torch.manual_seed(5)
    sizes = {
        "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 3, "num_attention_heads": 4,
        "num_key_value_heads": 2, "head_dim": 8, "vocab_size": V,
    }  # fmt: skip
    tokens = {"pad_token_id": None, "bos_token_id": None, "eos_token_id": None}
    return Target(LlamaForCausalLM(LlamaConfig(**sizes, **tokens)))


@pytest.fixture(scope="module")
def texts(target):
    return write_texts(target, [[1, 2, 3], [4, 5], [6]], 12, 4, temperature=1.0, seed=3).texts


def make(drafts, change=None, **changes):
    """A network whose tensors were changed; every call starts from the same."""
    draft = drafts.make_draft(**DRAFT | changes)
    tensors = drafts.make_tensors(draft, seed=2)
    if change is not None:
        change(tensors)
    return Network(draft, Weights.of(draft, tensors))


def compare(one, other, target, texts, depth=3):
    comparison = LogitComparison(one, other, depth)
    parting = None
    for batch in batches(target, texts, comparison.taps):
        comparison.add(batch)
        parting = parting or first_parting(one, other, batch, depth)
    return comparison, parting


def reorder(tensors):
    """Draft ids in another order, the head's rows with them."""
    ids = tensors["d2t"] + torch.arange(D)
    order = torch.randperm(D, generator=torch.Generator().manual_seed(1))
    tensors["d2t"] = ids[order] - torch.arange(D)
    tensors["lm_head.weight"] = tensors["lm_head.weight"][order]


def test_equal_networks_differ_by_nothing(drafts, target, texts):
    comparison, parting = compare(make(drafts), make(drafts), target, texts)
    result = comparison.result()
    assert parting is None
    assert (result.max_abs_diff, result.mean_abs_diff, result.top1_agreement) == (0, 0, 1)
    assert result.kl == (0, 0, 0)
    assert result.positions == 3 * 11


def test_a_map_in_another_order_is_the_same_network(drafts, target, texts):
    comparison, parting = compare(make(drafts, reorder), make(drafts), target, texts)
    assert parting is None
    assert comparison.result().max_abs_diff == 0
    assert comparison.result().top1_agreement == 1
    assert (comparison.common, comparison.missing) == (D, 0)


def test_a_later_difference_is_not_blamed_on_the_order(drafts, target, texts):
    """Reordered rows differ raw at every step; what counts first is the feedback."""
    wrong = make(drafts, reorder, feedback="post-norm")
    _, parting = compare(wrong, make(drafts), target, texts)
    assert parting.stage == "feedback of step 2"
    assert parting.step == 2


def test_figures_against_plain_formulas(drafts, target, texts):
    one = make(drafts, lambda tensors: tensors["lm_head.weight"].mul_(1.1))
    other = make(drafts)
    comparison, parting = compare(one, other, target, texts)
    assert parting.stage == "head"
    batch = next(batches(target, texts, (0, 2, 3)))
    hidden = other.fuse(batch.features)
    out, _ = other.begin(batch.tokens[:, 1 : hidden.shape[1] + 1], hidden)
    rows = torch.arange(len(batch.starts))[:, None]
    right = other.logits(out.normed[rows, batch.starts])[batch.valid].double()
    left = right * 1.1
    p, q = right.softmax(-1), left.softmax(-1)
    kl = (p * (p / q).log()).sum(-1).mean()
    assert comparison.result().kl[0] == pytest.approx(float(kl), rel=1e-4)
    assert comparison.result().top1_agreement == 1


def drop_map(tensors):
    tensors["d2t"].zero_()


def test_a_dropped_map_parts_at_the_vocabulary(drafts, target, texts):
    """What engines do without d2t: draft ids are taken for target ids."""
    comparison, parting = compare(make(drafts, drop_map), make(drafts), target, texts)
    assert parting.stage == "vocabulary map"
    assert comparison.missing > 0
    ours, theirs = (
        measure(network, target, texts, [Shape.chain(2)])[Shape.chain(2)]
        for network in (make(drafts, drop_map), make(drafts))
    )
    gates = {gate.name: gate for gate in comparison_gates(comparison, ours, theirs, None)}
    assert not gates["draft-vocabulary"].passed
    assert gates["draft-vocabulary"].got == comparison.missing


def test_nothing_in_common(drafts, target, texts):
    def elsewhere(tensors):
        free = sorted(set(range(V)) - set((tensors["d2t"] + torch.arange(D)).tolist()))[:D]
        tensors["d2t"] = torch.tensor(free) - torch.arange(D)

    comparison, parting = compare(make(drafts, elsewhere), make(drafts), target, texts)
    assert parting.stage == "vocabulary map"
    assert (comparison.common, comparison.missing) == (0, 2 * D)
    assert comparison.result().top1_agreement == 0


def test_a_difference_that_goes_nowhere_is_none(drafts, target, texts):
    """The norm takes the scale of an embedding out again."""
    wrong = make(drafts, lambda tensors: tensors["embed_tokens.weight"].mul_(1.5))
    comparison, parting = compare(wrong, make(drafts), target, texts)
    assert parting is None
    assert 0 < comparison.result().max_abs_diff <= comparison.limit


CASES = {
    "fc output": {"change": lambda t: t["fc.weight"].mul_(1.01)},
    "embedding": {"change": lambda t: t["embed_tokens.weight"].add_(0.1)},
    "first-layer input": {"change": lambda t: t["layers.0.hidden_norm.weight"].mul_(1.01)},
    "attention": {"change": lambda t: t["layers.0.self_attn.k_proj.weight"].mul_(1.1)},
    "attention of layer 2": {"windows": (None, 2)},
    "layer input of layer 2": {"change": lambda t: t["layers.1.input_layernorm.weight"].mul_(1.1)},
    "MLP": {"change": lambda t: t["layers.0.mlp.up_proj.weight"].mul_(1.01)},
    "MLP of layer 2": {"change": lambda t: t["layers.1.mlp.up_proj.weight"].mul_(1.01)},
    "final norm": {"change": lambda t: t["norm.weight"].mul_(1.01)},
    "residual": {"residual": "normed"},
}


@pytest.mark.parametrize("stage", CASES)
def test_the_stage_is_named(drafts, target, texts, stage):
    _, parting = compare(
        make(drafts, count=2, **CASES[stage]), make(drafts, count=2), target, texts
    )
    assert parting.stage == stage
    assert parting.step == 1
    assert parting.max_abs_diff > 0
    assert parting.meaning in MEANING.values()


LATENT = Mla(heads=4, q_rank=12, kv_rank=16, nope_dim=8, rope_dim=4, v_dim=6, softmax_scale=0.4)


@pytest.mark.parametrize(
    "other",
    [
        LATENT.model_copy(update={"interleaved": False}),
        LATENT.model_copy(update={"softmax_scale": 0.3}),
    ],
)
def test_latent_attention_that_differs(drafts, target, texts, other):
    """Another rotation, another factor on the scores: the weights are the same, and so is all before attention."""
    _, parting = compare(make(drafts, latent=other), make(drafts, latent=LATENT), target, texts)
    assert parting.stage == "attention"


def test_a_window_that_only_later_steps_leave(drafts, target):
    """One token of prompt: the first step sees the same, the second does not."""
    short = write_texts(target, [[1]], 2, 4, temperature=1.0).texts
    wrong = make(drafts, windows=(1,))
    _, parting = compare(wrong, make(drafts), target, short)
    assert parting.stage == "attention of step 2"


def test_another_number_of_layers(drafts, target, texts):
    _, parting = compare(make(drafts, count=2), make(drafts), target, texts)
    assert parting.max_abs_diff is None or parting.max_abs_diff > 0


def test_not_a_number_never_passes(drafts, target, texts):
    wrong = make(drafts, lambda t: t["lm_head.weight"].mul_(float("1e38")))
    wrong.draft = wrong.draft.model_copy(
        update={"vocabulary": wrong.draft.vocabulary.model_copy(update={"logit_scale": 1e9})}
    )
    comparison, _ = compare(wrong, make(drafts), target, texts)
    assert not comparison.max_abs_diff <= comparison.limit
    assert comparison.result().max_abs_diff is None
    assert "NaN" not in comparison.result().model_dump_json()
