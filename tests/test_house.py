"""The rules of the house: where knowledge of an engine may stand, and what a newcomer needs to add."""

import ast
import re
from dataclasses import replace
from pathlib import Path

import drafts
import pytest
from conversions import convert, loaded
from typer.testing import CliRunner

from eagle3_interop.convert import api
from eagle3_interop.convert.cli import app
from eagle3_interop.convert.decide import inspection
from eagle3_interop.schemas import registry
from eagle3_interop.schemas.dialects.recognition import OWN_KEYS, Sign
from eagle3_interop.schemas.engines import releases
from eagle3_interop.schemas.findings import Refused
from eagle3_interop.schemas.trainers import table
from eagle3_interop.schemas.trainers.base import Deviation, Signature, Trainer

ROOT = Path(__file__).parents[1]
OF_ENGINES = ("schemas/engines", "validators/engines", "convert/sglang_plugin")
"""Where an engine's rules and versions stand, its runners, and the plugin's own check of its version."""
SCRIPTS = ("recipes/train_tiny_pair.py",)
ENGINES = {"vLLM", "SGLang", *releases.RELEASES}
VERSION = re.compile(r"(?i)(vllm|sglang|speculators)\D{0,4}\d+\.\d+|^\d+\.\d+\.\d+$")


def sources():
    for floor in ("schemas", "convert", "validators", "recipes"):
        for path in sorted((ROOT / floor).rglob("*.py")):
            name = path.relative_to(ROOT).as_posix()
            if not name.startswith(OF_ENGINES) and name not in SCRIPTS:
                yield pytest.param(ast.parse(path.read_text()), id=name)


SOURCES = list(sources())


def prose(tree):
    """Strings that stand for themselves: docstrings, which may name the source of a fact."""
    return {id(x.value) for x in ast.walk(tree) if isinstance(x, ast.Expr)}


def strings(tree):
    return [x for x in ast.walk(tree) if isinstance(x, ast.Constant) and isinstance(x.value, str)]


@pytest.mark.parametrize("tree", SOURCES)
def test_no_version_of_an_engine_stands_outside_its_rules(tree):
    told = prose(tree)
    assert [x.value for x in strings(tree) if id(x) not in told and VERSION.search(x.value)] == []


@pytest.mark.parametrize("tree", SOURCES)
def test_no_code_branches_on_an_engines_name_outside_its_rules(tree):
    compared = [x for x in ast.walk(tree) if isinstance(x, ast.Compare)]
    named = [ast.unparse(x) for x in compared if ENGINES & {y.value for y in strings(x)}]
    assert named == []


# One file and one row each.


@pytest.fixture
def _dialect(monkeypatch):
    """A dialect that says who wrote it by a key of its own, and is served by SGLang."""

    def recognise(config):
        return Sign(OWN_KEYS + 1, "its own key") if config.get("written_by") == "newcomer" else None

    row = registry.Dialect("newcomer", recognise, "sglang", "the newcomer's")
    monkeypatch.setitem(registry.DIALECTS, "newcomer", row)


@pytest.mark.usefixtures("_dialect")
def test_a_new_dialect_reaches_inspect_and_conversions(tmp_path):
    source = drafts.sglang(tmp_path / "draft", written_by="newcomer")
    assert loaded(source).layout == "newcomer"
    ran = CliRunner().invoke(app, ["inspect", str(source)])
    assert f"{source}: newcomer layout" in ran.stdout
    result = convert(source, "vllm")
    assert "its own key" in result.said("recognised").message


@pytest.mark.usefixtures("_dialect")
def test_a_new_dialect_reaches_cards():
    from eagle3_interop.recipes.publish.section import _owner

    assert _owner("newcomer") == "the newcomer's"
    assert registry.serving("newcomer") == ("sglang",)


@pytest.fixture
def _release(monkeypatch):
    """A release of vLLM that feeds an absent residual flag otherwise, and refuses flat folders' class."""
    old = releases.newest("vllm")
    new = replace(
        old, since="99.0", until="99.0", refuses=lambda _config: "this release loads nothing."
    )
    monkeypatch.setitem(releases.RELEASES, "vllm", (*releases.RELEASES["vllm"], new))


@pytest.mark.usefixtures("_release")
def test_a_new_release_reaches_inspect_and_serve(tmp_path):
    source = drafts.vllm(tmp_path / "draft")
    facts = inspection.engines(loaded(source))["vllm"]
    assert facts["as_is"] == "does-not-load"
    with pytest.raises(Refused, match="this release loads nothing"):
        inspection.require_same(loaded(source), "vllm")


