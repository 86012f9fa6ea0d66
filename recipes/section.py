"""The section of a model card that we write: what was measured, how to serve it, where it comes from."""

import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

from eagle3_interop.convert import serve
from eagle3_interop.recipes.bundle import HUB_ID, verifier
from eagle3_interop.recipes.gate import Acceptance, Remark, Report

PLOT = "eagle3_acceptance.png"
TARGET = "TARGET"

NAMES = {"vllm": "vLLM", "sglang": "SGLang", "speculators": "speculators"}

# Which engines run a folder in each layout as it is.
ENGINES: dict[str, tuple[serve.Engine, ...]] = {
    "universal": ("vllm", "sglang"),
    "speculators": ("vllm",),
    "vllm": ("vllm",),
    "sglang": ("sglang",),
}


@dataclass(frozen=True)
class Facts:
    """All that a card says.

    Attributes:
        repo_id: where the draft is published.
        layout: the layout that it is written in.
        config: its config.json.
        report: of the validation.
        provenance: of the conversion, without paths of this machine.
        allowed: warnings that were accepted with ``--allow``.
        source: metadata of the source's card.
        plot: the acceptance plot is pushed too.
        revision: the branch that is pushed to.
    """

    repo_id: str
    layout: str
    config: Mapping[str, Any]
    report: Report
    provenance: Mapping[str, Any] = field(default_factory=dict)
    allowed: Sequence[Remark] = ()
    source: Mapping[str, Any] = field(default_factory=dict)
    plot: bool = False
    revision: str | None = None

    @property
    def target(self) -> str | None:
        """The target's Hub id: what config.json says, then the conversion, then the validation."""
        given, drafted = (
            self.provenance.get("target") or {},
            self.provenance.get("draft") or {},
        )
        names = (
            verifier(self.config),
            given.get("path"),
            (drafted.get("target") or {}).get("name"),
            self.report.environment.get("target"),
        )
        return next((n for n in names if isinstance(n, str) and HUB_ID.fullmatch(n)), None)

    @property
    def tokens(self) -> int:
        """Proposed tokens a step: as validated."""
        measured = self.report.acceptance
        if measured is None:
            return 3
        shape = tree(measured)
        return measured.num_draft_tokens or (shape[0] if shape else 3)


def tree(measured: Acceptance) -> tuple[int, int, int] | None:
    """Steps, top-k and tokens of a validation with trees."""
    value = measured.tree
    if isinstance(value, Mapping):
        value = list(value.values())
    numbers = [int(digits) for digits in re.findall(r"\d+", str(value or ""))]
    return (numbers[0], numbers[1], numbers[2]) if len(numbers) == 3 else None


def section(facts: Facts, base_model: object = None) -> str:
    """Our section, in Markdown.

    Args:
        facts: what there is to say.
        base_model: the target as the card's own metadata names it.
    """
    named = base_model if isinstance(base_model, str) and HUB_ID.fullmatch(base_model) else None
    target = facts.target or named or TARGET
    parts = [
        "## EAGLE-3 draft",
        f"A draft for speculative decoding with `{target}`, {_written(facts.layout)}.",
        *_acceptance(facts),
        *_serving(facts, target),
        *_conversion(facts),
        *_conformance(facts),
        *_reproduction(facts, target),
    ]
    return "\n\n".join(parts)


def _written(layout: str) -> str:
    if layout == "universal":
        return "one folder that vLLM, SGLang and speculators load to the same network"
    return f"written in {NAMES.get(layout, layout)}'s layout"


def _acceptance(facts: Facts) -> list[str]:
    measured = facts.report.acceptance
    if measured is None:
        return []
    within = ""
    if measured.interval:
        within = f" (interval {measured.interval[0]:.3f} to {measured.interval[1]:.3f})"
    shape = tree(measured)
    how = f"{facts.tokens} proposed a step"
    if shape:
        how = f"as a tree of {shape[0]} steps, top-k {shape[1]}, {shape[2]} tokens"
    text = (
        f"**{measured.accept_length:.3f} tokens a step**{within}: {measured.accepted} draft tokens "
        f"accepted in {measured.drafts} steps, {how}."
    )
    plot = [f"![Acceptance by position]({PLOT})"] if facts.plot else []
    rows = [(i, f"{rate:.3f}") for i, rate in enumerate(measured.rates, 1)]
    table = [_table(("position", "accepted"), rows)] if rows else []
    return ["### Acceptance", text, *plot, *table]


