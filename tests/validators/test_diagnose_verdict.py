"""From scores to an answer, on made-up scores: what few texts support, and where two measures disagree."""

import math
from dataclasses import replace

import pytest
import torch

from eagle3_interop.schemas.intervals import paired_interval, student
from eagle3_interop.validators.diagnose.run import _said, answer
from eagle3_interop.validators.diagnose.scoring import DEPTHS, Result, _cut
from eagle3_interop.validators.diagnose.verdict import (
    FEWEST,
    Diagnosis,
    _doubts,
    choose,
    indistinguishable,
)
from eagle3_interop.validators.diagnose.wiring import STREAM, USUAL, Wiring
from eagle3_interop.validators.report.heatmap import foremost, rows

FLAGS = (("residual", "raw"), ("feedback", "pre-norm"), ("shift", "0"))
CONFIGURED = Wiring((1, 3, 5), (STREAM,) * 3, FLAGS)
OTHER = CONFIGURED.with_flag("residual", "normed")
STARTS, STEPS = 40, 20


def result(wiring, scores, accepted=20):
    """A wiring that scored so many nats on each text, over all depths, with 20 steps a text."""
    n = len(scores)
    entropy = torch.tensor(scores, dtype=torch.float64)[:, None].expand(n, DEPTHS) / DEPTHS
    return Result(
        wiring,
        torch.full((n,), float(STARTS), dtype=torch.float64),
        entropy * STARTS,
        torch.full((n,), float(STEPS), dtype=torch.float64),
        torch.full((n,), float(accepted), dtype=torch.float64) + torch.arange(n) % 2,
    )


def diagnosed(best, configured, others=()):
    """The answer about some results."""
    found = sorted({id(x): x for x in (best, configured, *others)}.values(), key=lambda x: x.score)
    return Diagnosis(
        "configured-is-best" if best is configured else "better-wiring",
        configured, best, (), tuple(found), 7, 9.0, 1.0, True, (), (),
        tuple(_doubts(best, configured, found)),
    )  # fmt: skip


def around(mean, n, spread=0.1):
    """Scores about a mean."""
    return [mean + spread * (-1) ** i for i in range(n)]


# Intervals that few texts make wide.


@pytest.mark.parametrize(
    ("level", "freedom", "wanted"), [(0.95, 1, 12.706), (0.95, 2, 4.303), (0.99, 9, 3.250)]
)
def test_students_reach_is_that_of_the_tables(level, freedom, wanted):
    assert student(level, freedom) == pytest.approx(wanted, abs=1e-3)


def test_the_interval_of_three_numbers_is_that_of_paper():
    low, high = paired_interval([1, 2, 3], [1, 1, 1])
    assert (low + high) / 2 == pytest.approx(2)
    assert high - 2 == pytest.approx(4.3027 / math.sqrt(3), abs=1e-3)


def test_of_one_text_nothing_is_known_of_the_spread():
    assert paired_interval([1.0], [1.0]) == (-math.inf, math.inf)


def test_few_texts_are_cut_into_pieces_and_many_are_not():
    assert [len(set(units.tolist())) for units in _cut([40])] == [6]
    assert [len(set(units.tolist())) for units in _cut([40] * 3)] == [3, 3, 3]
    assert [len(set(units.tolist())) for units in _cut([40] * 8)] == [1] * 8
    every = torch.cat(_cut([40, 5, 13]))
    assert every.tolist() == sorted(every.tolist())


# The verdict.


def test_a_gain_that_one_wiring_shows_is_not_one_that_the_luckiest_of_many_has():
    gains = [0.12, -0.02, 0.11, 0.01, 0.13, 0.0, 0.12, 0.05]
    configured = result(CONFIGURED, [5.0] * 8)
    other = result(OTHER, [5.0 - gain for gain in gains])
    assert not indistinguishable(other, configured)
    best, _ = choose([other, configured], configured, True, USUAL)
    assert best is other
    worse = [result(OTHER.with_flag("shift", f"other {i}"), around(9.0, 8)) for i in range(40)]
    best, _ = choose([other, configured, *worse], configured, True, USUAL)
    assert best is configured
    (doubt,) = _doubts(best, configured, [other, configured, *worse])
    assert "luckiest of 42 wirings" in doubt
    assert "More prompts" in doubt


