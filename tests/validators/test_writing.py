"""Texts that the target writes, and what it hands a draft while it writes them."""

from pathlib import Path

import pytest
import torch
from transformers import GptOssConfig, GptOssForCausalLM, LlamaConfig, LlamaForCausalLM

from eagle3_interop.validators.accept.acceptance import batch_lengths
from eagle3_interop.validators.accept.drafting import batches, written_batches
from eagle3_interop.validators.accept.shape import Shape
from eagle3_interop.validators.target.cache import ROOM
from eagle3_interop.validators.target.running import Target
from eagle3_interop.validators.target.texts import Text
from eagle3_interop.validators.target.writing import Order, Texts, write, write_texts

TINY = Path(__file__).parents[1] / "data" / "target"
PROMPTS = [[5, 6, 7], [8, 9], [10, 11, 12, 13], [1000] * 30]


@pytest.fixture(scope="module")
def target():
    return Target.load(TINY)


def test_texts_have_exactly_the_wanted_length(target):
    prompts = [[5, 6, 7], [8, 9], [10, 11, 12, 13]]
    made = write_texts(target, prompts, 12, 3)
    assert [len(t.completion) for t in made.texts] == [15] * 3
    assert [t.scored for t in made.texts] == [12] * 3
    assert (made.given, made.disagreements) == (0, 0)
    again = write_texts(target, prompts, 12, 3, given=[t.completion for t in made.texts])
    assert (again.given, again.disagreements, again.texts) == (45, 0, made.texts)


def test_given_texts_are_judged_and_continued(target):
    prompts = [[5, 6, 7], [8, 9], [10, 11, 12, 13]]
    own = [t.completion for t in write_texts(target, prompts, 12, 3).texts]
    wrong = list(own[1][:12])
    wrong[4] = (wrong[4] + 1) % 1024
    made = write_texts(target, prompts, 12, 3, given=[own[0], wrong, own[2][:7]])
    assert made.texts[0].completion == own[0]
    assert made.texts[2].completion == own[2][:10]
    assert [t.scored for t in made.texts] == [12, 12, 7]
    assert list(made.texts[1].completion[:12]) == wrong
    assert made.given == 15 + 12 + 7
    final = target.features(torch.tensor([prompts[1] + wrong]), ()).final[0]
    expected = sum(a != b for a, b in zip(target.greedy(final)[1:13].tolist(), wrong, strict=True))
    assert made.disagreements == expected >= 1


def test_stopping_at_the_end_of_sequence(target):
    prompts = [[5, 6, 7], [8, 9]]
    own = write_texts(target, prompts, 12, 3).texts
    stop = own[0].completion[4]
    made = write_texts(target, prompts, 12, 3, stop_ids=[stop]).texts
    assert made[0].scored == own[0].completion.index(stop) + 1
    assert made[0].completion == own[0].completion[: made[0].scored + 3]
    assert made[1].completion == own[1].completion or stop in own[1].completion


def test_sampled_texts_follow_the_seed(target):
    first, again, other = (
        write_texts(target, [[5, 6, 7]] * 3, 8, 1, temperature=1.0, seed=seed).texts
        for seed in (1, 1, 2)
    )
    assert first == again
    assert first != other
    assert len({text.completion for text in first}) == 3


def test_generation_does_not_depend_on_the_batch(target):
    prompts = [[5, 6, 7], [8, 9], [10, 11, 12, 13], [1000] * 30]
    whole = write_texts(target, prompts, 10, 2)
    assert write_texts(target, prompts, 10, 2, token_budget=1) == whole


def test_an_id_list_of_another_model_is_judged(target):
    torch.manual_seed(0)
    other = Target(
        LlamaForCausalLM(
            LlamaConfig(
                hidden_size=32, intermediate_size=32, num_hidden_layers=1, num_attention_heads=2,
                vocab_size=1024,
            )
        )
    )  # fmt: skip
    foreign = [t.completion for t in write_texts(other, [[5, 6, 7]], 10, 0).texts]
    assert write_texts(target, [[5, 6, 7]], 10, 0, given=foreign).disagreements > 5


GIVEN = {
    "nothing given": [None] * 4,
    "all given": [15, 15, 15, 15],
    "some given, some short": [None, 15, 4, 12],
}


@pytest.mark.parametrize("lengths", GIVEN.values(), ids=GIVEN)
def test_features_are_those_of_one_pass_over_the_finished_text(target, lengths):
    own = write_texts(target, PROMPTS, 12, 3).texts
    given = [n and own[i].completion[:n] for i, n in enumerate(lengths)]
    seen = 0
    for group in write(target, Order(PROMPTS, 12, 3, given), (0, 2, target.depth), final=True):
        for row, text in enumerate(group.texts):
            tokens = torch.tensor([[*text.prompt, *text.completion]])
            alone = target.features(tokens, (0, 2, target.depth))
            until = len(text) - 1
            for tap, stream in alone.taps.items():
                got = group.features.taps[tap][row, :until]
                assert torch.allclose(got, stream[0, :until], atol=1e-4, rtol=1e-4)
            got = group.features.final[row, :until]
            assert torch.allclose(got, alone.final[0, :until], atol=1e-4, rtol=1e-4)
            seen += 1
    assert seen == 4


