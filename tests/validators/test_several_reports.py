"""eagle3-report: reports side by side, and what keeps two from being compared."""

import csv
import io
import itertools
import json
import subprocess
import sys

import numpy as np
import pytest
from typer.testing import CliRunner

from eagle3_interop.schemas.breakdown import Breakdown, CategoryRow, VocabularyRow
from eagle3_interop.schemas.comparison import Comparison
from eagle3_interop.schemas.findings import finding
from eagle3_interop.schemas.intervals import (
    paired_difference,
    paired_interval,
    swapped_p_value,
)
from eagle3_interop.schemas.report import AcceptanceReport, PromptRow, Report, SweepRow
from eagle3_interop.validators import report_cli
from eagle3_interop.validators.report import compared
from eagle3_interop.validators.report.comparing import compare

SPEED = {
    "batch": 4, "with": 56.0, "without": 90.0, "ratio": 56 / 90, "target_step": None, "draft_step": None,
    "batches": [], "rounds": 3, "new_tokens": 128, "same_texts": 1.0,
}  # fmt: skip
NASTY = "a|b <script>alert(1)</script> *c*"


def spread(accepted, steps=10):
    """So many tokens by position, in ten steps."""
    return tuple(min(max(accepted - steps * j, 0), steps) for j in range(3))


def counted(accepted, *, tree=None, steps=10, cls=AcceptanceReport, **more):
    """The counters of prompts of ten steps each."""
    total, drafts = sum(accepted), steps * len(accepted)
    depth = 3
    length = 1 + total / drafts if drafts else 1.0
    return cls(
        accept_length=length,
        interval=(length - 0.5, length + 0.5),
        drafts=steps * len(accepted),
        accepted=total,
        per_position=tuple(map(sum, zip(*(spread(n, steps) for n in accepted), strict=True))),
        num_draft_tokens=depth,
        tree=tree,
        tokens=total + steps * len(accepted),
        **more,
    )


def made(accepted=(5, 7, 9), *, draft="a", texts="t1", target="c1", dtype="float32", **more):
    """A report of prompts of which these tokens were accepted."""
    environment = {
        "draft": {"path": draft},
        "target": {"path": "org/t", "digest": {"config": target, "headers": "h", "weights": {}}},
        "dtype": dtype,
        "prompts": {"sha256": "p", "count": len(accepted)},
        "texts": {"sha256": texts},
        "max_new_tokens": 128,
        "end_of_sequence": "ignored",
        "seed": 0,
    }
    rows = tuple(PromptRow(steps=10, accepted=n, per_position=spread(n)) for n in accepted)
    given = {"acceptance": counted(accepted), "prompts": rows, "environment": environment}
    return Report(**{"verdict": "pass", **given, **more})


def changed(report, **environment):
    return report.model_copy(update={"environment": report.environment | environment})


def put(*reports):
    return compare([(f"{number}.json", report) for number, report in enumerate(reports)])


def saved(folder, *reports):
    paths = [folder / f"{number}.json" for number in range(len(reports))]
    for path, report in zip(paths, reports, strict=True):
        path.write_text(report.model_dump_json())
    return paths


def run(*words):
    return CliRunner().invoke(report_cli.app, [str(word) for word in words])


# Differences.


def test_prompts_that_are_hard_for_both_do_not_widen_the_interval():
    """Each prompt gains two tokens in ten steps: a difference of 0.2 without spread."""
    found = put(made((1, 28, 15)), made((3, 30, 17)))
    assert found.rows[0].difference is None
    one = found.rows[1].difference
    assert one.difference == pytest.approx(0.2)
    assert one.interval == pytest.approx((0.2, 0.2))
    assert one.prompts == 3
    assert one.certain


def test_of_few_prompts_every_change_of_places_is_counted():
    """Two of the eight ways are as far apart: all as they are, and all changed."""
    assert put(made((1, 28, 15)), made((3, 30, 17))).rows[1].difference.p_value == 2 / 8


