"""Counters taken apart: by prompt, category, context and token, and what a vocabulary allows at most."""

import csv
import io
import itertools
import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from eagle3_interop.recipes.publish.consistency import contradictions
from eagle3_interop.schemas.breakdown import Breakdown
from eagle3_interop.schemas.report import Report
from eagle3_interop.validators import validate_cli
from eagle3_interop.validators.accept.acceptance import Acceptance, walk
from eagle3_interop.validators.accept.breakdown import MOST_TEXTS, MOST_TOKENS, Parts, bound
from eagle3_interop.validators.accept.shape import Shape
from eagle3_interop.validators.report import breakdown as shown
from eagle3_interop.validators.report.page import page
from eagle3_interop.validators.target.recorded import RecordedText
from eagle3_interop.validators.target.texts import Text

DATA = Path(__file__).resolve().parents[1] / "data"
NASTY = "<script>alert('x')</script>"


def taken_apart(completion, steps, *, can=range(10), scored=None, prompt=3, depth=2, category="a"):
    """The parts of one text whose steps began at these places and accepted so many."""
    text = Text((0,) * prompt, tuple(completion), scored or len(completion) - depth + 1)
    positions = tuple(sum(taken > j for _, taken in steps) for j in range(depth))
    one = Acceptance(
        Shape.chain(depth),
        text.scored,
        ((len(steps), sum(taken for _, taken in steps)),),
        positions,
        (positions,),
        steps=(tuple(steps),),
    )
    return Parts(one, [text], [category], can, 12)


def told(ids):
    return "".join(chr(97 + token) for token in ids)


def test_a_row_a_prompt_tells_its_kind_and_its_own_accept_length():
    (row,) = taken_apart([1, 2, 11, 4, 5, 6], [(1, 1), (3, 2)]).rows()
    assert (row.category, row.tokens, row.steps, row.accepted) == ("a", 5, 2, 3)
    assert row.accept_length == 2.5
    assert row.per_position == (2, 1)
    assert row.inexpressible == 1, "11, which no draft of the tokens 0 to 9 proposes"


def test_steps_are_told_by_the_tokens_before_them():
    found = taken_apart([1, 2, 3, 4, 5, 6], [(1, 1), (3, 0), (4, 2)], prompt=3).breakdown(told, 0)
    rows = [(row.first, row.last, row.steps, row.accepted) for row in found.contexts]
    assert rows == [(4, 7, 3, 3)], "they began after 4, 6 and 7 tokens"
    found = taken_apart([1, 2, 3, 4, 5, 6], [(1, 1), (3, 0), (4, 2)], prompt=5).breakdown(told, 0)
    rows = [(row.first, row.steps, row.accept_length) for row in found.contexts]
    assert rows == [(4, 1, 2.0), (8, 2, 2.0)], "after 6, 8 and 9"


def test_the_token_at_which_a_draft_ended_is_the_first_that_was_not_accepted():
    found = taken_apart([1, 2, 3, 11, 3, 6, 7], [(1, 1), (3, 0), (4, 0), (5, 2)])
    missed = [(one.token, one.missed, one.tokens) for one in found.breakdown(told, 0).missed]
    assert missed == [(3, 2, 2), (11, 1, 1)], "a step that accepted all ended at none"
    (second,) = [one for one in found.breakdown(told, 0).missed if one.token == 11]
    assert not second.expressible
    assert second.text == "l"


def test_accepted_runs_are_marked_in_the_text():
    (text,) = taken_apart([1, 2, 3, 4, 5, 6], [(1, 2), (4, 0), (5, 1)]).breakdown(told, 0).texts
    assert (text.text, text.accepted, text.whole) == ("bcdef", ((1, 3),), True)


def test_a_run_that_ends_within_a_character_is_marked_up_to_it():
    raw = "a€b".encode()

    def decode(ids):
        return bytes(ids).decode(errors="replace")

    (text,) = taken_apart(raw, [(1, 1), (3, 1)], scored=5, depth=1).breakdown(decode, 0).texts
    assert text.text == "a€b"
    assert text.accepted == ((1, 2),), "the euro sign's last byte, and so the sign"