def _serving(facts: Facts, target: str) -> list[str]:
    parts = ["### Serve"]
    for engine in cast("tuple[serve.Engine, ...]", ("vllm", "sglang")):
        if engine in ENGINES.get(facts.layout, ()):
            parts += [f"{NAMES[engine]}:", _bash(_launch(facts, engine, target))]
        else:
            convert = f"eagle3-convert {facts.layout}-to-{engine} {facts.repo_id} {engine}-draft"
            parts += [f"{NAMES[engine]} reads another layout:", _bash(convert)]
    return parts


def _launch(facts: Facts, engine: serve.Engine, target: str) -> str:
    measured = facts.report.acceptance
    shape = tree(measured) if measured and engine == "sglang" else None
    if shape is None:
        return serve.command(facts.config, engine, facts.repo_id, target, facts.tokens)
    steps, topk, tokens = shape
    line = serve.command(facts.config, engine, facts.repo_id, target, steps, topk)
    flag = "--speculative-num-draft-tokens"
    return re.sub(rf"{flag} \d+", f"{flag} {tokens}", line)


def _conversion(facts: Facts) -> list[str]:
    source, tool = facts.provenance.get("source"), facts.provenance.get("tool")
    if not isinstance(source, Mapping) or not isinstance(tool, Mapping):
        return []
    revision = f" at revision `{source['revision']}`" if source.get("revision") else ""
    text = (
        f"Converted from `{_plain(source.get('path'))}`{revision} ({source.get('layout')}'s layout) "
        f"by {tool.get('name')} {tool.get('version')}; digests of the source are in "
        "`eagle3_interop.json`."
    )
    changed = [
        (_code(row.get("source")), _code(row.get("output")), row.get("op"))
        for row in facts.provenance.get("tensors", [])
        if row.get("op") != "kept"
    ]
    table = [_table(("source", "here", "what was done"), changed)] if changed else []
    return ["### Conversion", text, *table]


def _conformance(facts: Facts) -> list[str]:
    gates = [
        (check.name, check.wanted, check.got, "passed" if check.passed else "failed")
        for check in facts.report.gates
    ]
    parts = ["### Conformance", _table(("gate", "wanted", "got", "result"), gates)]
    accepted = [(_code(item.code), item.where, item.message) for item in facts.allowed]
    if accepted:
        head = ("code", "where", "what")
        parts += ["Warnings that the publisher accepted (`--allow`):", _table(head, accepted)]
    notes = dict.fromkeys(row for row in _remarks(facts) if row not in accepted)
    if notes:
        head = ("code", "where", "what")
        parts += ["Remarks of the conversion and the validation:", _table(head, notes)]
    return parts


def _remarks(facts: Facts) -> Iterable[tuple[str, str, str]]:
    said = [Remark.model_validate(item) for item in facts.provenance.get("findings", [])]
    for item in (*said, *facts.report.findings):
        yield _code(item.code), item.where, item.message


def _reproduction(facts: Facts, target: str) -> list[str]:
    name = facts.repo_id + (f"@{facts.revision}" if facts.revision else "")
    words = ["eagle3-validate", name, "--target", target]
    source = facts.provenance.get("source") or {}
    if facts.report.against is not None and source.get("path"):
        revision = f"@{source['revision']}" if source.get("revision") else ""
        words += ["--against", f"{source['path']}{revision}"]
    measured = facts.report.acceptance
    shape = tree(measured) if measured else None
    if shape:
        words += ["--tree", ",".join(map(str, shape))]
    else:
        words += ["--num-draft-tokens", str(facts.tokens)]
    text = "With the prompts of the validation (`--prompts`), where it was given some:"
    return ["### Reproduce the validation", text, _bash(shlex.join(words))]


def _bash(command: str) -> str:
    return f"```bash\n{command}\n```"


def _table(head: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    lines = [head, ["---"] * len(head), *([_plain(cell) for cell in row] for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _code(value: object) -> str:
    return f"`{value}`" if value else ""


def _plain(value: object) -> str:
    """Text for a cell: on one line, and with nothing in it that ends the cell or our section."""
    if isinstance(value, float):
        value = f"{value:.6g}"
    text = " ".join(str("" if value is None else value).split())
    return text.replace("|", "\\|").replace("<!--", "&lt;!--").replace("-->", "--&gt;")
