"""A report is believed only where it agrees with itself: whatever another figure settles cannot be edited."""

import copy
import json

import pytest

from eagle3_interop.recipes.publish.consistency import contradictions
from eagle3_interop.schemas.report import Report

LENGTH = 1 + 1432 / 883


@pytest.fixture
def told(checkpoint, report):
    """A report with every gate but an engine's."""
    content = json.loads(report(checkpoint).read_text())
    content["against"]["logits"] |= {"max_abs_diff": 1e-6}
    content["gates"][2] |= {"got": 1e-6}
    threshold = {"name": "min-accept-length", "wanted": 2.5, "got": LENGTH, "passed": True}
    content["gates"].append(threshold)
    return content


def said(content):
    return list(contradictions(Report.model_validate(content)))


def numbers(value, path=()):
    """Where a number stands."""
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from numbers(inner, (*path, key))
    elif isinstance(value, list):
        for index, inner in enumerate(value):
            yield from numbers(inner, (*path, index))
    elif isinstance(value, int | float) and not isinstance(value, bool):
        yield path


def changed(content, path, change):
    edited = copy.deepcopy(content)
    place = edited
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = change(place[path[-1]])
    return edited


def test_a_report_that_was_left_alone_holds_no_contradiction(told):
    assert said(told) == []


@pytest.mark.parametrize("part", ["acceptance", "prompts", "gates"])
@pytest.mark.parametrize("by", [1, -1])
def test_no_figure_can_be_edited_alone(told, part, by):
    places = [(part, *path) for path in numbers(told[part])]
    assert len(places) > 8
    # A threshold is the user's own, as long as what was got reaches it; tokens leave the room of a last step.
    free = {("gates", 3, "wanted"), ("acceptance", "tokens")}
    for path in places:
        if path not in free:
            assert said(changed(told, path, lambda value: value + by)), path


def test_nor_can_the_other_side_of_a_comparison(told):
    for path in numbers(told["against"]["acceptance"]):
        if path not in (("tokens",), ("interval", 0), ("interval", 1)):
            where = ("against", "acceptance", *path)
            assert said(changed(told, where, lambda value: value + 1)), path


@pytest.mark.parametrize("tokens", [2355 + 1, 2355 - 40 * 4 - 1, -1])
def test_the_steps_explain_the_tokens(told, tokens):
    """883 steps, 1432 accepted and 40 first tokens are 2355; a last step may go 4 beyond the end."""
    assert any(
        "tokens" in reason
        for reason in said(changed(told, ("acceptance", "tokens"), lambda _: tokens))
    )
    for fits in (2355, 2355 - 40 * 4):
        assert said(changed(told, ("acceptance", "tokens"), lambda _, fits=fits: fits)) == []


def test_a_verdict_is_that_of_the_gates(told):
    assert any("verdict" in reason for reason in said(told | {"verdict": "fail"}))
    for index, gate in enumerate(told["gates"]):
        edited = changed(told, ("gates", index, "passed"), lambda value: not value)
        assert any("its gates say otherwise" in reason for reason in said(edited)), gate["name"]


@pytest.mark.parametrize(
    ("index", "wanted", "got"),
    [
        (1, 0, 3),
        (2, 5e-5 * 12.5, 0.5),
        (2, 1e9, 1e-6),
        (2, None, None),
        (3, 2.9, LENGTH),
        (3, "2", LENGTH),
    ],
)
def test_a_gate_that_its_own_figures_close_is_not_believed_open(told, index, wanted, got):
    edited = copy.deepcopy(told)
    edited["gates"][index] |= {"wanted": wanted, "got": got}
    assert any(edited["gates"][index]["name"] in reason for reason in said(edited))


def test_a_gate_that_is_not_ours_is_not_believed(told):
    gates = [*told["gates"], {"name": "looks-good", "wanted": 1, "got": 1, "passed": True}]
    assert said(told | {"gates": gates}) == ["looks-good is no gate of eagle3-validate"]


def test_a_gate_stands_once(told):
    assert any("twice" in reason for reason in said(told | {"gates": told["gates"] * 2}))


@pytest.mark.parametrize("index", [0, 1, 2])
def test_no_gate_of_a_comparison_can_be_left_out(told, index):
    gates = [gate for place, gate in enumerate(told["gates"]) if place != index]
    (only,) = said(told | {"gates": gates})
    assert only.endswith(f"the gate {told['gates'][index]['name']} is left out")


def test_a_limit_of_the_users_own_stands_for_the_rounding_of_logits(told):
    told["gates"][2] |= {"name": "max-logit-diff", "wanted": 0.5}
    assert said(told) == []


def test_a_comparison_needs_what_was_compared(told):
    reasons = " ".join(said(told | {"against": None}))
    for name in ("draft-vocabulary", "logits-agree", "counters-equal"):
        assert name in reasons


def test_the_rows_of_the_prompts_are_as_many_as_the_prompts(told):
    assert any(
        "39 rows for 40" in reason for reason in said(told | {"prompts": told["prompts"][1:]})
    )
    assert any("no row a prompt" in reason for reason in said(told | {"prompts": None}))


