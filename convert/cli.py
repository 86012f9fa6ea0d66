"""``eagle3-convert``: the commands, thin shells over `commands`."""

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
    from eagle3_interop.convert.commands import Inspected
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
            from eagle3_interop.convert import commands
            from eagle3_interop.convert.summary import show

            done = commands.convert(
                source,
                output,
                destination,
                layout=layout,
                options=options,
                link=link,
                overwrite=overwrite,
                digest=digest,
                dry_run=dry_run,
                writing=lambda size: console.progress("writing", size, "bytes"),
            )
            show(console, done)
            console.data(done.report())

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
    from eagle3_interop.convert.decide.overrides import parse_sets, parse_size, parse_taps

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
        from eagle3_interop.convert import commands
        from eagle3_interop.convert.api import Options

        seen = commands.inspect(
            source,
            Options(
                target=target,
                trainer=trainer,
                allow=tuple(allow or ()),
                releases=tuple(releases or ()),
            ),
        )
        if not json:
            _show_inspected(console, seen)
        console.findings(seen.findings)
        if seen.findings and console.talks:
            console.remark("eagle3-convert explain CODE says what a finding means.")
        console.data(seen.report())
    if seen.wrong:
        raise typer.Exit(EXIT_REFUSED)


def _show_inspected(console: Console, seen: "Inspected") -> None:
    from rich.table import Table
    from rich.text import Text

    from eagle3_interop.convert.decide import description, inspection
    from eagle3_interop.convert.tables import Figures

    loaded, facts = seen.loaded, seen.facts
    console.result(f"{seen.source}: {loaded.layout} layout")
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
        from eagle3_interop.convert import commands
        from eagle3_interop.convert.api import Options
        from eagle3_interop.convert.decide import inspection

        found = commands.compare(
            one,
            other,
            Options(target=target),
            comparing=lambda: console.progress("comparing", 0, "tensors"),
        )
        for path, values in found.result["differences"].items():
            left_value, right_value = (inspection.shown(path, value) for value in values)
            console.result(f"{path}: {left_value} in A, {right_value} in B")
        for name, state in found.result["tensors"].items():
            console.result(f"{name}: {state}")
        console.findings(found.findings)
        same = "the same network" if found.same else "different networks"
        left, right = found.drafts
        console.result(f"{same} ({left.layout}, {right.layout})")
        console.data(found.report())
    if not found.same:
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
            help="Draft tokens proposed in a row; of a tree its steps (default: what the checkpoint says, else 3).",
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
    form: Annotated[
        Literal["shell", "docker", "compose", "k8s"],
        typer.Option("--format", help="Print the command, or what runs it in a container."),
    ] = "shell",
    extra: Annotated[
        list[str] | None,
        typer.Argument(metavar="[-- FLAGS]", help="Flags of the engine's own, passed on."),
    ] = None,
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
        from eagle3_interop.convert import commands
        from eagle3_interop.schemas.findings import errors

        served = commands.serve(
            source,
            engine,
            target=target,
            num_draft_tokens=num_draft_tokens,
            topk=topk,
            check=check,
            releases=releases or (),
            form=form,
            extra=extra or (),
        )
        found = served.findings
        console.findings(found)
        if check is not None and not errors(found):
            warned = any(item.severity == "warning" for item in found)
            but = ", but for the warnings" if warned else ""
            console.result(f"the command fits this draft{but}")
        elif check is None or not errors(served.own):
            console.result(served.text.rstrip())
        console.data(served.report())
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
