"""``eagle3-convert``: the commands, thin shells over `api`, `inspection` and `serve`."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from eagle3_interop.convert.console import (
    EXIT_DIFFERENT,
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
    from eagle3_interop.schemas.findings import Finding

app = typer.Typer(
    name="eagle3-convert",
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
    str, typer.Argument(callback=_hub_id, help="Folder, or Hub id ORG/NAME[@REVISION].")
]
TargetOpt = Annotated[
    str | None,
    typer.Option(
        "--target", metavar="PATH|ID", callback=_hub_id, help="The target (verifier) model."
    ),
]


TrainerOpt = Annotated[
    str | None,
    typer.Option(
        metavar="NAME",
        help="Read the draft as this trainer's code computes it; 'none': as engines serve it.",
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
            typer.Option(metavar="ORG/NAME", help="How to name the verifier where it is named."),
        ] = None,
        stock: Annotated[
            bool, typer.Option("--stock", help="Refuse what needs the SGLang plugin.")
        ] = False,
        taps: Annotated[
            str | None,
            typer.Option(
                metavar="LIST",
                help="Layers passed before each block of fc, in the trainer's order ('embed,3,31').",
            ),
        ] = None,
        sets: Annotated[
            list[str] | None,
            typer.Option("--set", metavar="KEY=VALUE", help="Overrule the description."),
        ] = None,
        trainer: TrainerOpt = None,
        dtype: Annotated[Dtype | None, typer.Option(help="Cast the weights.")] = None,
        max_shard_size: Annotated[
            str, typer.Option(metavar="SIZE", help="Split new files beyond it.")
        ] = "5GB",
        link: Annotated[
            bool, typer.Option("--link", help="Hard-link files that stay as they are.")
        ] = False,
        canonical_names: Annotated[
            bool, typer.Option("--canonical-names", help="Rename what would be accepted as it is.")
        ] = False,
        digest: Annotated[
            bool, typer.Option("--digest", help="Record the sha256 of weights, too.")
        ] = False,
        overwrite: Annotated[
            bool, typer.Option("--overwrite", help="Replace an output of this tool, if as written.")
        ] = False,
        dry_run: Annotated[bool, typer.Option("--dry-run", help="Plan only.")] = False,
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
                dtype,
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
        "auto": "any layout (recognised, and said)",
        "sglang": "SGLang's layout",
        "speculators": "speculators' layout",
        "vllm": "vLLM's layout",
        "universal": "one folder that all three load",
    }
    return names[layout]


for _source in SOURCES:
    for _destination in DESTINATIONS:
        _run = _conversion(_source, _destination)
        app.command(f"{_source}-to-{_destination}", short_help=_run.__doc__)(_run)


def _options(
    target: str | None,
    target_name: str | None,
    stock: bool,
    taps: str | None,
    sets: list[str] | None,
    trainer: str | None,
    dtype: Dtype | None,
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
        dtype=None if dtype is None else dtype_named(dtype),
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
    json: JsonFlag = False,
    quiet: QuietFlag = False,
) -> None:
    """What a draft is, and who can run it.

    For each framework: what it would make of the folder as it is, and of a conversion.
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

        loaded = api.load(
            source,
            "auto",
            api.Options(target=target, trainer=trainer),
            weights=False,
            shared=False,
        )
        engines = inspection.engines(loaded)
        draft = loaded.reading.draft
        console.result(f"{source}: {loaded.layout} layout")
        for line in api.describe(draft):
            console.result(f"  {line}")
        for engine, facts in engines.items():
            reasons = f" ({', '.join(facts['reasons'])})" if facts["reasons"] else ""
            console.result(
                f"  {engine}: as it is {facts['as_is']}; converted: {facts['convertible']}{reasons}"
            )
            for path, values in facts["differences"].items():
                ours, theirs = (inspection.shown(path, value) for value in values)
                console.result(f"    {path}: {ours}, but {engine} computes {theirs}")
        console.findings(loaded.reading.findings)
        console.data(
            {
                "status": "ok",
                "source": {"layout": loaded.layout, "path": source},
                "draft": draft.model_dump(mode="json"),
                "trainer": loaded.trainer and loaded.trainer.report(),
                "findings": [item.model_dump() for item in loaded.reading.findings],
                "engines": engines,
            }
        )


@app.command()
def diff(
    one: Annotated[str, typer.Argument(metavar="A", callback=_hub_id, help="Folder or Hub id.")],
    other: Annotated[str, typer.Argument(metavar="B", callback=_hub_id, help="Folder or Hub id.")],
    target: TargetOpt = None,
    json: JsonFlag = False,
    quiet: QuietFlag = False,
) -> None:
    """Whether two drafts are the same network.

    Whatever their layouts are. Exit code 1: they are not.
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
def explain(
    code: Annotated[str, typer.Argument(help="A finding's code.")],
    json: JsonFlag = False,
    quiet: QuietFlag = False,
) -> None:
    """What a finding means, and what to do."""
    console = Console(as_json=json, quiet=quiet)
    with console.outcomes(lambda _found: {}):
        from eagle3_interop.schemas.codes import CODES
        from eagle3_interop.schemas.findings import Usage

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


@app.command()
def serve(
    source: SourceArg,
    engine: Annotated[Literal["vllm", "sglang"], typer.Option(help="Which engine serves it.")],
    target: TargetOpt = None,
    num_draft_tokens: Annotated[
        int | None, typer.Option(metavar="K", help="Proposed tokens a step.")
    ] = None,
    topk: Annotated[int, typer.Option(metavar="N", help="Branches a step (SGLang).")] = 1,
    check: Annotated[
        str | None, typer.Option(metavar='"ARGS"', help="Judge this launch command.")
    ] = None,
    json: JsonFlag = False,
    quiet: QuietFlag = False,
) -> None:
    """The exact launch command, or a check of one.

    Exit code 1: the command is wrong, the one that --check gives or, without it, any for this pair.
    """
    console = Console(as_json=json, quiet=quiet)

    def refused(found: "tuple[Finding, ...]") -> dict[str, Any]:
        return {"status": "refused", "findings": [item.model_dump() for item in found]}

    with console.outcomes(refused):
        from eagle3_interop.convert import api
        from eagle3_interop.convert.decide import inspection
        from eagle3_interop.convert.serve import command as serving
        from eagle3_interop.schemas.findings import errors

        loaded = api.load(source, "auto", api.Options(target=target), weights=False, shared=False)
        inspection.require_same(loaded, engine)
        config = loaded.checkpoint.config
        theirs = loaded.target.text_config if loaded.target else None
        wanted = serving.Serving(
            engine,
            config,
            source,
            target or loaded.reading.draft.target.name or "TARGET",
            loaded.reading.draft.speculative_tokens or 3
            if num_draft_tokens is None
            else num_draft_tokens,
            topk,
            target_config=theirs,
        )
        line = serving.command(wanted).line
        own = serving.judge(line, engine, config, source, theirs, target)
        found = (
            own if check is None else serving.judge(check, engine, config, source, theirs, target)
        )
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


def main() -> None:
    """Entry point of ``eagle3-convert``."""
    launch(app)
