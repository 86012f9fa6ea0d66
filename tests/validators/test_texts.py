"""Prompts of a file or of the package, and the texts that the target makes of them."""

import json
from pathlib import Path

import pytest

from eagle3_interop.schemas.findings import Usage
from eagle3_interop.validators.target import prompts as prompts_module
from eagle3_interop.validators.target.prompts import (
    Prompt,
    bundled_prompts,
    parse_prompts,
    read_prompts,
)
from eagle3_interop.validators.target.running import Target
from eagle3_interop.validators.target.texts import Text, encode, load_tokenizer

TINY = Path(__file__).parents[1] / "data" / "target"
CHAT = ({"role": "user", "content": "hi"},)


@pytest.fixture(scope="module")
def target():
    return Target.load(TINY)


def test_bundled_prompts_are_varied():
    prompts = bundled_prompts()
    contents = [prompt.messages[0]["content"] for prompt in prompts]
    assert len(prompts) == 40
    assert len(set(contents)) == 40
    assert sum(not text.isascii() for text in contents) >= 7
    assert max(map(len, contents)) < 120


def test_json_lines():
    lines = [
        {"prompt": "raw text"},
        {
            "messages": [
                {"role": "system", "content": "Be brief."},
                {"role": "user", "content": "Hi"},
            ]
        },
        {"token_ids": [1, 2], "completion_token_ids": [3, 4]},
    ]
    found = parse_prompts("\n" + "\n\n".join(map(json.dumps, lines)) + "\n", "p.jsonl")
    assert found[0] == Prompt(text="raw text", where="p.jsonl:2")
    assert found[1].messages == tuple(lines[1]["messages"])
    assert found[2] == Prompt(token_ids=(1, 2), completion=(3, 4), where="p.jsonl:6")


def test_a_prompt_may_name_its_kind():
    (found,) = parse_prompts('{"prompt": "a", "category": " code "}', "p")
    assert found.category == "code"
    for wrong in ("7", '""', '["a"]'):
        with pytest.raises(Usage, match="p:1: category must be a word"):
            parse_prompts(f'{{"prompt": "a", "category": {wrong}}}', "p")


def test_a_line_separator_within_a_text_ends_no_line():
    (found,) = parse_prompts('{"prompt": "a\u2028b\x85c"}', "p")
    assert found.text == "a\u2028b\x85c"


def test_plain_lines_are_user_messages():
    found = parse_prompts("Hello\n\n  [not json]  \n", "p.txt")
    assert [p.messages for p in found] == [
        ({"role": "user", "content": "Hello"},),
        ({"role": "user", "content": "[not json]"},),
    ]
    assert found[1].where == "p.txt:3"


def test_a_prompt_in_json_among_lines_of_text_is_no_text():
    with pytest.raises(Usage, match=r"p\.txt:2: a JSON object among lines of plain text"):
        parse_prompts('Hello\n{"prompt": "a"}\n', "p.txt")
    assert len(parse_prompts('Hello\n{"a": 1} is a dict\n{"b": 2}\n', "p.txt")) == 3


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("{", "not JSON"),
        ("[" * 5000, "not JSON"),
        ('{"prompt": "\\ud800"}', "not JSON"),
        ("[1]", "exactly one"),
        ("{}", "exactly one"),
        ('{"prompt": "a", "token_ids": [1]}', "exactly one"),
        ('{"prompt": "a", "colour": 1}', "unknown key colour"),
        ('{"prompt": ""}', "not empty"),
        ('{"prompt": 3}', "must be a text"),
        ('{"token_ids": []}', "list of integers"),
        ('{"token_ids": [1, -2]}', "list of integers"),
        ('{"token_ids": [true]}', "list of integers"),
        ('{"token_ids": "12"}', "list of integers"),
        ('{"prompt": "a", "completion_token_ids": [1.5]}', "list of integers"),
        ('{"messages": []}', "must be a list"),
        ('{"messages": [{"role": "user"}]}', "must be a list"),
        ('{"messages": [{"role": "user", "content": null}]}', "must be a list"),
    ],
)
def test_a_line_that_does_not_parse_is_named(line, why):
    with pytest.raises(Usage, match=f"p.jsonl:2.*{why}"):
        parse_prompts('{"prompt": "fine"}\n' + line, "p.jsonl")


def test_files_that_cannot_be_read(tmp_path):
    with pytest.raises(Usage, match="missing"):
        read_prompts(tmp_path / "missing")
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(Usage, match="binary"):
        read_prompts(tmp_path / "binary")
    (tmp_path / "empty").write_text("\n\n")
    with pytest.raises(Usage, match="no prompt"):
        read_prompts(tmp_path / "empty")


