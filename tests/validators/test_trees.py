"""Trees against a plain serial replay of SGLang's lists, and against chains."""

from itertools import pairwise

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from eagle3_interop.schemas.draft import Mla
from eagle3_interop.validators.accept.acceptance import measure
from eagle3_interop.validators.accept.drafting import batches, tree_paths
from eagle3_interop.validators.accept.shape import Shape
from eagle3_interop.validators.target.running import Target
from eagle3_interop.validators.target.texts import Text
from eagle3_interop.validators.target.writing import write_texts

VOCABULARY = 5
PROMPTS = [[1, 2, 3], [4], [4, 0, 1, 2, 3, 3, 1], [2, 2]]
DRAFT = {"target_hidden": 32, "hidden": 32, "vocabulary": VOCABULARY, "heads": 4, "kv_heads": 2,
         "head_dim": 8, "mlp_width": 48, "target_layers": 3, "taps": (0, 2, 3)}  # fmt: skip
KINDS = {
    "plain": {"draft_vocabulary": VOCABULARY},
    "mapped-post-norm": {"draft_vocabulary": 4, "feedback": "post-norm"},
    "latent-attention": {
        "draft_vocabulary": VOCABULARY,
        "latent": Mla(
            heads=4, q_rank=12, kv_rank=16, nope_dim=8, rope_dim=4, v_dim=6, softmax_scale=0.4
        ),
    },
    "two-layers-window": {"draft_vocabulary": VOCABULARY, "count": 2, "windows": (3, None)},
}
SHAPES = [(3, 3, 8), (3, 3, 4), (2, 3, 13), (4, 2, 9), (5, 2, 6), (1, 4, 5), (1, 4, 3), (3, 1, 4)]


@pytest.fixture(scope="module")
def target():
    torch.manual_seed(4)
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
def texts(target):
    made = write_texts(target, PROMPTS, 26, 5, temperature=1.0, seed=2).texts
    return [Text(t.prompt, t.completion, n) for t, n in zip(made, (26, 26, 20, 9), strict=True)]


def serial_steps(serial, target, draft, tensors, text, shape):
    tokens = [*text.prompt, *text.completion]
    streams = target.features(torch.tensor([tokens]), draft.taps).taps
    features = torch.stack([streams[tap][0] for tap in draft.taps], dim=1)
    arguments = list(text.prompt), list(text.completion), features, text.scored
    return serial.run_engine(draft, tensors, *arguments, serial.tree(*shape))


@pytest.mark.parametrize("kind", KINDS)
def test_trees_equal_a_serial_replay(drafts, serial, target, texts, kind):
    """All shapes from one run of each top-k, walked; the replay drafts each step anew."""
    draft = drafts.make_draft(**DRAFT | KINDS[kind])
    tensors = drafts.make_tensors(draft, seed=6)
    shapes = [Shape(*shape) for shape in SHAPES]
    found = measure(drafts.make_network(draft, seed=6), target, texts, shapes, token_budget=70)
    for shape, result in found.items():
        steps = [serial_steps(serial, target, draft, tensors, text, shape) for text in texts]
        assert result.prompts == tuple((len(s), sum(s)) for s in steps), shape
        flat = [taken for s in steps for taken in s]
        assert result.per_position == tuple(sum(t > j for t in flat) for j in range(shape.steps))
    assert found[Shape(4, 2, 9)].per_position[2] > 0, "no deep path: the test shows nothing"


def test_keys_stay_in_their_slot(drafts, serial, target, texts):
    """Third-level scores at the first start of a text, by SGLang's rule and by the more natural one."""
    draft = drafts.make_draft(**DRAFT | KINDS["plain"])
    tensors = drafts.make_tensors(draft, seed=6)
    network = serial.SerialDraft(draft, tensors)
    differ = 0
    for text in texts:
        batch = next(batches(target, [text], draft.taps))
        paths = tree_paths(drafts.make_network(draft, seed=6), batch, 3, 3)
        start = int(batch.starts[0, paths.where[1][0]])
        caches = [[]]
        for position in range(start + 1):
            hidden = network.fused([batch.features.taps[tap][0, position] for tap in draft.taps])
            token = int(batch.tokens[0, position + 1])
            logits, state = network.feed(token, hidden, position, caches)
        arguments = network, logits, state, start + 1, caches, 3, 3
        by_slot, by_ancestor = (
            torch.tensor([score for _, score, _ in serial.grow(*arguments, ancestors)])
            for ancestors in (False, True)
        )
        assert torch.allclose(paths.scores[0], by_slot, atol=1e-5)
        differ += not torch.allclose(paths.scores[0], by_ancestor, atol=1e-4)
    assert differ


def test_more_kept_nodes_never_accept_less(drafts, target, texts):
    network = drafts.make_network(drafts.make_draft(**DRAFT | KINDS["plain"]), seed=6)
    for batch in batches(target, texts, network.draft.taps):
        paths = tree_paths(network, batch, 3, 3)
        lengths = [paths.lengths(Shape(3, 3, n)) for n in range(2, 23)]
        for fewer, more in pairwise(lengths):
            assert bool((fewer <= more).all())
