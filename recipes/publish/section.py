"""The section of a model card that we write: what was measured, how to serve it, where it comes from."""

import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

from eagle3_interop.convert.serve import command
from eagle3_interop.recipes.publish.bundle import target_id
from eagle3_interop.recipes.publish.markdown import block, code, plain, table, word
from eagle3_interop.schemas.engines.releases import RELEASES, newest
from eagle3_interop.schemas.findings import Finding
from eagle3_interop.schemas.hub import is_hub_id
from eagle3_interop.schemas.registry import DIALECTS, serving
from eagle3_interop.schemas.report import Report
from eagle3_interop.validators.report.speed import compared

PLOT = "eagle3_acceptance.png"
TARGET = "TARGET"


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
    allowed: Sequence[Finding] = ()
    source: Mapping[str, Any] = field(default_factory=dict)
    plot: bool = False
    revision: str | None = None

    @property
    def target(self) -> str | None:
        """The target's Hub id: what config.json says, then the conversion, then the validation."""
        return target_id(self.config, self.provenance, self.report.environment)

    @property
    def tokens(self) -> int:
        """Proposed tokens a step: as validated."""
        measured = self.report.acceptance
        return measured.num_draft_tokens if measured else 3


def section(facts: Facts, base_model: object = None) -> str:
    """Our section, in Markdown.

    Args:
        facts: what there is to say.
        base_model: the target as the card's own metadata names it.
    """
    named = base_model if isinstance(base_model, str) and is_hub_id(base_model) else None
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
    return f"written in {_owner(layout)} layout"


def _acceptance(facts: Facts) -> list[str]:
    measured = facts.report.acceptance
    if measured is None:
        return []
    low, high = measured.interval
    how = f"{facts.tokens} proposed a step"
    if measured.tree:
        how = "as a tree of {} steps, top-k {}, {} tokens".format(*measured.tree)
    interval = f"95 % interval {low:.3f} to {high:.3f}"
    if not measured.varies:
        interval = "no interval: one prompt, or prompts that are all alike"
    text = (
        f"**{measured.accept_length:.3f} tokens a step** ({interval}): "
        f"{measured.accepted} draft tokens accepted in {measured.drafts} steps, {how}."
    )
    plot = [f"![Acceptance by position]({PLOT})"] if facts.plot else []
    rows = [(str(i), f"{rate:.3f}") for i, rate in enumerate(measured.rates, 1)]
    shown = [table(("position", "accepted"), rows)] if rows else []
    return ["### Acceptance", text, *plot, *shown, *_speed(facts)]


def _speed(facts: Facts) -> list[str]:
    """What a real engine took, where that was measured."""
    speed, engine = facts.report.speed, facts.report.engine
    if speed is None or engine is None:
        return []
    name = f"{newest(engine['engine']).title} {engine['version']}"
    where = facts.report.environment.get("device", "")
    rows = [
        f"{name}, batch size {row['batch']}: {compared(row, 'it')}." for row in speed["batches"]
    ]
    return ["### Speed", f"Decoding on the machine of the validation ({where}).", *rows]


def _serving(facts: Facts, target: str) -> list[str]:
    parts = ["### Serve"]
    told = facts.report.environment.get("draft") or {}
    as_is, since = told.get("as_is") or {}, told.get("since") or {}
    engines = [name for name in ("vllm", *RELEASES) if newest(name).serves]
    for engine in cast("list[command.Engine]", list(dict.fromkeys(engines))):
        reads = engine in serving(facts.layout)
        if reads and as_is.get(engine, "same") == "same":
            name = newest(engine).title + (f" >= {first}" if (first := since.get(engine)) else "")
            parts += [f"{name}:", block(_launch(facts, engine, target))]
            continue
        why = "does not run this very folder" if reads else "reads another layout"
        known = facts.layout in DIALECTS
        source = facts.layout if known else "auto"
        words = [f"{source}-to-{engine}", facts.repo_id, f"{engine}-draft"]
        convert = f"eagle3-convert {shlex.join(words)} --target {shlex.quote(target)}"
        parts += [f"{newest(engine).title} {why}:", block(convert)]
    return parts


def _owner(layout: object) -> str:
    """Whose layout it is."""
    known = DIALECTS.get(layout) if isinstance(layout, str) else None
    return known.possessive if known else plain(layout)


def _launch(facts: Facts, engine: command.Engine, target: str) -> str:
    measured = facts.report.acceptance
    shape = measured.tree if measured and newest(engine).trees else None
    theirs = facts.report.environment.get("target") or {}
    known = theirs if theirs.get("dtype") else None
    steps, topk, tokens = shape or (facts.tokens, 1, None)
    wanted = command.Serving(
        engine, facts.config, facts.repo_id, target, steps, topk, tokens, target_config=known
    )
    return command.command(wanted).line