def test_a_conversion_is_proved_with_the_newest_release(monkeypatch, tmp_path):
    old = releases.newest("vllm")
    rules = old.forms[-1].rules
    deaf = replace(rules, ids=lambda _keys, _target: (None, "nowhere", list))
    forms = (*old.forms[:-1], replace(old.forms[-1], rules=deaf))
    new = replace(old, since="99.0", until="99.0", forms=forms)
    monkeypatch.setitem(releases.RELEASES, "vllm", (old, new))
    source = drafts.sglang(tmp_path / "draft")
    with pytest.raises(Refused) as caught:
        convert(source, "vllm")
    assert [(x.code, x.where) for x in caught.value.findings if x.code == "not-read-back"] == [
        ("not-read-back", "taps")
    ]


@pytest.fixture
def _trainer(monkeypatch):
    """A trainer that never read the config's rope base, known by a key of its own."""

    def signs(source):
        certainty = source.config.get("_newcomer")
        return Signature(certainty, "_newcomer") if certainty else None

    base = Deviation("rope-base", "rope.theta", lambda _source, _draft: 10000.0)
    row = Trainer("newcomer", "the newcomer", signs, (base,), drops=("_newcomer",))
    monkeypatch.setitem(table.TRAINERS, "newcomer", row)


def trained_elsewhere(folder, certainty="certain", theta=5e5):
    return drafts.vllm(folder, _newcomer=certainty, rope_theta=theta, rope_parameters=drafts.ABSENT)


@pytest.mark.usefixtures("_trainer")
def test_auto_reads_a_certain_trainers_draft_as_trained_and_says_so(tmp_path):
    result = convert(trained_elsewhere(tmp_path / "draft"), "vllm")
    assert result.config["rope_theta"] == 10000.0
    assert "_newcomer" not in result.config
    assert "served: 500000.0" in result.said("read-as-trained").message
    assert result.conversion.report("")["trainer"] == {
        "name": "newcomer",
        "certainty": "certain",
        "sign": "_newcomer",
        "applied": True,
        "deviations": [
            {
                "code": "rope-base",
                "path": "rope.theta",
                "trained": 10000.0,
                "served": 500000.0,
                "written": 10000.0,
            }
        ],
    }


@pytest.mark.usefixtures("_trainer")
def test_inspect_says_what_engines_make_of_it_instead(tmp_path):
    ran = CliRunner().invoke(app, ["inspect", str(trained_elsewhere(tmp_path / "draft"))])
    assert "rope.theta: vLLM computes 500000.0, not 10000.0" in ran.stdout


@pytest.mark.usefixtures("_trainer")
def test_a_named_layout_is_refused_until_the_user_says_which(tmp_path):
    source = trained_elsewhere(tmp_path / "draft")
    with pytest.raises(Refused, match=r"trains with rope\.theta 10000"):
        loaded_as(source)
    assert loaded_as(source, trainer="newcomer").reading.draft.rope.theta == 10000.0
    assert loaded_as(source, trainer="none").reading.draft.rope.theta == 5e5


def loaded_as(source, **options):
    return api.load(str(source), "vllm", api.Options(**options))


@pytest.mark.usefixtures("_trainer")
def test_a_likely_sign_asks_where_it_would_change_the_network(tmp_path):
    with pytest.raises(Refused, match="likely sign"):
        loaded(trained_elsewhere(tmp_path / "draft", "likely"))
    assert loaded(trained_elsewhere(tmp_path / "same", "likely", 10000.0)).trainer.deviations == ()


@pytest.mark.usefixtures("_trainer")
def test_what_was_written_as_trained_reads_back_as_that_again(tmp_path):
    once = convert(trained_elsewhere(tmp_path / "draft"), "vllm")
    (once.folder / "eagle3_interop.json").unlink()
    again = loaded(once.folder)
    assert again.trainer is None
    assert again.reading.draft.network == once.draft.network


@pytest.mark.usefixtures("_trainer")
def test_the_users_word_of_a_trainer_counts_for_an_output_of_this_tool_too(tmp_path):
    served = convert(trained_elsewhere(tmp_path / "draft"), "vllm", trainer="none").folder
    assert loaded_as(served).reading.draft.rope.theta == 5e5
    assert loaded_as(served, trainer="newcomer").reading.draft.rope.theta == 10000.0


def test_an_unknown_trainer_is_wrong_usage(tmp_path):
    ran = CliRunner().invoke(
        app, ["inspect", str(drafts.vllm(tmp_path / "draft")), "--trainer", "x"]
    )
    assert ran.exit_code == 2