def test_each_token_passes_the_target_once(target, monkeypatch):
    """A text with a given completion is read, judged and continued by K passes, whatever its length."""
    own = write_texts(target, PROMPTS, 12, 3).texts
    read = []
    run = target.backbone.forward

    def counted(*args, **kwargs):
        read.append(tuple(kwargs["input_ids"].shape))
        return run(*args, **kwargs)

    monkeypatch.setattr(target.backbone, "forward", counted)
    given = [text.completion[:12] for text in own]
    (group,) = write(target, Order(PROMPTS, 12, 3, given), (0, 2))
    assert read == [(4, 42), (4, 1), (4, 1)]
    assert (group.given, group.wrong) == (48, 0)
    assert {text.completion for text in group.texts} == {text.completion for text in own}


def test_a_text_that_has_enough_leaves_the_batch(target, monkeypatch):
    own = write_texts(target, PROMPTS, 12, 3).texts
    rows = []
    run = target.run

    def counted(taps, **given):
        rows.append(len(given["input_ids"]))
        return run(taps, **given)

    monkeypatch.setattr(target, "run", counted)
    given = [None, own[1].completion, own[2].completion[:12], own[3].completion[:9]]
    made = write_texts(target, PROMPTS, 12, 3, given=given)
    assert [text.scored for text in made.texts] == [12, 12, 12, 9]
    # All are read; the second misses nothing, the third and fourth three tokens, the first all fifteen.
    assert rows == [4, 3, 3, *[1] * 12]
    assert made.texts[0] == own[0]
    assert made.texts[2] == own[2]


@pytest.mark.parametrize("steps", [2, ROOM + 3])
def test_the_roomy_cache_changes_no_token(target, steps, monkeypatch):
    roomy = write_texts(target, PROMPTS, steps, 0)
    monkeypatch.setattr("eagle3_interop.validators.target.writing.made_roomy", lambda cache: cache)
    assert write_texts(target, PROMPTS, steps, 0).texts == roomy.texts


def test_a_sliding_target_writes_beyond_its_window():
    torch.manual_seed(0)
    config = GptOssConfig(
        hidden_size=32, intermediate_size=32, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, head_dim=8, vocab_size=64, num_local_experts=2, num_experts_per_tok=1,
        sliding_window=4, layer_types=["sliding_attention", "full_attention"],
    )  # fmt: skip
    sliding = Target(GptOssForCausalLM(config))
    own = write_texts(sliding, [[5, 6, 7], [8, 9], [3] * 9], 12, 3).texts
    for text in own:
        final = sliding.features(torch.tensor([[*text.prompt, *text.completion]]), ()).final[0]
        best = sliding.greedy(final)[len(text.prompt) - 1 : -1]
        assert tuple(best.tolist()) == text.completion


def test_batches_of_written_texts_count_as_those_of_known_ones(target, drafts):
    draft = drafts.make_draft(
        target_hidden=target.hidden_size, hidden=32, vocabulary=target.vocabulary_size,
        draft_vocabulary=target.vocabulary_size, heads=4, kv_heads=2, head_dim=8, mlp_width=48,
        target_layers=target.depth, taps=(0, 2, 3),
    )  # fmt: skip
    network = drafts.make_network(draft, seed=5)
    made, shape, found = Texts(), Shape.chain(3), {}
    for group in made.through(write(target, Order(PROMPTS, 12, 3), (0, 2, 3))):
        for batch in written_batches(group, token_budget=60):
            lengths = batch_lengths(network, batch, [shape])[shape]
            found |= {
                i: row[ok].tolist()
                for i, row, ok in zip(batch.indices, lengths, batch.valid, strict=True)
            }
    for batch in batches(target, made.texts, (0, 2, 3)):
        lengths = batch_lengths(network, batch, [shape])[shape]
        for index, row, ok in zip(batch.indices, lengths, batch.valid, strict=True):
            assert found[index] == row[ok].tolist()
    assert sorted(found) == [0, 1, 2, 3]


def test_a_text_of_one_scored_token_has_nothing_to_draft(target):
    (group,) = write(target, Order([[5, 6, 7]], 2, 3, [[4]]), (0,))
    assert group.texts[0].scored == 1
    assert list(written_batches(group)) == []
    assert isinstance(group.texts[0], Text)