def test_a_plain_gain_is_found_whatever_was_tried_beside():
    configured, other = result(CONFIGURED, around(8.0, 8)), result(OTHER, around(5.0, 8, 0.2))
    worse = [result(OTHER.with_flag("shift", f"other {i}"), around(9.0, 8)) for i in range(40)]
    best, equal = choose([other, configured, *worse], configured, True, USUAL)
    assert best is other
    assert equal == []


# What the answer says of itself.


def test_nothing_is_written_on_the_word_of_few_texts():
    few, many = (
        diagnosed(result(OTHER, around(5.0, n), 30), result(CONFIGURED, around(8.0, n)))
        for n in (FEWEST - 1, FEWEST)
    )
    assert few.unsupported == f"{FEWEST - 1} texts are too few to tell."
    assert many.unsupported == ""
    assert any("40, of the kind that the draft was trained on" in doubt for doubt in few.doubts)
    assert not many.doubts


def test_a_weak_drafts_loss_alone_is_not_believed_and_the_answer_says_why():
    """On texts unlike its own, another layer may lower the loss of what it never gets right."""
    configured, other = result(CONFIGURED, around(8.0, 8), 3), result(OTHER, around(7.8, 8), 1)
    best, _ = choose([other, configured], configured, True, USUAL)
    assert best is configured
    found = diagnosed(configured, configured, (other,))
    said = [item.message for item in _said(found) if item.code == "wiring-doubted"]
    assert "but acceptance falls with it: 1.07 tokens a step against 1.18 as configured" in said[0]
    assert said[0] in answer(found)


def test_of_a_draft_that_is_often_right_the_loss_decides_and_nothing_is_written():
    """Without its last norm a draft's likeliest tokens are nearly the same, and its loss is not."""
    configured, other = result(CONFIGURED, around(8.0, 8), 20), result(OTHER, around(5.0, 8), 19)
    assert choose([other, configured], configured, True, USUAL)[0] is other
    found = diagnosed(other, configured)
    assert found.unsupported == "acceptance does not rise with it."
    said = [item.message for item in _said(found) if item.code == "wiring-doubted"]
    assert "acceptance does not: 1.98 tokens a step against 2.02 as configured" in said[0]


def test_where_nothing_is_configured_acceptance_has_nothing_to_fall_from():
    guessed, other = result(CONFIGURED, around(8.0, 8), 3), result(OTHER, around(7.8, 8), 1)
    assert choose([other, guessed], guessed, False, USUAL)[0] is other


def test_a_small_gain_is_called_small():
    found = diagnosed(
        result(OTHER, [5.0 - g for g in around(0.05, 8, 0.01)], 30), result(CONFIGURED, [5.0] * 8)
    )
    assert [doubt.split(":")[0] for doubt in found.doubts] == ["The gain is small"]


def test_a_verdict_without_doubt_says_nothing_more():
    found = diagnosed(result(OTHER, around(5.0, 8), 30), result(CONFIGURED, around(8.0, 8), 20))
    assert not found.doubts
    assert found.report()["doubts"] == []


def test_equivalents_are_one_row_and_the_configured_wiring_has_its_own():
    best, configured = result(OTHER, around(5.0, 8)), result(CONFIGURED, around(8.0, 8))
    like = [
        result(OTHER.with_flag("feedback", f"other {i}"), around(5.0 + i / 1000, 8))
        for i in range(5)
    ]
    worse = [result(OTHER.with_flag("shift", f"other {i}"), around(9.0, 8)) for i in range(20)]
    found = replace(diagnosed(best, configured, (*like, *worse)), equivalent=tuple(like))
    first = foremost(rows(found.report()), 10)
    assert len(first) == 10
    assert [row.mark for row in first[:3]] == ["best", "configured", "equivalent"]
    assert first[2].text.startswith("5 that these texts cannot tell from the best: ")
    assert first[1].gain.startswith("+0.000")
    assert first[0].gain.startswith("+3.000")
    (said,) = [item for item in _said(found) if item.code == "wiring-equivalent"]
    assert said.message.count("feedback") == 5