def test_what_is_shown_is_capped():
    one = taken_apart([1] * 401, [(place, 1) for place in range(1, 400, 2)])
    steps, count = one.acceptance.steps[0], MOST_TEXTS + 3
    many = Acceptance(
        Shape.chain(2),
        400 * count,
        one.acceptance.prompts * count,
        (0, 0),
        one.acceptance.positions * count,
        steps=(steps,) * count,
    )
    found = Parts(many, list(one.texts) * count, [None] * count, range(10), 12).breakdown(told, 0)
    assert len(found.texts) == MOST_TEXTS
    assert {len(text.text) for text in found.texts} == {MOST_TOKENS}
    assert not any(text.whole for text in found.texts)
    assert found.categories == (), "no prompt names one"


def test_the_texts_with_the_smallest_accept_length_come_first():
    parts = [taken_apart([1, 2, 3, 4, 5], [(1, 1), (3, taken)], depth=2) for taken in (1, 0)]
    both = Acceptance(
        Shape.chain(2),
        8,
        tuple(one.acceptance.prompts[0] for one in parts),
        (3, 0),
        tuple(one.acceptance.positions[0] for one in parts),
        steps=tuple(one.acceptance.steps[0] for one in parts),
    )
    texts = [one.texts[0] for one in parts]
    found = Parts(both, texts, ["good", "bad"], range(10), 12).breakdown(told, 0)
    assert [text.prompt for text in found.texts] == [1, 0]
    assert {row.category: row.accept_length for row in found.categories} == {"good": 2, "bad": 1.5}


# What a vocabulary allows at most.


def test_a_vocabulary_that_holds_every_token_of_the_texts_bounds_nothing():
    text = Text((0,), (1,) * 13, 10)
    assert bound([text], range(5), 4) == 1 + (4 + 4) / 2, "2 steps of 5 tokens write 9"


def test_a_token_out_of_the_vocabulary_ends_each_draft_before_it():
    text = Text((0,), (1, 1, 9, 1, 1, 9, 1, 1, 9), 7)
    # From the second token on: 1 before the target's own 9, 1 1 before the next, 1 and 1 past the end.
    assert bound([text], range(5), 3) == 1 + (1 + 2 + 2) / 3


def test_a_draft_that_can_say_nothing_accepts_nothing():
    assert bound([Text((0,), (9,) * 6, 4)], range(5), 3) == 1.0
    assert bound([], range(5), 3) == 1.0


def every_walk(lengths, scored, out=1):
    """(steps, accepted) of every draft that accepts no more than these at each place."""
    if out >= scored:
        yield 0, 0
        return
    for taken in range(lengths[out - 1] + 1):
        for steps, accepted in every_walk(lengths, scored, out + taken + 1):
            yield steps + 1, accepted + taken


@pytest.mark.parametrize("depth", [1, 2, 3])
def test_no_draft_is_above_the_bound_and_one_is_at_it(depth):
    """Against every walk that there is, through every text of six scored tokens of which some cannot be said."""
    scored = 6
    for said in itertools.product((0, 9), repeat=scored + depth - 2):
        text = Text((0,), (0, *said), scored)
        lengths = [
            next((n for n in range(depth) if said[start + n] == 9), depth)
            for start in range(scored - 1)
        ]
        best = max(1 + accepted / steps for steps, accepted in every_walk(lengths, scored))
        assert bound([text], {0}, depth) == pytest.approx(best)


def test_the_walk_that_accepts_all_it_can_is_not_always_the_largest():
    """A last step counts in full: five tokens and a long last step are more a step than five in two steps."""
    text = Text((0,), (0, 9, 0, 0, 0, 0, 0, 0, 0), 6)
    taken = walk([0, 3, 3, 3, 3], 6)
    assert 1 + sum(taken) / len(taken) == 2.5
    assert bound([text], {0}, 3) == pytest.approx(1 + 5 / 3)


def test_stretches_of_recordings_are_bounded_each():
    whole = Text((0,), (0, 0, 9, 0, 0, 0, 9, 0), 6)
    parts = RecordedText((0,), whole.completion, 6, runs=((0, 2), (3, 3)))
    # 1 of the first stretch (the second token), then 2 of the other.
    assert bound([parts], {0}, 3) == 1 + (1 + 2) / 2


