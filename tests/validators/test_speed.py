"""Measured speed: what is timed, what follows from it, and what is said; all figures are arithmetic on paper."""

import pytest

from eagle3_interop.schemas.report import Report
from eagle3_interop.validators.accept.acceptance import Acceptance
from eagle3_interop.validators.accept.costs import between, expected
from eagle3_interop.validators.accept.shape import Shape
from eagle3_interop.validators.accept.sweep import rows
from eagle3_interop.validators.engines.answers import Ran
from eagle3_interop.validators.engines.speed import plan, speed, widths
from eagle3_interop.validators.report.speed import slower_from, speed_lines
from eagle3_interop.validators.report.terminal import best_lines, sweep_title

PROMPTS = tuple((i, i + 1) for i in range(10))
READING = 0.5
"""Seconds that an engine needs for the prompts, which must not count."""


def run(made, seconds_of, steps_of=lambda _tokens: None, noise=0.0):
    """An engine that takes so many seconds for the tokens after the first, and a while for the prompts."""
    found = []
    for number, one in enumerate(made.runs):
        later = one.new_tokens - 1
        seconds = READING + later * seconds_of(len(one.prompts)) + noise * (number % 3)
        outputs = tuple((7,) * one.new_tokens for _ in one.prompts)
        found.append(Ran(seconds, outputs, steps_of(later)))
    return found


THREE = Shape.chain(3)


