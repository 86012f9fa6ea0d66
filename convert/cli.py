"""``eagle3-convert``: the commands, thin shells over `api`, `inspection` and `serve`."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
from typer.core import TyperGroup

from eagle3_interop.convert.console import (
    EXIT_DIFFERENT,
    EXIT_REFUSED,
    SETTINGS,
    Console,
    Dtype,
    JsonFlag,
    QuietFlag,
    VersionFlag,
    dtype_named,
    launch,
)

if TYPE_CHECKING:
    from eagle3_interop.convert.api import Options
    from eagle3_interop.convert.decide.loaded import Loaded
    from eagle3_interop.schemas.findings import Finding


class _Panels(TyperGroup):
    """Commands under the heading of their panel, in the order in which they are declared."""

    def format_commands(self, ctx: Any, formatter: Any) -> None:  # noqa: ANN401, ARG002 - of typer or of click
        """Write the lists of commands; those without a panel first."""
        panels: dict[str, list[str]] = {}
        for name, command in self.commands.items():
            panel = getattr(command, "rich_help_panel", None)
            panels.setdefault(panel if isinstance(panel, str) else "Commands", []).append(name)
        for title, names in panels.items():
            limit = formatter.width - 4 - max(map(len, names))
            with formatter.section(title):
                formatter.write_dl(
                    [(name, self.commands[name].get_short_help_str(limit)) for name in names]
                )


app = typer.Typer(
    name="eagle3-convert",
    cls=_Panels,
    help="Move EAGLE-3 drafts between speculators, SGLang and vLLM, exactly or not at all.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings=SETTINGS,
)

# The names of schemas.registry, typed out so that --help imports no schemas; a test compares them.
SOURCES = ("speculators", "sglang", "vllm", "auto")
DESTINATIONS = ("speculators", "sglang", "vllm", "universal")


def _hub_id(word: str | None) -> str | None:
    from eagle3_interop.convert.read.folders import hub_id

    return None if word is None else hub_id(word)


SourceArg = Annotated[
    str, typer.Argument(callback=_hub_id, help="The draft: folder, or Hub id ORG/NAME[@REVISION].")
]
TargetOpt = Annotated[
    str | None,
    typer.Option(
        "--target",
        metavar="PATH|ID",
        callback=_hub_id,
        help="The target (verifier) model: folder or Hub id.",
    ),
]


TrainerOpt = Annotated[
    str | None,
    typer.Option(
        metavar="NAME",
        help="Read the draft as this trainer's code computes it; 'none': as the engines serve it.",
    ),
]


AllowOpt = Annotated[
    list[str] | None,
    typer.Option(
        metavar="CODE", help="Accept the loss of what was trained and no engine computes."
    ),
]


ForOpt = Annotated[
    list[str] | None,
    typer.Option(
        "--for",
        metavar="ENGINE==VERSION",
        help="A release of an engine that has to run it, by the start of its version; may be given several times.",
    ),
]


@app.callback()
def _everywhere(version: VersionFlag = False) -> None:
    """Move EAGLE-3 drafts between speculators, SGLang and vLLM, exactly or not at all."""


def _conversion(layout: str, destination: str) -> Callable[..., None]:
    def run(
        source: SourceArg,
        output: Annotated[Path, typer.Argument(help="Folder to write.")],
        target: TargetOpt = None,
        target_name: Annotated[
            str | None,
            typer.Option(
                metavar="ORG/NAME",
                help="Hub id of the target to write into the output's config (default: the target's own).",
            ),
        ] = None,
        stock: Annotated[
            bool,
            typer.Option(
                "--stock", help="Refuse a draft that SGLang runs only with this package's plugin."
            ),
        ] = False,
        taps: Annotated[
            str | None,
            typer.Option(
                metavar="LIST",
                help="Target layers whose hidden states fc was trained on, in concatenation order; 'embed' for the embedding output, N for the input of layer N.",
            ),
        ] = None,
        sets: Annotated[
            list[str] | None,
            typer.Option(
                "--set",
                metavar="KEY=VALUE",
                help="Override one value read from the checkpoint, e.g. rope.theta=1e6.",
            ),
        ] = None,
        trainer: TrainerOpt = None,
        allow: AllowOpt = None,
        releases: ForOpt = None,
        dtype: Annotated[
            Dtype | None, typer.Option(help="Cast the weights to this dtype (default: as stored).")
        ] = None,
        dequantize: Annotated[
            bool,
            typer.Option(
                "--dequantize",
                help="Write quantised weights as the plain ones that they stand for.",
            ),
        ] = False,
        max_shard_size: Annotated[
            str,
            typer.Option(
                metavar="SIZE", help="Largest size of a weight file that has to be rewritten."
            ),
        ] = "5GB",
        link: Annotated[
            bool, typer.Option("--link", help="Hard-link unchanged files instead of copying them.")
        ] = False,
        canonical_names: Annotated[
            bool,
            typer.Option(
                "--canonical-names",
                help="Rename all tensors to the destination's usual names, even if its loader accepts the current ones.",
            ),
        ] = False,
        digest: Annotated[
            bool,
            typer.Option(
                "--digest", help="Record the sha256 of weight files in eagle3_interop.json, too."
            ),
        ] = False,
        overwrite: Annotated[
            bool,
            typer.Option(
                "--overwrite",
                help="Replace an earlier output of this tool that nobody has changed since.",
            ),
        ] = False,
        dry_run: Annotated[
            bool, typer.Option("--dry-run", help="Decide and report everything, write nothing.")
        ] = False,
        json: JsonFlag = False,
        quiet: QuietFlag = False,
    ) -> None:
        console = Console(as_json=json, quiet=quiet)

        def refused(found: "tuple[Finding, ...]") -> dict[str, Any]:
            return {
                "status": "refused",
                "source": {"layout": layout, "path": source},
                "output": {"layout": destination, "path": str(output)},
                "draft": None,
                "trainer": None,
                "findings": [item.model_dump() for item in found],
                "tensors": [],
            }

        with console.outcomes(refused):
            options = _options(
                target,
                target_name,
                stock,
                taps,
                sets,
                trainer,
                allow,
                releases,
                dtype,
                dequantize,
                max_shard_size,
                canonical_names,
            )
            _convert(
                console,
                source,
                output,
                layout,
                destination,
                options,
                link=link,
                overwrite=overwrite,
                digest=digest,
                dry_run=dry_run,
            )

    run.__doc__ = f"Convert {_called(layout)} to {_called(destination)}."
    return run


def _called(layout: str) -> str:
    names = {
        "auto": "a draft in any layout (detected automatically)",
        "sglang": "SGLang's layout",
        "speculators": "speculators' layout",
        "vllm": "vLLM's layout",
        "universal": "one folder that all three frameworks load",
    }
    return names[layout]


def _options(
    target: str | None,
    target_name: str | None,
    stock: bool,
    taps: str | None,
    sets: list[str] | None,
    trainer: str | None,
    allow: list[str] | None,
    releases: list[str] | None,
    dtype: Dtype | None,
    dequantize: bool,
    max_shard_size: str,
    canonical_names: bool,
) -> "Options":
    from eagle3_interop.convert.api import Options
    from eagle3_interop.convert.decide.overrides import parse_sets, parse_taps

    return Options(
        target=target,
        target_name=target_name,
        stock=stock,
        taps=None if taps is None else parse_taps(taps),
        sets=parse_sets(sets or []),
        trainer=trainer,
        allow=tuple(allow or ()),
        releases=tuple(releases or ()),
        dtype=None if dtype is None else dtype_named(dtype),
        dequantize=dequantize,
        max_shard_bytes=parse_size(max_shard_size),
        canonical_names=canonical_names,
    )


def parse_size(text: str) -> int:
    """A size such as ``5GB``, ``500MB`` or a number of bytes.

    Raises:
        Usage: anything else.
    """
    from eagle3_interop.schemas.findings import Usage

    units = {"": 1, "B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([KMGT]?B?)", text.strip().upper())
    size = float(match[1]) * units[match[2]] if match and match[2] in units else 0.0
    if not 1 <= size < 2**63:
        raise Usage(f"--max-shard-size {text[:40]!r}: give a size such as 5GB.")
    return int(size)


def _convert(
    console: Console,
    source: str,
    output: Path,
    layout: str,
    destination: str,
    options: "Options",
    *,
    link: bool,
    overwrite: bool,
    digest: bool,
    dry_run: bool,
) -> None:
    from eagle3_interop.convert import api
    from eagle3_interop.convert.read.folders import local_path
    from eagle3_interop.convert.summary import show
    from eagle3_interop.convert.write import stream
    from eagle3_interop.convert.write.places import check_folder

    output = local_path(output)
    check_folder(output, (source, options.target), overwrite=overwrite)
    loaded = api.load(source, layout, options)
    conversion = api.convert(loaded, destination, options)
    files: tuple[stream.FileResult, ...] = ()
    findings = list(conversion.fitted.findings)
    if dry_run:
        stream.check(conversion.plan, output, link=link, overwrite=overwrite)
    else:
        with console.progress(
            "writing", stream.planned_bytes(conversion.plan), "bytes"
        ) as progress:
            result = api.write(
                conversion,
                output,
                link=link,
                overwrite=overwrite,
                digest=digest,
                progress=progress,
            )
        files = result.files
        findings += api.said_of(result)
    report = conversion.report(str(output), findings=findings)
    show(console, conversion, report, findings, files, output)
    console.data(report)


@app.command()
def inspect(
    source: SourceArg,
    target: TargetOpt = None,
    trainer: TrainerOpt = None,
    allow: AllowOpt = None,
    releases: ForOpt = None,
    json: JsonFlag = False,
    quiet: QuietFlag = False,
) -> None:
    """Describe a draft, and say which framework runs it.

    For each framework and its releases: whether it runs this folder correctly, whether a conversion would,
    and why not.
    Exit code 3: the folder has errors, which stand beside its description.
    """
    console = Console(as_json=json, quiet=quiet)

    def refused(found: "tuple[Finding, ...]") -> dict[str, Any]:
        return {
            "status": "refused",
            "source": {"layout": None, "path": source},
            "draft": None,
            "trainer": None,
            "findings": [item.model_dump() for item in found],
            "engines": {},
        }

    with console.outcomes(refused):
        from eagle3_interop.convert import api
        from eagle3_interop.convert.decide import inspection
        from eagle3_interop.schemas.engines.releases import parse_named
        from eagle3_interop.schemas.findings import errors

        wanted = parse_named(releases or ())
        loaded = api.load(
            source,
            "auto",
            api.Options(target=target, trainer=trainer, allow=tuple(allow or ())),
            weights=False,
            describing=True,
            shared=False,
        )
        facts = inspection.judged(loaded, wanted)
        wrong = errors(loaded.reading.findings)
        said = [*loaded.reading.findings, *(item for one in wanted for item in one.remarks)]
        if not json:
            _show_inspected(console, source, loaded, facts)
        console.findings(said)
        if said and console.talks:
            console.remark("eagle3-convert explain CODE says what a finding means.")
        console.data(
            {
                "status": "refused" if wrong else "ok",
                "source": {"layout": loaded.layout, "path": source},
                "draft": loaded.reading.draft.model_dump(mode="json"),
                "trainer": loaded.trainer and loaded.trainer.report(),
                "findings": [item.model_dump() for item in said],
                "engines": inspection.as_json(facts),
            }
        )
    if wrong:
        raise typer.Exit(EXIT_REFUSED)


def _show_inspected(
    console: Console, source: str, loaded: "Loaded", facts: dict[str, dict[str, Any]]
) -> None:
    from rich.table import Table
    from rich.text import Text

    from eagle3_interop.convert.decide import description, inspection
    from eagle3_interop.convert.tables import Figures

    console.result(f"{source}: {loaded.layout} layout")
    described = Table.grid(padding=(0, 2, 0, 0))
    described.add_column(no_wrap=True)
    described.add_column(overflow="fold")
    for name, value in description.named(loaded):
        described.add_row(f"  {name}", Text(value))
    table = inspection.rows(loaded, facts)
    releases = inspection.release_rows(loaded, facts)
    states = [(*row[:1], *row[2:4]) for row in releases]
    legend = [*description.words(), *inspection.meanings([*table, *states])]
    by_release = [Figures("", inspection.RELEASE_COLUMNS, releases, prose=True), Text()]
    console.show(
        described,
        Text(),
        Figures("", inspection.COLUMNS, table, prose=True),
        Text(),
        *(by_release if releases else ()),
        *(Text(line) for line in legend),
    )


@app.command()
def diff(
    one: Annotated[str, typer.Argument(metavar="A", callback=_hub_id, help="Folder or Hub id.")],
    other: Annotated[str, typer.Argument(metavar="B", callback=_hub_id, help="Folder or Hub id.")],
    target: TargetOpt = None,
    json: JsonFlag = False,
    quiet: QuietFlag = False,
) -> None:
    """Compare two drafts: are they the same network?

    Their layouts may differ. Exit code 1: they are different networks.
    """
    console = Console(as_json=json, quiet=quiet)

    def refused(found: "tuple[Finding, ...]") -> dict[str, Any]:
        return {"status": "refused", "findings": [item.model_dump() for item in found]}

    with console.outcomes(refused):
        from eagle3_interop.convert import api
        from eagle3_interop.convert.decide import inspection

        options = api.Options(target=target)
        left, right = (api.load(x, "auto", options, shared=False) for x in (one, other))
        with console.progress("comparing", 0, "tensors"):
            result = inspection.compare(left, right)
        guessed = [
            item for x in (left, right) for item in x.reading.findings if item.severity == "warning"
        ]
        for path, values in result["differences"].items():
            left_value, right_value = (inspection.shown(path, value) for value in values)
            console.result(f"{path}: {left_value} in A, {right_value} in B")
        for name, state in result["tensors"].items():
            console.result(f"{name}: {state}")
        console.findings(guessed)
        same = "the same network" if result["same"] else "different networks"
        console.result(f"{same} ({left.layout}, {right.layout})")
        console.data(
            {
                "status": "same" if result["same"] else "different",
                "a": {"layout": left.layout, "path": one},
                "b": {"layout": right.layout, "path": other},
                "differences": result["differences"],
                "tensors": result["tensors"],
                "findings": [item.model_dump() for item in guessed],
            }
        )
    if not result["same"]:
        raise typer.Exit(EXIT_DIFFERENT)


@app.command()
def serve(
    source: SourceArg,
    engine: Annotated[Literal["vllm", "sglang"], typer.Option(help="The engine to serve with.")],
    target: TargetOpt = None,
    num_draft_tokens: Annotated[
        int | None,
        typer.Option(
            metavar="K",
            help="Draft tokens proposed a step (default: what the checkpoint says, else 3).",
        ),
    ] = None,
    topk: Annotated[
        int,
        typer.Option(metavar="N", help="Top-k of the draft tree; SGLang only, 1 drafts a chain."),
    ] = 1,
    check: Annotated[
        str | None,
        typer.Option(
            metavar='"ARGS"', help="Check this launch command against the draft and the target."
        ),
    ] = None,
    releases: ForOpt = None,
    json: JsonFlag = False,
    quiet: QuietFlag = False,
) -> None:
    """Print the launch command for a draft, or check yours.

    Exit code 1: the command given with --check is wrong, or no correct command exists for this draft
    and target.
    """
    console = Console(as_json=json, quiet=quiet)

    def refused(found: "tuple[Finding, ...]") -> dict[str, Any]:
        return {"status": "refused", "findings": [item.model_dump() for item in found]}

    with console.outcomes(refused):
        from eagle3_interop.convert import api
        from eagle3_interop.convert.decide import inspection
        from eagle3_interop.convert.serve.launch import Serving
        from eagle3_interop.convert.serve.several import Served, command_for, judged_by_all
        from eagle3_interop.schemas.engines.releases import named_of, newest
        from eagle3_interop.schemas.findings import errors

        asked = named_of(releases or (), engine)
        loaded = api.load(source, "auto", api.Options(target=target), weights=False, shared=False)
        told = loaded.reading.draft
        served = []
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
            served.append(Served(wanted, target, one))
        line = command_for(served)
        own = judged_by_all(line, served)
        found = own if check is None else judged_by_all(check, served)
        found = [*(item for one in asked for item in one.remarks), *found]
        console.findings(found)
        if check is not None and not errors(found):
            warned = any(item.severity == "warning" for item in found)
            but = ", but for the warnings" if warned else ""
            console.result(f"the command fits this draft{but}")
        elif check is None or not errors(own):
            console.result(line)
        console.data(
            {
                "status": "wrong" if errors(found) else "ok",
                "command": line,
                "findings": [item.model_dump() for item in found],
            }
        )
    if errors(found):
        raise typer.Exit(EXIT_DIFFERENT)


@app.command()
def explain(
    code: Annotated[
        str | None, typer.Argument(help="A finding's code (default: list all codes).")
    ] = None,
    json: JsonFlag = False,
    quiet: QuietFlag = False,
) -> None:
    """Say what a finding means, and what to do.

    Without a code: list every finding with its meaning.
    """
    console = Console(as_json=json, quiet=quiet)
    with console.outcomes(lambda _found: {}):
        from eagle3_interop.schemas.codes import CODES
        from eagle3_interop.schemas.findings import Usage

        if code is None:
            for name, entry in sorted(CODES.items()):
                console.result(f"{name} ({entry.severity}): {entry.meaning}")
            console.data(
                {
                    name: {"severity": entry.severity, "meaning": entry.meaning, "fix": entry.fix}
                    for name, entry in sorted(CODES.items())
                }
            )
            return
        if code not in CODES:
            import difflib

            near = difflib.get_close_matches(code, CODES, n=3)
            raise Usage(
                f"no finding is called {code!r}" + (f"; {', '.join(near)}?" if near else "")
            )
        entry = CODES[code]
        console.result(f"{code} ({entry.severity})")
        console.result(entry.meaning)
        if entry.fix:
            console.result(f"What to do: {entry.fix}")
        row = {"severity": entry.severity, "meaning": entry.meaning, "fix": entry.fix}
        console.data({"code": code, **row})


for _source in SOURCES:
    for _destination in DESTINATIONS:
        _run = _conversion(_source, _destination)
        app.command(
            f"{_source}-to-{_destination}",
            short_help=_run.__doc__,
            rich_help_panel="Conversions",
        )(_run)


def main() -> None:
    """Entry point of ``eagle3-convert``."""
    launch(app)
