"""Tokenizers of a draft's folder and of its target, compared by what gives texts their ids."""

import json
import shutil
from pathlib import Path

import pytest
import tokenizers
from typer.testing import CliRunner

from eagle3_interop.convert import cli
from eagle3_interop.convert.read.folders import LocalFolder
from eagle3_interop.convert.read.tokenizers import FILE, compared
from eagle3_interop.validators import validate_cli

DATA = Path(__file__).resolve().parents[1] / "data"
OWN = json.loads((DATA / "target" / FILE).read_text())


@pytest.fixture
def said(tmp_path):
    """What is said of a draft whose folder holds this tokenizer.json."""

    def say(ours, theirs=OWN, write=json.dumps):
        for name, told in (("draft", ours), ("target", theirs)):
            (tmp_path / name).mkdir(exist_ok=True)
            (tmp_path / name / FILE).write_text(told if isinstance(told, str) else write(told))
        folders = (LocalFolder(tmp_path / name, name) for name in ("draft", "target"))
        return [(one.code, one.message) for one in compared(*folders, fetch=True)]

    return say


def edited(edit, told=OWN):
    told = json.loads(json.dumps(told))
    edit(told)
    return told


def added(told, content, number):
    token = {"id": number, "content": content, "special": True, "normalized": False}
    told["added_tokens"].append(token)


# No alarm.


def test_the_same_tokenizer_is_no_finding(said):
    assert said(OWN) == []


def test_formatting_and_the_order_of_keys_say_nothing(said):
    reordered = edited(
        lambda x: x["model"].update(vocab=dict(reversed(list(x["model"]["vocab"].items()))))
    )
    text = json.dumps(dict(reversed(list(reordered.items()))), indent=4)
    assert said(text) == []


def test_padding_and_truncation_say_nothing(said):
    more = {
        "padding": {"strategy": "BatchLongest", "pad_id": 0, "pad_token": "<|endoftext|>"},
        "truncation": {"max_length": 512, "strategy": "LongestFirst", "stride": 0},
    }
    assert said(OWN | more) == []


def test_merges_as_older_versions_write_them_are_the_same(said):
    def older(told):
        told["model"]["merges"] = [" ".join(one) for one in told["model"]["merges"]]

    assert said(edited(older)) == []


def test_an_added_token_that_stands_in_the_vocabulary_too_is_the_same(said):
    def listed(told):
        told["model"]["vocab"].pop("<|user|>")

    assert said(edited(listed)) == []


def test_a_folder_without_a_tokenizer_is_compared_with_nothing():
    folders = LocalFolder(DATA / "drafts" / "plain", "d"), LocalFolder(DATA / "target", "t")
    assert list(compared(*folders, fetch=True)) == []


def test_what_the_library_itself_writes_anew_is_the_same(said):
    made = tokenizers.Tokenizer.from_str(json.dumps(OWN))
    made.enable_padding(pad_id=0, pad_token="<|endoftext|>")  # noqa: S106
    made.enable_truncation(64)
    assert said(made.to_str(pretty=True)) == []


@pytest.mark.parametrize(
    "model",
    [
        tokenizers.models.Unigram([("<unk>", 0.0), ("a", -1.0), ("ab", -2.5)], unk_id=0),
        tokenizers.models.WordPiece({"[UNK]": 0, "a": 1, "##b": 2}, unk_token="[UNK]"),  # noqa: S106
        tokenizers.models.WordLevel({"[UNK]": 0, "a": 1}, unk_token="[UNK]"),  # noqa: S106
    ],
    ids=["Unigram", "WordPiece", "WordLevel"],
)
def test_every_kind_of_the_library_is_read(said, model):
    made = tokenizers.Tokenizer(model)
    ours = made.to_str(pretty=True)
    made.add_special_tokens(["<pad>"])
    assert said(ours, made.to_str()) == [
        ("tokenizer-added", "1 added tokens are in the target's alone: '<pad>'.")
    ]
    assert said(made.to_str(pretty=True), made.to_str()) == []


# What gives other ids.


def test_another_id_of_a_token(said):
    def swapped(told):
        vocab = told["model"]["vocab"]
        vocab["a"], vocab["b"] = vocab["b"], vocab["a"]

    ((code, message),) = said(edited(swapped))
    assert code == "other-tokenizer"
    texts = [tokenizers.Tokenizer.from_str(json.dumps(x)) for x in (OWN, edited(swapped))]
    one, other = (text.encode("a cab").ids for text in texts)
    assert one != other, "as the library says, too"
    vocab = OWN["model"]["vocab"]
    assert f"2 tokens have other ids: 'a' is {vocab['b']} in the draft's folder" in message