def _conversion(facts: Facts) -> list[str]:
    source, tool = facts.provenance.get("source"), facts.provenance.get("tool")
    if not isinstance(source, Mapping) or not isinstance(tool, Mapping):
        return []
    revision = f" at revision {code(source['revision'])}" if source.get("revision") else ""
    owner = _owner(source.get("layout"))
    text = (
        f"Converted from {code(_name(source))}{revision} ({owner} layout) "
        f"by {plain(tool.get('name'))} {plain(tool.get('version'))}; digests of the source are in "
        "`eagle3_interop.json`."
    )
    changed = [
        (code(row.get("source")), code(row.get("output")), plain(row.get("op")))
        for row in facts.provenance.get("tensors", [])
        if row.get("op") != "kept"
    ]
    shown = [table(("source", "here", "what was done"), changed)] if changed else []
    return ["### Conversion", text, *shown]


def _conformance(facts: Facts) -> list[str]:
    gates = [
        (
            plain(check.name),
            plain(check.wanted),
            plain(check.got),
            "passed" if check.passed else "failed",
        )
        for check in facts.report.gates
    ]
    parts = ["### Conformance", table(("gate", "wanted", "got", "result"), gates)]
    accepted = [_remark(item) for item in facts.allowed]
    if accepted:
        head = ("code", "where", "what")
        parts += ["Warnings that the publisher accepted (`--allow`):", table(head, accepted)]
    notes = dict.fromkeys(row for row in _remarks(facts) if row not in accepted)
    if notes:
        head = ("code", "where", "what")
        parts += ["Remarks of the conversion and the validation:", table(head, notes)]
    return parts


def _remarks(facts: Facts) -> Iterable[tuple[str, str, str]]:
    said = [Finding.model_validate(item) for item in facts.provenance.get("findings", [])]
    return map(_remark, (*said, *facts.report.findings))


def _remark(item: Finding) -> tuple[str, str, str]:
    return code(item.code), plain(item.where), plain(item.message)


def _reproduction(facts: Facts, target: str) -> list[str]:
    told = facts.report.environment
    words = ["eagle3-validate", facts.repo_id + (f"@{facts.revision}" if facts.revision else "")]
    words += ["--target", target]
    if facts.report.against is not None:
        words += ["--against", _source(facts)]
    measured = facts.report.acceptance
    if measured and measured.tree:
        words += ["--tree", ",".join(map(str, measured.tree))]
    else:
        words += ["--num-draft-tokens", str(facts.tokens)]
    prompts = told.get("prompts") or {}
    if told.get("streams"):
        words += ["--streams", word(told["streams"], "STREAMS")]
    elif prompts.get("source", "bundled") != "bundled":
        words += ["--prompts", word(prompts["source"], "PROMPTS")]
    options = {"--max-new-tokens": "max_new_tokens", "--dtype": "dtype", "--seed": "seed"}
    for option, key in options.items():
        if told.get(key) is not None:
            words += [option, word(told[key], "VALUE")]
    for check in facts.report.gates:
        if check.name in ("min-accept-length", "max-logit-diff"):
            words += [f"--{check.name}", word(check.wanted, "VALUE")]
    return ["### Reproduce the validation", block(shlex.join(words)), *_measured_with(told)]


def _source(facts: Facts) -> str:
    """What it was compared with: by its Hub id and revision, where it has them."""
    source = facts.provenance.get("source") or {}
    path = str(source.get("path") or "").partition("@")[0]
    if is_hub_id(path) and source.get("revision"):
        return word(f"{path}@{source['revision']}", "SOURCE")
    return word(facts.report.against.source if facts.report.against else path, "SOURCE")


def _name(source: Mapping[str, Any]) -> str:
    """A folder's last component, or a Hub id, which has a revision."""
    path = str(source.get("path") or "")
    return path if source.get("revision") else path.rpartition("/")[2]


def _measured_with(told: Mapping[str, Any]) -> list[str]:
    versions = told.get("versions") or {}
    named = [f"{plain(name)} {plain(versions[name])}" for name in versions if versions[name]]
    if not named:
        return []
    prompts = told.get("prompts") or {}
    digest, count = code(prompts.get("sha256")), plain(prompts.get("count"))
    texts = f" {count} prompts, sha256 {digest}." if prompts else ""
    return [f"Measured on {plain(told.get('device'))} with {', '.join(named)}.{texts}"]
