"""Nothing in a card is raw: whatever a report or a provenance says, it is shown as text."""

import json
import re

import pytest
from markdown_it import MarkdownIt

from eagle3_interop.recipes.publish import card
from eagle3_interop.recipes.publish.markdown import block, code, plain, word
from eagle3_interop.recipes.publish.section import Facts, section
from eagle3_interop.schemas.report import Report

PARSER = MarkdownIt("commonmark", {"html": True}).enable(["table", "strikethrough"])

NASTY = [
    "<script>alert(1)</script>",
    "<img src=x onerror=alert(1)>",
    "[click](https://evil.example)",
    "![i](https://evil.example/i.png)",
    "<https://evil.example>",
    "a | b | c",
    "`x` ``` ~~~",
    "``<b>``",
    "*a* **b** _c_ __d__ ~~e~~ $x$",
    "\\`a\\` \\[x](y)",
    "\n\n# Title\n\n- item\n\n```bash\nrm -rf x\n```\n",
    "\r\n| a |\n|---|\n| b |\n",
    card.END,
    "--> <!-- eagle3-interop: begin -->",
    "&lt;b&gt; &#60;b&#62;",
    "x\u2028# y\x00\x1b[31m",
]
CLOSED_LISTS = {"verdict", "severity"}
"""Keys whose values a report's model takes from a closed list."""