def measured(drafting, bare, *, batches=(1,), shape=THREE, sweep=False, steps=lambda n: n // 2):
    """What is found of an engine by the seconds that each token takes it at each batch size."""
    ours = plan(PROMPTS, batches, 41)
    theirs = plan(PROMPTS, batches, 41, widths(batches[0], shape, sweep=sweep))
    without = (theirs, run(theirs, bare)) if bare else None
    return speed((ours, run(ours, drafting, steps)), without, shape, one_pass=False)


def test_each_batch_size_is_timed_on_whole_groups_of_the_same_prompts():
    made = plan(PROMPTS, (1, 3), 41)
    timed = [one.prompts for one in made.runs if one.new_tokens == 41]
    assert [len(group) for group in timed[:10]] == [1] * 8 + [3, 3]
    assert timed[8] == PROMPTS[:3]


def test_a_batch_larger_than_the_prompts_takes_some_of_them_again():
    made = plan(PROMPTS[:2], (5,), 41)
    assert made.runs[1].prompts == (*PROMPTS[:2], *PROMPTS[:2], PROMPTS[0])


def test_the_first_round_warms_up_and_is_not_timed():
    made = plan(PROMPTS, (1,), 41)
    ran = run(made, lambda _size: 0.01)
    late = [Ran(99.0, one.outputs) for one in ran[:16]] + ran[16:]
    found = speed((made, late), None, Shape.chain(3), one_pass=False)
    assert found["with"] == pytest.approx(100)


def test_reading_the_prompts_does_not_count():
    """40 tokens of 0.02 s after the first one are 50 a second, whatever the prompts took."""
    found = measured(lambda _size: 0.02, lambda _size: 0.01)
    assert (found["with"], found["without"]) == (pytest.approx(50), pytest.approx(100))
    assert found["ratio"] == pytest.approx(0.5)


def test_texts_of_a_batch_count_together():
    found = measured(lambda _size: 0.02, lambda _size: 0.01, batches=(4,))
    assert found["with"] == pytest.approx(200)


def test_a_target_step_is_timed_by_the_tokens_that_it_verifies():
    found = measured(lambda _size: 0.02, lambda size: 0.01 + 0.001 * size, sweep=True)
    assert [tokens for tokens, _ in found["target_step"]] == [1, 2, 4, 8, 16, 32, 64]
    assert dict(found["target_step"])[16] == pytest.approx(0.026)


def test_a_draft_step_is_what_a_whole_step_takes_beyond_its_verification():
    """40 tokens in 20 steps at 0.02 s a token: 0.04 s a step; verifying 4 tokens takes 0.016, three draft steps the rest."""
    found = measured(lambda _size: 0.02, lambda size: 0.012 + 0.001 * size)
    assert found["draft_step"] == pytest.approx((0.04 - 0.016) / 3)


def test_a_draft_that_proposes_all_at_once_has_one_pass():
    ours, theirs = plan(PROMPTS, (1,), 41), plan(PROMPTS, (1,), 41, (1, 2, 4))
    drafting = (ours, run(ours, lambda _size: 0.02, lambda n: n // 2))
    bare = (theirs, run(theirs, lambda _size: 0.016))
    found = speed(drafting, bare, Shape.chain(3), one_pass=True)
    assert found["draft_step"] == pytest.approx(0.04 - 0.016)


def test_a_draft_step_below_the_noise_is_nothing():
    assert measured(lambda _size: 0.005, lambda _size: 0.02)["draft_step"] == 0


def test_an_engine_that_does_not_count_its_steps_has_no_draft_step():
    found = measured(lambda _size: 0.02, lambda _size: 0.01, steps=lambda _n: None)
    assert found["draft_step"] is None
    assert found["target_step"] is not None


def test_without_a_baseline_no_speed_up_is_stated():
    found = measured(lambda _size: 0.02, None)
    names = ("without", "ratio", "target_step", "draft_step", "same_texts")
    assert [found[name] for name in names] == [None] * 5


def test_texts_that_part_are_counted():
    ours = theirs = plan(PROMPTS, (1,), 41)
    ran = run(ours, lambda _size: 0.01)
    other = [Ran(one.seconds, ((8,) * 41,)) if i % 4 == 1 else one for i, one in enumerate(ran)]
    found = speed((ours, ran), (theirs, other), Shape.chain(3), one_pass=False)
    assert found["same_texts"] == 0.5


def test_the_spread_is_that_of_the_rounds():
    made = plan(PROMPTS, (1,), 41)
    ran = run(made, lambda _size: 0.01)
    slow = [Ran(2 * one.seconds, one.outputs) if i >= 48 else one for i, one in enumerate(ran)]
    found = speed((made, slow), None, Shape.chain(3), one_pass=False)
    assert found["batches"][0]["spread"] == (pytest.approx(50), pytest.approx(100))


COSTS = [(1, 0.010), (4, 0.013), (16, 0.025)]


@pytest.mark.parametrize(
    ("tokens", "seconds"), [(1, 0.010), (2, 0.011), (4, 0.013), (10, 0.019), (16, 0.025)]
)
def test_costs_between_two_that_were_timed(tokens, seconds):
    assert between(COSTS, tokens) == pytest.approx(seconds)


@pytest.mark.parametrize("tokens", [0, 17])
def test_costs_beyond_those_that_were_timed_are_not_made_up(tokens):
    assert between(COSTS, tokens) is None


def told(**more):
    plain = {
        "batch": 1, "with": 56.8, "without": 90.0, "ratio": 56.8 / 90, "target_step": COSTS, "draft_step": 0.001,
        "batches": [row(1, 56.8, 90.0)], "rounds": 3, "new_tokens": 64, "same_texts": 1.0,
    }  # fmt: skip
    return {**plain, **more}


def row(size, with_, without):
    ratio = with_ / without if without else None
    return {
        "batch": size, "with": with_, "without": without, "ratio": ratio, "spread": (with_, with_),
        "spread_without": (without, without) if without else None,
    }  # fmt: skip


def lines(found, how="started"):
    return list(speed_lines(Report(verdict="pass", engine={"how": how}, speed=found)))


def test_the_tokens_a_second_of_a_setting():
    """Two draft tokens: three are verified in 0.012 s, two draft steps take 0.002: 2.1 tokens in 0.014 s."""
    made = expected(told(), Shape.chain(2), 2.1, one_pass=False)
    assert made == pytest.approx(2.1 / 0.014)
    at_four = told(batch=4)
    assert expected(at_four, Shape.chain(3), 2.0, one_pass=False) == pytest.approx(
        4 * 2 / (0.025 + 0.003)
    )
    assert expected(at_four, Shape.chain(4), 2.0, one_pass=False) is None


def counted(shape, length):
    accepted = round(100 * (length - 1))
    positions = (min(accepted, 100),) * shape.steps
    return Acceptance(shape, 100 + accepted, ((100, accepted),), positions, (positions,))


WIDE = Shape(3, 4, 16)
SETTINGS = [counted(Shape.chain(1), 1.7), counted(Shape.chain(3), 2.2), counted(WIDE, 2.9)]


def test_by_a_guess_the_widest_tree_wins():
    found = {one.tree: one for one in rows(SETTINGS, 0.1)}
    assert found[WIDE].best


def test_by_measured_costs_it_does_not():
    """1.7 in 0.012 s, 2.2 in 0.016 s and 2.9 in 0.028 s are 142, 137 and 104 tokens a second."""
    found = rows(SETTINGS, 0.1, speed=told())
    assert [round(one.tokens_per_second) for one in found] == [142, 138, 104]
    assert [one.best for one in found] == [True, False, False]
    assert "expected tokens a second" in sweep_title(found)
    said = list(best_lines(found, told()))
    assert said == [
        "serve 1 draft token a step: 141.7 tokens a second expected by the measured costs"
    ]


def test_an_engine_that_drafts_chains_is_told_no_tree():
    costs = told(target_step=[(1, 0.01), (16, 0.01)])
    assert rows(SETTINGS, None, speed=costs)[-1].best
    found = rows(SETTINGS, None, speed=costs, trees=False)
    assert [one.best for one in found] == [False, True, False]


def test_where_no_setting_is_faster_than_no_draft():
    slow = told(without=150.0)
    said = list(best_lines(rows(SETTINGS, None, speed=slow), slow))
    assert (
        said[-1]
        == "no setting is expected to be faster than the 150.0 tokens a second without a draft"
    )


def test_a_guess_is_called_one():
    said = list(best_lines(rows(SETTINGS, 0.1), None))
    assert "a guess that counts a verification as one step however wide it is" in said[-1]


def test_the_storys_line():
    """A draft of 74.7 % validation accuracy ran at 56.8 tokens a second against a baseline of 90."""
    first, *_, last = lines(told())
    assert first == (
        "with the draft 56.8 tokens a second, without it 90.0: drafting makes the engine 1.58 times slower"
    )
    assert "eagle3-diagnose" in last


def test_a_draft_that_helps():
    found = told(**{"with": 180.0, "ratio": 2.0}, batches=[row(1, 180.0, 90.0)])
    first, *rest = lines(found, how="server")
    assert first.endswith("without it 90.0: drafting makes the server 2.00 times faster")
    assert not [line for line in rest if "eagle3-diagnose" in line]


def test_a_server_without_a_baseline():
    bare = {"without": None, "ratio": None, "target_step": None, "draft_step": None}
    said = lines(told(**bare, batches=[row(1, 56.8, None)]), how="server")
    assert said[0] == "with the draft 56.8 tokens a second"
    assert said[-1].startswith("--baseline-server URL")


SIZES = [row(1, 180.0, 90.0), row(4, 300.0, 280.0), row(16, 500.0, 700.0), row(64, 900.0, 1500.0)]


def test_the_batch_size_from_which_on_drafting_is_slower():
    assert slower_from(told(batches=SIZES)) == 16
    said = lines(told(batches=SIZES))
    assert "from batch size 16 on, drafting makes the engine slower" in said
    assert said[1].startswith("at batch size 4, with the draft 300.0")


def test_a_batch_size_that_is_slower_in_between_is_no_beginning():
    mixed = [SIZES[0], row(4, 200.0, 280.0), row(16, 800.0, 700.0)]
    assert slower_from(told(batches=mixed)) is None