def test_the_p_value_is_that_of_every_way_to_change_places():
    first, other = [(10, 4), (8, 9), (12, 3), (9, 9)], [(9, 8), (8, 10), (11, 2), (10, 14)]

    def gap(one, two):
        rates = [sum(a for _, a in x) / sum(s for s, _ in x) for x in (one, two)]
        return abs(rates[1] - rates[0])

    seen, ways = gap(first, other), list(itertools.product((False, True), repeat=4))
    as_large = 0
    for way in ways:
        one = [b if swap else a for a, b, swap in zip(first, other, way, strict=True)]
        two = [a if swap else b for a, b, swap in zip(first, other, way, strict=True)]
        as_large += gap(one, two) >= seen - 1e-12
    assert swapped_p_value(first, other) == as_large / len(ways)


def test_of_many_prompts_places_are_drawn():
    generator = np.random.RandomState(1)
    same = [(10, int(n)) for n in generator.randint(5, 25, size=200)]
    other = [(10, int(n)) for n in generator.randint(5, 25, size=200)]
    better = [(steps, accepted + 5) for steps, accepted in other]
    assert swapped_p_value(same, other) > 0.05
    assert swapped_p_value(same, better) < 0.01
    assert swapped_p_value(same, same) == 1.0


def test_the_interval_is_students_over_prompts():
    """With equal steps the difference is a mean of differences, of which paired_interval knows."""
    first, other = [(10, 4), (10, 9), (10, 3)], [(10, 8), (10, 10), (10, 2)]
    gains = [b - a for (_, a), (_, b) in zip(first, other, strict=True)]
    difference, low, high = paired_difference(first, other)
    assert difference == pytest.approx(4 / 30)
    assert (low, high) == pytest.approx(paired_interval(gains, [10, 10, 10]))


def test_one_prompt_has_no_interval():
    one = put(made((5,)), made((9,))).rows[1].difference
    assert one.difference == pytest.approx(0.4)
    assert one.interval is None
    assert not one.certain
    assert one.p_value == 1


@pytest.mark.parametrize("seed", range(5))
def test_intervals_hold_what_they_promise(seed):
    """Of 200 pairs of drafts that are equally good, about 1 in 20 intervals may leave 0 out."""
    generator = np.random.RandomState(seed)
    missed = 0
    for _ in range(200):
        hard = generator.uniform(0.5, 2.5, size=20)
        first, other = (
            [(int(s), int(n)) for s, n in zip(steps, generator.poisson(hard * steps), strict=True)]
            for steps in generator.randint(10, 40, size=(2, 20))
        )
        _, low, high = paired_difference(first, other)
        missed += not low <= 0 <= high
    assert missed <= 24


def test_a_prompt_that_one_of_them_did_not_count_is_no_pair():
    first, other = made((5, 7, 9)), made((6, 8, 10))
    rows = (PromptRow(steps=0, accepted=0, per_position=(0, 0, 0)), *other.prompts[1:])
    fewer = {"prompts": rows, "acceptance": counted((8, 10))}
    assert put(first, other.model_copy(update=fewer)).rows[1].difference.prompts == 2


# What keeps two from being compared.


def told(first, other):
    return [(one.what, one.certain) for one in put(first, other).obstacles.get(1, ())]


def test_the_same_texts_target_and_dtype_are_compared():
    assert told(made(), made(draft="b")) == []


@pytest.mark.parametrize(
    ("change", "what", "words"),
    [
        ({"texts": "t2"}, "texts", "other texts"),
        ({"target": "c2"}, "target", "another target: config.json differs"),
        ({"dtype": "bfloat16"}, "dtype", "another dtype: bfloat16, and float32 in the first"),
    ],
)
def test_what_was_measured_on_something_else_is_not_compared(change, what, words):
    found = put(made(), made(**change))
    assert [(one.what, one.certain) for one in found.obstacles[1]] == [(what, True)]
    assert found.obstacles[1][0].message == words
    assert found.rows[1].difference is None
    assert any(f"[1] cannot be compared with [0]: {words}." in x for x in compared.remarks(found))