def test_encoding_uses_the_template():
    tokenizer = load_tokenizer(TINY)
    raw, chat = Prompt(text="import os"), parse_prompts("import os", "p")[0]
    ids = encode([raw, chat, Prompt(token_ids=(5, 6))], tokenizer, 1024)
    assert ids[0] == tuple(tokenizer("import os")["input_ids"])
    rendered = tokenizer.apply_chat_template(
        list(chat.messages), tokenize=False, add_generation_prompt=True
    )
    assert tokenizer.decode(ids[1]) == rendered
    assert ids[2] == (5, 6)
    tokenizer.chat_template = None
    assert encode([chat], tokenizer, 1024) == [ids[0]]


def test_without_a_tokenizer_only_ids_will_do(tmp_path):
    assert load_tokenizer(tmp_path) is None
    assert encode([Prompt(token_ids=(5, 6))], None, 10) == [(5, 6)]
    with pytest.raises(Usage, match=r"p:1.*no tokenizer"):
        encode(parse_prompts("Hello", "p"), None, 10)


TEMPLATES = {
    "refuses": "{{ raise_exception('System role not supported') }}",
    "is broken": "{% if %}",
    "asks for what is not there": "{{ messages[7].content + 1 }}",
    "does not end its recursion": "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}",
}


@pytest.mark.parametrize("template", TEMPLATES.values(), ids=TEMPLATES)
def test_a_template_that_fails_is_wrong_usage_by_the_prompts_name(template):
    tokenizer = load_tokenizer(TINY)
    tokenizer.chat_template = template
    with pytest.raises(Usage, match=r"p.jsonl:3: the target's chat template refuses these"):
        encode([Prompt(messages=CHAT, where="p.jsonl:3")], tokenizer, 1024)


def test_a_template_that_raises_says_its_own_reason():
    tokenizer = load_tokenizer(TINY)
    tokenizer.chat_template = TEMPLATES["refuses"]
    with pytest.raises(Usage, match="System role not supported"):
        encode([Prompt(messages=CHAT)], tokenizer, 1024)


def test_a_tokenizer_that_does_not_load_is_none(tmp_path):
    for path in TINY.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    (tmp_path / "tokenizer.json").write_text('{"version": "1.0", "model": {"type": "none"}}')
    assert load_tokenizer(tmp_path) is None


def test_a_prompt_fits_up_to_the_last_position():
    encode([Prompt(token_ids=(1,) * 90, where="p:1")], None, 1024, positions=100, room=10)
    with pytest.raises(Usage, match=r"p:1: 91 tokens and 10 to follow .* 100 positions"):
        encode([Prompt(token_ids=(1,) * 91, where="p:1")], None, 1024, positions=100, room=10)


def test_tokens_behind_the_text_by_which_drafts_are_judged_are_named():
    long = [Prompt(token_ids=(1,) * 91, where="p:1")]
    with pytest.raises(Usage, match=r"91 tokens and 6 to follow and 4 by which the last drafts"):
        encode(long, None, 1024, positions=100, room=6, beyond=4)


def test_prompts_without_an_end_are_wrong_usage(tmp_path, monkeypatch):
    with pytest.raises(Usage, match="more than 64 MiB"):
        read_prompts(Path("/dev/zero"))
    monkeypatch.setattr(prompts_module, "MOST_BYTES", 5)
    (tmp_path / "prompts").write_text("12345")
    assert len(read_prompts(tmp_path / "prompts")) == 1
    (tmp_path / "prompts").write_text("123456")
    with pytest.raises(Usage, match="more than"):
        read_prompts(tmp_path / "prompts")


def test_a_mistyped_file_of_prompts_is_told_the_nearest(tmp_path):
    (tmp_path / "prompts.jsonl").touch()
    with pytest.raises(Usage, match=r"did you mean .*prompts\.jsonl\?"):
        read_prompts(tmp_path / "prompt.jsonl")


def test_ids_must_be_the_targets():
    for prompt in (Prompt(token_ids=(5, 10)), Prompt(token_ids=(5,), completion=(11,))):
        with pytest.raises(Usage, match="not below 10"):
            encode([prompt], None, 10)


def test_starts_of_a_text():
    text = Text((1, 2, 3), (4, 5, 6, 7, 8), 3)
    assert list(text.starts) == [2, 3]
    assert len(text) == 8
    assert list(Text((1,), (2, 3), 1).starts) == []