def test_the_interval_is_that_of_the_seed(told):
    assert said(changed(told, ("environment", "seed"), lambda seed: seed + 1)) != []


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"code": "no-such-code"}, "no finding of this version"),
        ({"code": "wrong-target"}, "is called a note, and is of severity error"),
        ({"code": "embeddings-unverified"}, "is called a note, and is of severity warning"),
    ],
)
def test_a_finding_has_the_severity_of_its_code(told, change, reason):
    remark = {"code": "cast", "severity": "note", "where": "w", "message": "m"}
    assert said(told | {"findings": [remark]}) == []
    (only,) = said(told | {"findings": [remark | change]})
    assert reason in only


ENGINE = {"drafts": "880 to 890", "accepted": 1432, "per_position": [560, 408, 289, "170 to 180"]}
COUNTED = {"drafts": 883, "accepted": 1432, "per_position": [560, 408, 289, 175]}


def with_engine(told, wanted=ENGINE, got=COUNTED, held=COUNTED):
    gate = {"name": "engine-counters", "wanted": wanted, "got": got, "passed": True}
    return told | {
        "gates": [*told["gates"], gate],
        "engine": {"got": held | {"accept_length": LENGTH}},
    }


def test_an_engine_counted_what_was_wanted(told):
    assert said(with_engine(told)) == []


@pytest.mark.parametrize(
    "got",
    [
        COUNTED | {"drafts": 891},
        COUNTED | {"accepted": 1431},
        COUNTED | {"per_position": [560, 408, 289, 181]},
        COUNTED | {"per_position": [560, 408, 289]},
        COUNTED | {"per_position": 3},
        COUNTED | {"drafts": 0},
        None,
    ],
)
def test_an_engine_that_counted_otherwise_did_not_pass(told, got):
    assert said(with_engine(told, got=got, held=got or {}))


def test_what_an_engine_counted_is_in_the_report(told):
    assert said(with_engine(told, held=COUNTED | {"drafts": 884}))
    assert said(with_engine(told) | {"engine": None})


# What is no report of this tool at all.


@pytest.mark.parametrize("shape", [None, 0, -1, True, "x", 1e300, [], [1], {}, {"a": 1}, [[]]])
def test_no_shape_of_a_report_ends_in_a_traceback(told, checkpoint, report, push, shape):
    def places(value, path=()):
        yield path
        if isinstance(value, dict) and path != ("checkpoint", "files"):
            for key, inner in value.items():
                yield from places(inner, (*path, key))
        elif isinstance(value, list) and value:
            yield from places(value[0], (*path, 0))

    file = report(checkpoint)
    for path in places(told):
        file.write_text(json.dumps(changed(told, path, lambda _: shape) if path else shape))
        assert push(checkpoint, file, "--dry-run").exit_code in (0, 1, 2), path


@pytest.mark.parametrize("shape", [None, 0, True, "x", [], [1], {}, {"a": 1}, [{"code": 1}]])
def test_no_shape_of_a_provenance_ends_in_a_traceback(checkpoint, report, push, shape):
    file = checkpoint / "eagle3_interop.json"
    content = json.loads(file.read_text())
    content["draft"]["target"]["name"] = "org/target"
    paths = [(key,) for key in content]
    paths += [
        (key, inner) for key in content if isinstance(content[key], dict) for inner in content[key]
    ]
    paths += [("tensors", 0), ("tensors", 0, "op"), ("findings", 0)]
    for path in paths:
        file.write_text(json.dumps(changed(content, path, lambda _: shape)))
        result = push(checkpoint, report(checkpoint), "--dry-run")
        assert result.exit_code in (0, 3), (path, result.output)


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ('"drafts": 883', '"drafts": 1, "drafts": 883', "twice"),
        ('"drafts": 883', '"drafts": NaN', "NaN"),
        ('"drafts": 883', '"drafts": 1e999', "1e999"),
        ('"severity": "note"', '"severity": "fine"', "severity"),
    ],
)
def test_json_that_two_readers_could_understand_differently(
    told, checkpoint, report, push, old, new, words
):
    told["findings"] = [
        {"code": "cast", "severity": "note", "where": "w", "message": "m", "fix": ""}
    ]
    file = report(checkpoint)
    text = json.dumps(told)
    assert old in text
    file.write_text(text.replace(old, new, 1))
    result = push(checkpoint, file, "--dry-run")
    assert result.exit_code == 2
    assert words in result.stderr


SPEED = {
    "batch": 1, "with": 56.8, "without": 90.0, "ratio": 56.8 / 90.0, "target_step": [[1, 0.01]], "draft_step": 0.001,
    "rounds": 3, "new_tokens": 64, "same_texts": 1.0, "batches": [
        {"batch": 1, "with": 56.8, "without": 90.0, "ratio": 56.8 / 90.0, "spread": [56.0, 57.0], "spread_without": [89.0, 91.0]},
    ],
}  # fmt: skip


def test_a_speed_up_is_that_of_its_figures(told):
    """A speed is an engine's."""
    told |= {"speed": copy.deepcopy(SPEED), "engine": {"engine": "vllm"}}
    told["speed"]["batches"][0]["ratio"] = 2.0
    assert "speed: at batch size 1 the ratio is not that of its figures" in said(told)
    told |= {"speed": SPEED, "engine": None}
    assert said(told) == ["the report holds a speed, and no engine"]
