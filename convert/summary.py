"""What a finished conversion tells people."""

from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import cast

from eagle3_interop.convert import api
from eagle3_interop.convert.commands import Converted
from eagle3_interop.convert.console import Console
from eagle3_interop.convert.decide import inspection
from eagle3_interop.convert.serve import command
from eagle3_interop.convert.write.shards import why_rewritten
from eagle3_interop.schemas.findings import Refused, Unavailable, Usage, errors
from eagle3_interop.schemas.registry import serving


def show(console: Console, done: Converted) -> None:
    """Say what a conversion did: findings, tensors, files, and how each engine is started with it.

    Args:
        console: where.
        done: the conversion.
    """
    conversion, findings, files, output = done.conversion, done.findings, done.files, done.output
    if not console.talks:
        console.findings(findings)
        return
    loaded = conversion.loaded
    console.line(
        f"{loaded.checkpoint.path} ({loaded.layout}) -> {output} ({conversion.destination})"
    )
    console.findings(findings)
    tensors = done.report()["tensors"]
    changed = [row for row in tensors if row["op"] != "kept"]
    kept = len(tensors) - len(changed)
    console.line(f"tensors: {kept} as they were, {len(changed)} changed")
    for row in changed:
        console.line(f"  {row['source'] or '-'} -> {row['output'] or '-'}: {row['op']}")
    if not changed and (
        why := why_rewritten(loaded, conversion.destination, conversion.plan.weights)
    ):
        console.line(f"  written anew all the same: {why}")
    for file in files:
        console.line(f"  {file.name}  {file.bytes:,} bytes, {file.how}")
    if not files:
        console.line("dry run: nothing was written")
    for line in _launch_lines(conversion, output, written=bool(files)):
        console.line(line)


def _launch_lines(conversion: api.Conversion, output: Path, *, written: bool) -> Iterator[str]:
    """How each engine is started with the output; where it would not run a written one, why."""
    place = str(output)
    target, config = conversion.loaded.target, conversion.fitted.writing.config
    theirs = target.text_config if target else None
    options = api.Options(target=target.path if target else None)
    again = cache(lambda: api.load(place, "auto", options, weights=False))
    engines = cast("tuple[command.Engine, ...]", serving(conversion.destination))
    for engine in engines:
        wanted = command.Serving(
            engine,
            config,
            place,
            options.target or "TARGET",
            conversion.fitted.draft.speculative_tokens or 3,
            target_config=theirs,
        )
        line = command.command(wanted).line
        try:
            inspection.require_captured(conversion.loaded, engine)
            if written:
                inspection.require_same(again(), engine)
            wrong = errors(command.judge(line, engine, config, place, theirs))
        except Refused as refused:
            wrong = errors(refused.findings)
        except (Unavailable, Usage) as failure:
            yield f"Could not check whether {engine} runs this output: {failure}"
            continue
        if wrong:
            why = " ".join(f"{item.message} {item.fix}".strip() for item in wrong)
            yield f"{engine} does not run this output as it is: {why}"
        else:
            yield from ("serve with:", f"  {line}")