def test_another_id_of_an_added_token(said):
    def moved(told):
        told["model"]["vocab"].pop("<|user|>")
        told["added_tokens"][1]["id"] = 1024

    ((code, message),) = said(edited(moved))
    assert code == "other-tokenizer"
    assert "'<|user|>' is 1024 in the draft's folder, and 1 in the target's" in message


def test_a_token_of_the_vocabulary_that_one_of_them_lacks(said):
    ((code, message),) = said(edited(lambda x: x["model"]["vocab"].update(zebra=1024)))
    assert code == "other-tokenizer"
    assert "'zebra'" in message
    ((code, _),) = said(edited(lambda x: x["model"]["vocab"].pop("a")))
    assert code == "other-tokenizer"


def test_merges_in_another_order(said):
    ((code, message),) = said(
        edited(lambda x: x["model"]["merges"].insert(0, x["model"]["merges"].pop(5)))
    )
    assert code == "other-tokenizer"
    assert "merges differ from number 0 on" in message
    ((_, message),) = said(edited(lambda x: x["model"]["merges"].pop()))
    assert (
        "merges differ from number 762 on (762 in the draft's folder, 763 in the target's)"
        in message
    )


def test_another_kind_of_model(said):
    ((code, message),) = said(edited(lambda x: x["model"].update(type="WordLevel")))
    assert (code, message) == ("other-tokenizer", "the draft's is WordLevel, the target's BPE.")


def test_scores_of_a_unigram_model(said):
    def unigram(*pairs):
        return {"model": {"type": "Unigram", "vocab": list(pairs)}, "added_tokens": []}

    theirs = unigram(["a", -1.0], ["b", -2.0])
    assert said(json.dumps(theirs, indent=1), theirs) == []
    ((_, message),) = said(unigram(["a", -1.0], ["b", -1.5]), theirs)
    assert "scores differ from number 1 on" in message
    ((_, message),) = said(unigram(["b", -1.0], ["a", -2.0]), theirs)
    assert "2 tokens have other ids" in message


# What is told beside.


def test_an_added_token_on_top_is_a_note(said):
    ((code, message),) = said(edited(lambda x: added(x, "<pad>", 1024)))
    assert code == "tokenizer-added"
    assert "1 added tokens are in the draft's folder alone: '<pad>'" in message


@pytest.mark.parametrize(
    "content", ["{", "[]", "{}", '{"model": {"vocab": 7}}', '{"model": {"vocab": [1]}}']
)
def test_a_file_of_another_form_is_said_not_to_be_compared(said, content):
    ((code, _),) = said(content)
    assert code == "tokenizer-unread"


# In the commands.


@pytest.fixture
def draft(tmp_path):
    """A draft with a tokenizer of its own, in which two tokens changed places."""
    folder = Path(shutil.copytree(DATA / "drafts" / "plain", tmp_path / "draft"))
    vocab = OWN["model"]["vocab"]
    swapped = {**vocab, "a": vocab["b"], "b": vocab["a"]}
    (folder / FILE).write_text(json.dumps({**OWN, "model": {**OWN["model"], "vocab": swapped}}))
    return folder


def test_inspect_says_it(draft):
    words = ["inspect", str(draft), "--target", str(DATA / "target"), "--json"]
    told = json.loads(CliRunner().invoke(cli.app, words).stdout)
    assert [x["where"] for x in told["findings"] if x["code"] == "other-tokenizer"] == [FILE]


def test_a_validation_says_it(draft, tmp_path):
    line = (DATA / "prompts.jsonl").read_text().splitlines()[0]
    (tmp_path / "p.jsonl").write_text(line)
    words = [draft, "--target", DATA / "target", "--prompts", tmp_path / "p.jsonl"]
    words += ["--max-new-tokens", "4", "--device", "cpu", "--json", "-"]
    told = json.loads(CliRunner().invoke(validate_cli.app, [str(word) for word in words]).stdout)
    assert [x["severity"] for x in told["findings"] if x["code"] == "other-tokenizer"] == [
        "warning"
    ]