def filled(value, text, key=""):
    """The same, with every text in it, keys of free dictionaries included, replaced."""
    if isinstance(value, str):
        return value if key in CLOSED_LISTS else text
    if isinstance(value, dict):
        return {name: filled(inner, text, name) for name, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [filled(inner, text, key) for inner in value]
    return value


REMARK = {"code": "cast", "severity": "note", "where": "w", "message": "m", "fix": "f"}
PROVENANCE = {
    "tool": {"name": "t", "version": "v"},
    "source": {"layout": "l", "path": "p", "revision": "r"},
    "target": {"path": "p", "revision": "r"},
    "output": {"layout": "l"},
    "options": {"target_name": "n"},
    "draft": {"target": {"name": "n"}},
    "tensors": [{"source": "a", "output": "b", "op": "renamed"}],
    "findings": [REMARK],
}
GATE = {"name": "n", "wanted": "w", "got": "g", "passed": True}
THRESHOLD = {"name": "min-accept-length", "wanted": "w", "got": "g", "passed": True}


@pytest.fixture
def told(checkpoint, report):
    """The content of a report."""
    return json.loads(report(checkpoint).read_text())


def made(told, text=None):
    """Our section, of facts that say `text` wherever they can."""
    told = told | {"gates": [GATE, GATE | {"got": {"a": "b"}}], "findings": [REMARK]}
    provenance, layout, config = PROVENANCE, "vllm", {"architectures": ["A"], "dtype": "d"}
    environment = told["environment"] | {"prompts": {"source": "p", "count": "c", "sha256": "s"}}
    told["environment"] = environment
    if text is not None:
        told, provenance, layout = filled(told, text), filled(provenance, text), text
        config = filled(config, text)
        told["environment"]["versions"] = {text: text}
    gates = [*told["gates"], THRESHOLD | {"wanted": text or "w"}]
    report = Report.model_validate(told | {"gates": gates})
    facts = Facts("org/draft", layout, config, report, provenance, report.findings, plot=True)
    return section(facts, text)


def structure(markdown):
    """What a reader's browser is given besides text: every mark, tag, link and image."""
    found = []
    for token in PARSER.parse(markdown):
        found.append((token.type, token.tag, token.markup if token.type == "fence" else ""))
        found += [
            (inner.type, inner.tag, str(dict(inner.attrs)))
            for inner in token.children or ()
            if inner.type not in ("text", "code_inline", "text_special")
        ]
    return found


@pytest.mark.parametrize("text", NASTY)
def test_no_value_adds_a_mark_a_tag_or_a_link_to_the_card(told, text):
    kinds = {kind for kind, _, _ in structure(made(told, text))}
    assert not {kind for kind in kinds if "html" in kind or "link" in kind}
    blocks = [token for token in structure(made(told, text)) if token[0] != "softbreak"]
    clean = [token for token in structure(made(told, "harmless")) if token[0] != "softbreak"]
    assert blocks == clean


@pytest.mark.parametrize("text", NASTY)
def test_no_value_ends_our_section(told, text):
    whole = card.with_section("# Mine", made(told, text))
    assert card.with_section(whole, "new") == f"# Mine\n\n{card.BEGIN}\nnew\n{card.END}\n"


@pytest.mark.parametrize("text", [*NASTY, "$(rm -rf x)", "; rm x", "--trust-remote-code"])
def test_no_value_reaches_a_command_that_somebody_pastes(told, text):
    commands = [t.content for t in PARSER.parse(made(told, text)) if t.type == "fence"]
    assert len(commands) == 3
    assert not re.search(r"rm |<|evil|alert|trust-remote", "".join(commands))


@pytest.mark.parametrize("text", NASTY)
def test_what_is_shown_is_what_was_said(text):
    (paragraph,) = [t for t in PARSER.parse(f"x {plain(text)}") if t.type == "inline"]
    shown = "".join(inner.content for inner in paragraph.children)
    seen = " ".join(re.sub(r"[\x00-\x1f\u2028]", " ", text).split())
    if not re.search(r"[/\\]", text):  # paths of this machine are shortened
        assert shown == f"x {seen}"


def test_names_stay_as_readable_as_they_are():
    assert plain("embed_tokens.weight kept as it is.") == "embed_tokens.weight kept as it is."
    assert code("model.layers.0.self_attn.q_proj.weight") == (
        "`model.layers.0.self_attn.q_proj.weight`"
    )
    assert code("a`b") == "a\\`b"
    assert word("prompts.jsonl", "PROMPTS") == "prompts.jsonl"
    assert word("/home/bob/my prompts.jsonl", "PROMPTS") == "PROMPTS"
    assert block("echo") == "```bash\necho\n```"
    assert block("a ```` b").startswith("`````bash\n")


def test_bare_addresses_do_not_become_links():
    text = plain("see https://evil.example, www.evil.example or me@evil.example")
    assert not re.search(r"https?://|www\.|@", text)


# A folder is never published as a Hub id.


def target_of(told, provenance, **target):
    environment = told["environment"] | {"target": target}
    report = Report.model_validate(told | {"environment": environment})
    return Facts("org/draft", "vllm", {}, report, provenance).target


@pytest.mark.parametrize(
    "provenance",
    [
        # As 0.1.0 wrote a folder given as data/target.
        {
            "target": {"path": "data/target", "revision": None},
            "options": {},
            "draft": {"target": {"name": "data/target"}},
        },
        # As it is written now.
        {
            "target": {"path": "./data/target", "revision": None},
            "options": {"target_name": None},
            "draft": {"target": {"name": "./data/target"}},
        },
        {},
    ],
)
@pytest.mark.parametrize("path", ["data/target", "./data/target"])
def test_a_relative_folder_is_no_base_model(told, provenance, path):
    assert target_of(told, provenance, path=path, revision=None) is None


def test_a_target_of_the_hub_has_a_revision_or_was_named(told):
    assert target_of(told, {}, path="org/target@main", revision="c" * 40) == "org/target"
    named = {"target": {"path": "org/target"}, "options": {"target_name": "org/target"}}
    assert target_of(told, named, path="./data/target") == "org/target"


def test_a_relative_source_is_no_hub_id_in_the_card(told):
    source = {"layout": "sglang", "path": "data/source", "revision": None}
    told["against"]["source"] = "./data/source"
    facts = Facts(
        "org/draft", "vllm", {}, Report.model_validate(told), {**PROVENANCE, "source": source}
    )
    text = section(facts)
    assert "data/source" not in text
    assert "Converted from `source`" in text
    assert "--against source" in text