def test_weights_of_the_hub_tell_two_targets_of_one_shape_apart():
    target = made().environment["target"]
    sides = [
        changed(made(), target={**target, "digest": {**target["digest"], "weights": weights}})
        for weights in ({"m": "1"}, {"m": "2"}, {})
    ]
    assert told(sides[0], sides[1]) == [("target", True)]
    assert told(sides[0], sides[2]) == [], "a folder's weights are not hashed"


def test_another_number_of_draft_tokens_is_a_setting():
    other = made((6, 8, 10))
    wider = {"num_draft_tokens": 5, "per_position": (24, 0, 0, 0, 0)}
    deeper = other.acceptance.model_copy(update=wider)
    rows = [x.model_copy(update={"per_position": (*x.per_position, 0, 0)}) for x in other.prompts]
    changed_so = {"acceptance": deeper, "prompts": tuple(rows)}
    found = put(made(), other.model_copy(update=changed_so))
    assert found.obstacles == {}
    assert found.rows[1].difference is not None


def test_of_reports_without_digests_it_cannot_be_told():
    old = changed(made((6, 8, 10)), target={"path": "org/t"}, texts={})
    found = put(made(), old)
    assert [(one.what, one.certain) for one in found.obstacles[1]] == [
        ("texts", False),
        ("target", False),
    ]
    assert found.rows[1].difference is not None
    assert "cannot be told" in " ".join(compared.remarks(found))


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"prompts": {"sha256": "q"}}, "the prompts"),
        ({"max_new_tokens": 64}, "--max-new-tokens"),
        ({"end_of_sequence": "stops"}, "--stop-at-eos"),
    ],
)
def test_reports_without_a_digest_of_texts_may_still_be_surely_of_others(change, word):
    old = changed(made(), texts={})
    (one,) = put(old, changed(old, **change)).obstacles[1]
    assert (one.what, one.certain) == ("texts", True)
    assert word in one.message


def test_recorded_prompts_are_told_as_token_ids_which_proves_nothing():
    old = changed(made(), texts={})
    recorded = changed(old, streams="folder", prompts={"sha256": "q"})
    assert told(old, recorded) == [("texts", False)]


def test_a_report_without_rows_has_no_difference():
    found = put(made(), made().model_copy(update={"prompts": None}))
    assert found.rows[1].difference is None
    assert "no rows of its prompts" in " ".join(compared.remarks(found))


# The table.


def test_a_sweep_is_rows_of_its_own():
    swept = [
        counted((5, 7, 9), cls=SweepRow),
        counted((9, 9, 9), cls=SweepRow, tree=(3, 2, 6)),
    ]
    found = put(made(sweep=tuple(swept)))
    assert [(row.tree, row.swept) for row in found.rows] == [(None, False), ((3, 2, 6), True)]


def test_long_sweeps_are_left_to_the_page():
    swept = tuple(counted((5, 7, 9), cls=SweepRow, tree=(3, 2, n)) for n in range(4, 34))
    found = put(made(sweep=swept))
    assert "30 more settings of its sweep" in compared.markdown(found)
    assert compared.markdown(found).count("tree of 3") == 0
    assert compared.page(found).count("tree of 3") == 30


def test_a_refused_draft_is_a_row():
    found = put(made(), Report(verdict="fail"))
    assert found.rows[1].verdict == "refused"
    assert found.rows[1].accept_length is None
    assert found.obstacles == {}
    assert "refused" in compared.markdown(found)


def test_why_nothing_was_measured_stands_where_the_difference_would():
    wrong = finding("not-a-draft", "model", "It is no draft.")
    found = put(Report(verdict="fail", findings=(wrong,)), made())
    assert found.rows[0].refused == ("not-a-draft",)
    told = compared.remarks(found)
    assert "[0] 0.json: nothing was measured (not-a-draft)" in told
    assert "[1] has no difference from [0]: nothing was measured there." in told


