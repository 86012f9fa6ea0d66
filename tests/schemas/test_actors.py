"""A remark on what an engine does says which engine: no message leaves its actor to be guessed."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SOURCES = [
    path
    for room in ("schemas", "convert/decide", "convert/read", "convert/serve", "validators")
    for path in sorted((ROOT / room).rglob("*.py"))
    if path.parent.name not in ("codes", "scripts", "sglang_plugin")
    if path.name != "miswirings.py"  # whose messages go on where "the engine" began
]
DOES = re.compile(
    r"\b(fails|does not start|drops|would drop|ignores|captures|feeds|would feed|takes|would take|reads|does not read|"
    r"never reads|rotates|computes|would run|raises|loads|does not load|knows|expects|wants|overwrites|"
    r"chooses|skips|uninitialised)\b"
)
"""What only an engine does, or its loader."""

ACTORS = re.compile(
    r"the draft reads|fc takes|SGLang|vLLM|speculators|SpecForge|transformers|[Ee]ngine|framework|this tool|trainer|--check|"
    r"\{[^}]*(engine|title|release|who|_OTHER_RULES|name)[^}]*\}"
)
"""Who does it: by name, or by a place in the text where the name is put in."""

VAGUE = re.compile(
    r"\b(the library|the loader|a loader|loaders|somebody|nobody|whoever|without a word|its counterpart|the others)\b"
)
"""Words that stand for an actor and name none."""


def messages(source: str) -> Iterator[str]:
    """The texts that findings are made with: third argument of a maker, or bound to ``message``."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "message":
            yield from texts(node.value)
        elif isinstance(node, ast.Call):
            called = (
                node.func.attr if isinstance(node.func, ast.Attribute) else ast.unparse(node.func)
            )
            if called in ("finding", "say", "refusal", "refused") and len(node.args) > 2:
                yield from texts(node.args[2])


def texts(node: ast.expr) -> Iterator[str]:
    if isinstance(node, ast.IfExp):
        yield from texts(node.body)
        yield from texts(node.orelse)
    elif isinstance(node, ast.Constant) and isinstance(node.value, str):
        yield node.value
    elif isinstance(node, ast.JoinedStr):
        yield "".join(
            part.value if isinstance(part, ast.Constant) else f"{{{ast.unparse(part.value)}}}"
            for part in node.values
            if isinstance(part, ast.Constant | ast.FormattedValue)
        )


def actorless(source: str) -> list[str]:
    return [
        text
        for text in messages(source)
        if VAGUE.search(text) or (DOES.search(text) and not ACTORS.search(text))
    ]


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(ROOT)))
def test_a_message_that_speaks_of_an_engine_names_it(path):
    assert actorless(path.read_text()) == []


@pytest.mark.parametrize(
    ("message", "found"),
    [
        ('"absent: the library leaves it uninitialised."', True),
        ('"dropped without a word."', True),
        ('f"{where}: takes the first {size} tokens."', True),
        ('f"{reader.engine} takes the first {size} tokens."', False),
        ('"absent: vLLM shares the target\'s table."', False),
        ('"holds no tensors."', False),
    ],
)
def test_a_missing_actor_is_noticed(message, found):
    assert bool(actorless(f'say("code", "place", {message})')) is found
    assert bool(actorless(f"message = {message}")) is found


def test_messages_are_found():
    found = [text for path in SOURCES for text in messages(path.read_text())]
    assert len(found) > 150
