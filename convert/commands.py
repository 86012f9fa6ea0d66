"""What each command of `eagle3-convert` finds, without its terminal: the command and the Python API show the same."""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

from eagle3_interop.convert import api
from eagle3_interop.convert.decide import inspection
from eagle3_interop.convert.decide.loaded import Loaded
from eagle3_interop.convert.read.folders import local_path
from eagle3_interop.convert.read.tokenizers import compared as compared_tokenizers
from eagle3_interop.convert.serve.container import (
    FORMATS,
    Contained,
    Format,
    checked_extra,
    contained,
    inside,
    target_inside,
)
from eagle3_interop.convert.serve.launch import Command, Engine, Serving
from eagle3_interop.convert.serve.several import ServedBy, command_for, judged_by_all
from eagle3_interop.convert.write import stream
from eagle3_interop.convert.write.places import check_folder
from eagle3_interop.schemas.engines.releases import named_of, newest, parse_named
from eagle3_interop.schemas.findings import Finding, Usage, errors
from eagle3_interop.schemas.options import Options

Progress = Callable[[int], None]
Writing = Callable[[int], AbstractContextManager[Progress | None]]


@dataclass(frozen=True)
class Converted:
    """A conversion that was decided, and written unless that was not wanted.

    Attributes:
        conversion: what was decided.
        output: the folder.
        findings: everything said.
        files: what was written; nothing of a dry run.
    """

    conversion: api.Conversion
    output: Path
    findings: tuple[Finding, ...]
    files: tuple[stream.FileResult, ...] = ()

    def report(self) -> dict[str, Any]:
        """The JSON of a conversion."""
        return self.conversion.report(str(self.output), findings=self.findings)


def convert(
    source: str,
    output: str | Path,
    destination: str,
    *,
    layout: str = "auto",
    options: Options | None = None,
    link: bool = False,
    overwrite: bool = False,
    digest: bool = False,
    dry_run: bool = False,
    writing: Writing = lambda _size: nullcontext(),
) -> Converted:
    """Read a draft, decide its conversion, write it.

    Args:
        source: folder or Hub id.
        output: the folder to write.
        destination: the layout to write.
        layout: the one to read.
        options: the user's.
        link: hard-link files that do not change.
        overwrite: replace an earlier output.
        digest: record the sha256 of weights.
        dry_run: write nothing.
        writing: shows progress over so many bytes.

    Raises:
        Refused: it is no draft, or the destination cannot express it exactly.
        Usage: options that do not fit, or a place that is taken.
        Unavailable: the disk or the Hub failed.
    """
    options = options or Options()
    output = local_path(output)
    check_folder(output, (source, options.target), overwrite=overwrite)
    conversion = api.convert(api.load(source, layout, options), destination, options)
    said = conversion.fitted.findings
    if dry_run:
        stream.check(conversion.plan, output, link=link, overwrite=overwrite)
        return Converted(conversion, output, tuple(said))
    with writing(stream.planned_bytes(conversion.plan)) as progress:
        result = api.write(
            conversion, output, link=link, overwrite=overwrite, digest=digest, progress=progress
        )
    return Converted(conversion, output, (*said, *api.said_of(result)), tuple(result.files))


@dataclass(frozen=True)
class Inspected:
    """A draft as it was read, and what each engine makes of it.

    Attributes:
        source: as it was named.
        loaded: the draft.
        facts: of each engine, as `inspection.judged` gives them.
        findings: of the folder, and of the releases that were named.
    """

    source: str
    loaded: Loaded
    facts: dict[str, dict[str, Any]]
    findings: tuple[Finding, ...]

    @property
    def wrong(self) -> bool:
        """The folder has errors that must be settled first."""
        return bool(errors(self.loaded.reading.findings))

    def report(self) -> dict[str, Any]:
        """The JSON of ``inspect``."""
        return {
            "status": "refused" if self.wrong else "ok",
            "source": {"layout": self.loaded.layout, "path": self.source},
            "draft": self.loaded.reading.draft.model_dump(mode="json"),
            "trainer": self.loaded.trainer and self.loaded.trainer.report(),
            "findings": [item.model_dump() for item in self.findings],
            "engines": inspection.as_json(self.facts),
        }


def inspect(source: str, options: Options | None = None) -> Inspected:
    """Describe a draft, and say which engine runs it.

    Args:
        source: folder or Hub id.
        options: target, trainer, what it may lose, and releases count.

    Raises:
        Refused: it cannot be read at all; other errors stand among the findings.
        Usage: an option that does not fit.
        Unavailable: the disk or the Hub failed.
    """
    options = options or Options()
    wanted = parse_named(options.releases)
    loaded = api.load(source, "auto", options, weights=False, describing=True, shared=False)
    facts = inspection.judged(loaded, wanted)
    said = [*loaded.reading.findings, *(item for one in wanted for item in one.remarks)]
    if loaded.target is not None:
        said += compared_tokenizers(loaded.checkpoint.folder, loaded.target.folder, fetch=False)
    return Inspected(source, loaded, facts, tuple(said))