# On a page, a terminal, and as CSV.


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    """Of two prompts of two kinds."""
    folder = tmp_path_factory.mktemp("kinds")
    lines = (DATA / "prompts.jsonl").read_text().splitlines()[:2]
    kinds = [{**json.loads(line), "category": kind} for line, kind in zip(lines, ("x<y", "z"))]  # noqa: B905
    (folder / "prompts.jsonl").write_text("\n".join(map(json.dumps, kinds)))
    words = [DATA / "drafts" / "plain", "--target", DATA / "target", "--device", "cpu"]
    words += ["--prompts", folder / "prompts.jsonl", "--max-new-tokens", "32"]
    words += ["--json", folder / "r.json", "--html", folder / "r.html", "--csv", folder / "r.csv"]
    done = CliRunner().invoke(validate_cli.app, [str(word) for word in words])
    assert done.exit_code == 0, done.output
    return folder, done.stdout


def test_a_validation_tells_its_kinds(report, whole):
    folder, said = report
    told = Report.model_validate_json((folder / "r.json").read_text())
    assert [row.category for row in told.breakdown.categories] == ["x<y", "z"]
    assert sum(row.steps for row in told.breakdown.categories) == told.acceptance.drafts
    assert sum(row.accepted for row in told.breakdown.contexts) == told.acceptance.accepted
    assert sum(row.inexpressible for row in told.prompts) == told.breakdown.vocabulary.inexpressible
    assert told.breakdown.vocabulary.draft_size == 512
    assert told.acceptance.accept_length <= told.breakdown.vocabulary.accept_length_bound <= 5
    assert "by category" in said
    content = (folder / "r.html").read_text()
    whole(content)
    for word in ("x&lt;y", "<mark>", "Where drafts fail most", "position in the context"):
        assert word in content


def test_a_row_a_prompt_as_csv(report):
    folder, _ = report
    told = json.loads((folder / "r.json").read_text())["prompts"]
    rows = list(csv.DictReader(io.StringIO((folder / "r.csv").read_text())))
    assert [row["category"] for row in rows] == ["x<y", "z"]
    assert [int(row["steps"]) for row in rows] == [row["steps"] for row in told]
    assert [float(row["accept_length"]) for row in rows] == [row["accept_length"] for row in told]
    assert [int(row["accepted_at_1"]) for row in rows] == [row["per_position"][0] for row in told]


@pytest.mark.parametrize(
    "places",
    [
        ("prompts", 0, "accept_length"),
        ("prompts", 1, "tokens"),
        ("prompts", 0, "inexpressible"),
        ("breakdown", "vocabulary", "inexpressible"),
        ("breakdown", "contexts", 0, "accepted"),
        ("breakdown", "categories", 1, "steps"),
        ("breakdown", "categories", 0, "prompts"),
    ],
)
def test_no_part_can_be_edited_alone(report, places):
    told = json.loads((report[0] / "r.json").read_text())
    assert list(contradictions(Report.model_validate(told))) == []
    place = told
    for key in places[:-1]:
        place = place[key]
    place[places[-1]] += 1
    assert list(contradictions(Report.model_validate(told)))


def test_texts_on_a_page_are_escaped():
    plain = taken_apart([1, 2, 3, 4, 5, 6], [(1, 2), (4, 0), (5, 1)]).breakdown(told, 0)
    text = plain.texts[0].model_copy(update={"text": NASTY, "accepted": ((0, 8), (9, 14))})
    missed = plain.missed[0].model_copy(update={"text": NASTY})
    found = plain.model_copy(update={"texts": (text,), "missed": (missed,)})
    content = "".join(shown.sections(found))
    assert "<script" not in content
    assert "<mark>&lt;script&gt;</mark>a<mark>lert(</mark>" in content


def test_a_page_of_a_report_without_parts_is_whole(report):
    told = Report.model_validate_json((report[0] / "r.json").read_text())
    assert "Where drafts fail most" not in page(told.model_copy(update={"breakdown": None}))
    assert isinstance(told.breakdown, Breakdown)