def test_what_a_report_does_not_name_is_said_not_to_be_named():
    bare = {
        key: value for key, value in made().environment.items() if key not in ("target", "dtype")
    }
    found = put(made(), made().model_copy(update={"environment": bare}))
    text = " ".join(compared.remarks(found))
    assert "[1] 1.json: the target is not named, the dtype is not named" in text
    assert "it cannot be told whether the dtype is the same" in text


def test_categories_stand_side_by_side():
    def kind(name, length):
        return CategoryRow(
            category=name, prompts=1, accept_length=length, interval=(1, 2), steps=1, accepted=1,
            tokens=1,
        )  # fmt: skip

    vocabulary = VocabularyRow(
        draft_size=1, target_size=1, tokens=1, inexpressible=0, accept_length_bound=2
    )
    parts = Breakdown(
        categories=(kind("code", 2.5), kind(NASTY, 1.25)), contexts=(), vocabulary=vocabulary,
        missed=(), texts=(),
    )  # fmt: skip
    found = put(made(breakdown=parts), made())
    assert "| code | 2.500 |  |" in compared.markdown(found)
    assert "<script" not in compared.page(found)


def test_speed_is_shown_where_it_was_measured():
    swept = counted((9, 9, 9), cls=SweepRow, tree=(3, 2, 6), tokens_per_second=75.5)
    found = put(made(speed=SPEED, sweep=(swept,)))
    assert "56.0 at batch 4, 90.0 without (x0.62)" in compared.markdown(found)
    assert "75.5 expected" in compared.markdown(found)
    line, other = csv.DictReader(io.StringIO(compared.as_csv(found)))
    assert (line["batch"], line["tokens_per_second"], line["without_draft"]) == (
        "4",
        "56.0",
        "90.0",
    )
    assert other["expected_tokens_per_second"] == "75.5"
    assert "tokens/s" not in compared.markdown(put(made()))


def test_a_long_sweep_shows_what_is_expected_to_be_fastest():
    swept = tuple(
        counted((5, 7, 9), cls=SweepRow, tree=(3, 2, n), tokens_per_second=100.0 + n)
        for n in range(4, 34)
    )
    said = compared.markdown(put(made(sweep=swept)))
    assert said.count("tree of 3") == 8
    assert "133.0 expected" in said
    assert "22 more settings of its sweep" in said


def test_speeds_of_two_machines_are_told_apart_and_accept_lengths_still_compared():
    engine = {"engine": "vllm", "version": "0.32.0", "how": "started"}
    here, there = (
        changed(made(speed=SPEED, engine=engine), platform="Linux", device=device)
        for device in ("cuda:0 (A)", "cuda:0 (B)")
    )
    assert told(here, here) == []
    found = put(here, there)
    assert told(here, there) == [("speed", False)]
    assert found.rows[1].difference is not None
    assert "cuda:0 (B), that of the first by" in found.obstacles[1][0].message


def test_names_cannot_become_markdown_or_html():
    found = put(made(draft=NASTY))
    assert r"a\|b \<script\>alert(1)\</script\> \*c\*" in compared.markdown(found)
    assert "<script" not in compared.page(found)


# The command.


def test_all_its_forms(tmp_path, whole):
    paths = saved(tmp_path, made(), made((8, 9, 9), draft="b"))
    names = {name: tmp_path / f"out.{name}" for name in ("csv", "markdown", "html", "json")}
    options = [word for name, path in names.items() for word in (f"--{name}", path)]
    result = run(*paths, *options)
    assert result.exit_code == 0, result.output
    assert "against [0]" in result.stdout
    found = Comparison.model_validate_json(names["json"].read_text())
    assert found == compare(
        [(str(path), Report.model_validate_json(path.read_text())) for path in paths]
    )
    rows = list(csv.DictReader(io.StringIO(names["csv"].read_text())))
    assert [row["draft"] for row in rows] == ["a", "b"]
    assert float(rows[1]["difference"]) == found.rows[1].difference.difference
    assert names["markdown"].read_text().startswith("|  | draft |")
    assert names["html"].read_text().startswith("<!doctype html>")
    whole(names["html"].read_text())