@dataclass(frozen=True)
class Compared:
    """Two drafts beside each other.

    Attributes:
        names: as they were given.
        drafts: both.
        result: what `inspection.compare` found.
        findings: what had to be guessed of either.
    """

    names: tuple[str, str]
    drafts: tuple[Loaded, Loaded]
    result: dict[str, Any]
    findings: tuple[Finding, ...]

    @property
    def same(self) -> bool:
        """They are one network."""
        return bool(self.result["same"])

    def report(self) -> dict[str, Any]:
        """The JSON of ``diff``."""
        one, other = self.drafts
        return {
            "status": "same" if self.same else "different",
            "a": {"layout": one.layout, "path": self.names[0]},
            "b": {"layout": other.layout, "path": self.names[1]},
            "differences": self.result["differences"],
            "tensors": self.result["tensors"],
            "findings": [item.model_dump() for item in self.findings],
        }


def compare(
    one: str,
    other: str,
    options: Options | None = None,
    comparing: Callable[[], AbstractContextManager[Any]] = nullcontext,
) -> Compared:
    """Compare two drafts, whatever their layouts.

    Args:
        one: folder or Hub id.
        other: likewise.
        options: the target counts.
        comparing: shows that it takes its time.

    Raises:
        Refused: one of them is no draft, or cannot be understood exactly.
        Unavailable: the disk or the Hub failed.
    """
    left, right = (api.load(x, "auto", options, shared=False) for x in (one, other))
    with comparing():
        result = inspection.compare(left, right)
    guessed = [
        item for x in (left, right) for item in x.reading.findings if item.severity == "warning"
    ]
    return Compared((one, other), (left, right), result, tuple(guessed))


@dataclass(frozen=True)
class Served:
    """A launch command, and what was said of it or of the user's own.

    Attributes:
        command: that serves the draft.
        own: what was said of it.
        findings: of the command that was judged: the user's own where there is one.
        container: what runs it in a container, where that was asked for.
        form: how it is to be written.
    """

    command: Command
    own: tuple[Finding, ...]
    findings: tuple[Finding, ...]
    container: Contained | None = None
    form: Format = "shell"

    @property
    def text(self) -> str:
        """What is to be run or stored."""
        return self.command.line if self.container is None else FORMATS[self.form](self.container)

    def report(self) -> dict[str, Any]:
        """The JSON of ``serve``."""
        return {
            "status": "wrong" if errors(self.findings) else "ok",
            "command": self.command.line,
            "format": self.form,
            "artefact": None if self.container is None else self.text,
            "findings": [item.model_dump() for item in self.findings],
        }


def serve(
    source: str,
    engine: Engine,
    *,
    target: str | None = None,
    num_draft_tokens: int | None = None,
    topk: int = 1,
    check: str | None = None,
    releases: Sequence[str] = (),
    form: Format = "shell",
    extra: Sequence[str] = (),
) -> Served:
    """The launch command of a draft, or a judgement of the user's.

    Args:
        source: folder or Hub id of the draft.
        engine: that serves it.
        target: folder or Hub id.
        num_draft_tokens: K; what the checkpoint recommends, else 3.
        topk: branches a draft step.
        check: a command of the user's, to be judged.
        releases: of the engine.
        form: how the command is to be written.
        extra: words of the engine's own, to stand behind all.

    Raises:
        Refused: the engine does not run this folder right.
        Usage: what the engine has no such command for, or words that contradict it.
        Unavailable: the disk or the Hub failed.
    """
    api.know(engine, get_args(Engine), "engine")
    api.know(form, get_args(Format), "format")
    if check is not None and (extra or form != "shell"):
        raise Usage(
            "--check judges a command of yours: leave out --format and what stands behind --."
        )
    if form != "shell":
        source, target = inside(source), None if target is None else inside(target)
    asked = named_of(releases, engine)
    loaded = api.load(source, "auto", Options(target=target), weights=False, shared=False)
    told = loaded.reading.draft
    if form != "shell" and target is None:
        target = target_inside(told.target.name, form)
    several = []
    for one in asked or (None,):
        inspection.require_same(loaded, engine, one)
        release = one.release if one else newest(engine)
        wanted = Serving(
            engine,
            release.seen(loaded.checkpoint.config),
            source,
            target or told.target.name or "TARGET",
            told.speculative_tokens or 3 if num_draft_tokens is None else num_draft_tokens,
            topk,
            target_config=loaded.target.text_config if loaded.target else None,
            version=one.version if one else None,
        )
        several.append(ServedBy(wanted, target, one))
    made = checked_extra(tuple(extra), several[-1].serving, command_for(several))
    own = judged_by_all(made.line, several)
    found = own if check is None else judged_by_all(check, several)
    remarks = [item for one in asked for item in one.remarks]
    remarks += [
        item for one in asked or (None,) for item in inspection.unasked(loaded, engine, one)
    ]
    versions = tuple(one.version for one in asked)
    around = None if form == "shell" else contained(several[-1].serving, made, versions)
    return Served(made, tuple(own), (*remarks, *found), around, form)
