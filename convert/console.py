"""What people and programs see: data on stdout, everything else on stderr, one exit code table."""

import json
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.metadata import version
from itertools import pairwise
from typing import Annotated, Any

import typer

from eagle3_interop.schemas.findings import Finding, Refused, Unavailable, Usage

EXIT_DIFFERENT, EXIT_USAGE, EXIT_REFUSED, EXIT_UNAVAILABLE = 1, 2, 3, 4

JsonFlag = Annotated[bool, typer.Option("--json", help="Print one JSON object on stdout.")]
QuietFlag = Annotated[bool, typer.Option("--quiet", help="Print errors only.")]


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"eagle3-interop {version('eagle3-interop')}")
        raise typer.Exit


VersionFlag = Annotated[
    bool,
    typer.Option("--version", callback=_show_version, is_eager=True, help="Print the version."),
]


def launch(app: typer.Typer, *, json_to_file: bool = False) -> None:
    """Run the commands; wrong options, too, are one JSON object where JSON was asked for.

    Args:
        app: the commands.
        json_to_file: ``--json`` is no flag, but names a file, ``-`` for stdout.

    Raises:
        SystemExit: always, with the exit code.
    """
    words = sys.argv[1:]
    as_json = "--json" in words
    if json_to_file:
        as_json = "--json=-" in words or ("--json", "-") in pairwise(words)
    if wrong := _wrong_word(words):
        Console(as_json=as_json).fail(wrong, EXIT_USAGE)
        sys.exit(EXIT_USAGE)
    try:
        sys.exit(app(standalone_mode=False))
    except typer.Abort:
        sys.exit(EXIT_DIFFERENT)
    except Exception as error:
        # typer's own faults, which have no base class that all its versions name alike
        if not (hasattr(error, "show") and hasattr(error, "format_message")):
            raise
        error.show()
        Console(as_json=as_json).data(_failure(error.format_message(), EXIT_USAGE))
        sys.exit(EXIT_USAGE)


def _wrong_word(words: Sequence[str]) -> str:
    """What no command can mean, if there is any: nothing is not left out, and every text is UTF-8."""
    for before, word in pairwise(["", *words]):
        if not word or re.fullmatch(r"--[a-z-]+=", word):
            place = word[:-1] or before
            after = f" after {place}" if place else ""
            return f"an empty word{after}; was a variable of the shell not set?"
        if re.search("[\ud800-\udfff]", word):
            return f"{word!a}: not UTF-8"
    return ""


def _failure(message: str, code: int) -> dict[str, Any]:
    return {"status": "failed", "message": message, "exit_code": code}


def _printable(text: str) -> str:
    """The text as far as stdout's encoding has its characters."""
    encoding = getattr(sys.stdout, "encoding", None) or "utf-8"
    return text.encode(encoding, "backslashreplace").decode(encoding)


_MARKS = {"error": ("✗", "red"), "warning": ("!", "yellow"), "note": ("·", "cyan")}


class Console:
    """Where output goes, in the form that the user asked for."""

    def __init__(self, *, as_json: bool = False, quiet: bool = False) -> None:
        """Choose the form: for people, as JSON, or errors only."""
        self.as_json = as_json
        self.quiet = quiet

    @property
    def talks(self) -> bool:
        """Whether there is anybody to read remarks."""
        return not (self.as_json or self.quiet)

    def line(self, text: str = "") -> None:
        """A line of the result, for people."""
        if self.talks:
            typer.echo(_printable(text))

    def data(self, value: Mapping[str, Any]) -> None:
        """The one JSON object, when it was asked for."""
        if self.as_json:
            text = json.dumps(value, indent=2, ensure_ascii=False)
            typer.echo(text if _printable(text) == text else json.dumps(value, indent=2))

    def findings(self, found: Iterable[Finding], *, notes: bool = True) -> None:
        """Remarks on stderr, errors first; quiet leaves errors."""
        order = {"error": 0, "warning": 1, "note": 2}
        for item in sorted(found, key=lambda item: order[item.severity]):
            if item.severity != "error" and (self.quiet or self.as_json):
                continue
            if item.severity == "note" and not notes:
                continue
            mark, colour = _MARKS[item.severity]
            typer.secho(f"{mark} {item.code}", fg=colour, bold=True, err=True, nl=False)
            typer.echo(f"  {item.where}: {item.message}", err=True)
            if item.fix and item.severity != "note":
                typer.echo(f"    {item.fix}", err=True)

    def error(self, text: str) -> None:
        """One line about what went wrong."""
        typer.secho(f"error: {text}", fg="red", err=True)

    @contextmanager
    def outcomes(
        self, refused: Callable[[tuple[Finding, ...]], Mapping[str, Any]]
    ) -> Iterator[None]:
        """Turn what a command raises into remarks, JSON and the exit code.

        Args:
            refused: makes the JSON of a refusal from its findings.
        """
        try:
            yield
        except Refused as error:
            self.findings(error.findings)
            self.data(refused(error.findings))
            raise typer.Exit(EXIT_REFUSED) from None
        except Usage as error:
            self.fail(str(error), EXIT_USAGE)
            raise typer.Exit(EXIT_USAGE) from None
        except Unavailable as error:
            self.fail(str(error), EXIT_UNAVAILABLE)
            raise typer.Exit(EXIT_UNAVAILABLE) from None
        except BrokenPipeError:
            # Whoever read stdout has left (a pager, head); that is no failure of ours.
            sys.stderr.close()
            raise typer.Exit from None

    def fail(self, message: str, code: int) -> None:
        """What went wrong, for people and as the JSON object."""
        self.error(message)
        self.data(_failure(message, code))

    @contextmanager
    def progress(self, title: str, total: int) -> Iterator[Callable[[int], None] | None]:
        """A progress bar over bytes on stderr; none where nobody watches or little is to be done."""
        if not self.talks or not sys.stderr.isatty() or total < 64 * 2**20:
            yield None
            return
        from rich.console import Console as RichConsole
        from rich.progress import BarColumn, DownloadColumn, Progress, TransferSpeedColumn

        bar = Progress(
            "{task.description}",
            BarColumn(),
            DownloadColumn(),
            TransferSpeedColumn(),
            console=RichConsole(stderr=True),
            transient=True,
        )
        with bar:
            task = bar.add_task(title, total=total)
            yield lambda count: bar.advance(task, count)