def test_json_is_one_object_on_stdout(tmp_path):
    result = run(*saved(tmp_path, made(), made(texts="t2")), "--json", "-")
    assert result.exit_code == 0
    assert Comparison.model_validate(json.loads(result.stdout)).obstacles[1][0].what == "texts"


@pytest.mark.parametrize(
    "content",
    ["{", "[]", '{"status": "failed", "message": "m", "exit_code": 2}', '{"verdict": "maybe"}', ""],
)
def test_a_file_that_is_no_report_is_refused(tmp_path, content):
    (path,) = saved(tmp_path, made())
    wrong = tmp_path / "wrong.json"
    wrong.write_text(content)
    result = run(path, wrong, "--json", "-")
    assert result.exit_code == 3
    told = json.loads(result.stdout)
    assert told["status"] == "refused"
    (one,) = told["findings"]
    assert one["code"] == "not-a-report"
    assert one["where"] == str(wrong)


@pytest.mark.parametrize("wrong", [7, "x", [], [1], {"sha256": 7}, {"digest": 7}, {"path": []}])
@pytest.mark.parametrize("key", sorted(made().environment))
def test_no_environment_ends_in_a_traceback(tmp_path, key, wrong):
    report = changed(made(), **{key: wrong})
    for pair in ((made(), report), (report, made())):
        result = run(*saved(tmp_path, *pair), "--json", "-")
        assert result.exit_code in (0, 3), result.output
        assert isinstance(result.exception, SystemExit | None)


@pytest.mark.parametrize(
    ("part", "change", "words"),
    [
        ("acceptance", {"accept_length": 9.9}, "its counters give 1.7"),
        ("acceptance", {"accepted": 9999}, "per_position adds up to 21"),
        ("acceptance", {"num_draft_tokens": 0}, "3 positions for 0 draft tokens"),
        ("acceptance", {"drafts": 0}, "per_position must fall from at most 0 steps"),
        ("rows", {"steps": -3}, "per_position must fall from at most -3 steps"),
        ("rows", {"accepted": 4, "per_position": (4, 0, 0)}, "the rows add up to 30 steps and 20"),
        ("fewer", {}, "the rows add up to 20 steps and 16"),
    ],
)
def test_a_report_that_contradicts_itself_is_none(tmp_path, part, change, words):
    report = made()
    first, *others = report.prompts
    odd = {
        "acceptance": lambda: {"acceptance": report.acceptance.model_copy(update=change)},
        "rows": lambda: {"prompts": (first.model_copy(update=change), *others)},
        "fewer": lambda: {"prompts": tuple(others)},
    }[part]()
    result = run(*saved(tmp_path, made(), report.model_copy(update=odd)), "--json", "-")
    assert result.exit_code == 3
    (one,) = json.loads(result.stdout)["findings"]
    assert one["code"] == "not-a-report"
    assert (
        f"contradicts itself: {part.replace('fewer', 'prompts').replace('rows', 'prompts')}"
        in one["message"]
    )
    assert words in one["message"]


def test_wrong_usage(tmp_path):
    (path,) = saved(tmp_path, made())
    assert run(tmp_path / "none.json").exit_code == 2
    assert run(tmp_path).exit_code == 2
    assert run(path, "--csv", path).exit_code == 2, "it would be written on a report"
    assert run(path, "--csv", tmp_path / "none" / "o.csv").exit_code == 2
    assert run("--json", "-").exit_code == 2
    assert run(path, "--csv", "-").exit_code == 2


def test_nothing_heavy_is_imported(tmp_path):
    (path,) = saved(tmp_path, made())
    script = (
        "import sys\n"
        "from typer.testing import CliRunner\n"
        "from eagle3_interop.validators.report_cli import app\n"
        "assert CliRunner().invoke(app, ['--help']).exit_code == 0\n"
        "assert 'numpy' not in sys.modules\n"
        f"assert CliRunner().invoke(app, [{str(path)!r}, '--html', {str(tmp_path / 'o')!r}]).exit_code == 0\n"
        "print(*({'torch', 'transformers', 'matplotlib'} & set(sys.modules)))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == ""
