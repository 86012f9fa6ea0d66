"""What people and programs see: data on stdout, everything else on stderr, one exit code table."""

import io
import json
import os
import re
import shutil
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from importlib.metadata import version
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, TextIO

import typer

from eagle3_interop.schemas.findings import Finding, Refused, Unavailable, Usage

if TYPE_CHECKING:
    from rich.console import RenderableType

EXIT_DIFFERENT, EXIT_USAGE, EXIT_REFUSED, EXIT_UNAVAILABLE = 1, 2, 3, 4
EXIT_INTERRUPTED = 130
"""As a shell says of a command that Ctrl-C ended."""

TRACEBACK = "EAGLE3_TRACEBACK"
"""Environment variable that shows where an unforeseen failure came from."""

EVERY = 15.0
"""Seconds between two lines of progress where no terminal shows a bar."""

_BAR_FROM = 64 * 2**20
_NO_END = 10_000
_WIDE = 110

SETTINGS = {"help_option_names": ["-h", "--help"]}
"""Of every command."""

Dtype = Literal["bfloat16", "float16", "float32", "bf16", "fp16", "fp32"]
_DTYPES = {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32"}

JsonFlag = Annotated[bool, typer.Option("--json", help="Print one JSON object on stdout.")]
QuietFlag = Annotated[bool, typer.Option("--quiet", help="Print the result and errors only.")]


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"eagle3-interop {version('eagle3-interop')}")
        raise typer.Exit


VersionFlag = Annotated[
    bool,
    typer.Option("--version", callback=_show_version, is_eager=True, help="Print the version."),
]


def dtype_named(name: str) -> str:
    """A dtype by its full name."""
    return _DTYPES.get(name, name)


def launch(app: typer.Typer, *, json_to_file: bool = False) -> None:
    """Run the commands; whatever happens ends in an exit code of the table and a sentence.

    Wrong options, too, are one JSON object where JSON was asked for.

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
    console = Console(as_json=as_json)
    try:
        code = _guarded(app, console, words)
        _flush_stdout()
    except Unavailable as error:
        console.error(str(error))
        code = EXIT_UNAVAILABLE
    sys.exit(code)


def _guarded(app: typer.Typer, console: "Console", words: Sequence[str]) -> int:
    if wrong := _wrong_word(words):
        console.fail(wrong, EXIT_USAGE)
        return EXIT_USAGE
    code = EXIT_INTERRUPTED
    try:
        code = app(standalone_mode=False) or 0
    except (typer.Abort, KeyboardInterrupt):
        pass
    except Unavailable:
        raise
    except SystemExit as left:
        # typer's own way out: after its work on completion, or where it met a closed pipe
        if isinstance(left.__context__, OSError):
            raise _unwritable(left.__context__) from None
        return left.code if isinstance(left.code, int) else 0
    except Exception as error:
        # typer's own faults, which have no base class that all its versions name alike
        if hasattr(error, "show") and hasattr(error, "format_message"):
            with _stderr_may_fail():
                error.show()
            console.data(_failure(error.format_message(), EXIT_USAGE))
            return EXIT_USAGE
        _flush_stdout()
        if os.environ.get(TRACEBACK, "0") not in ("", "0"):
            with _stderr_may_fail():
                traceback.print_exc()
        console.fail(_unforeseen(error), EXIT_UNAVAILABLE)
        return EXIT_UNAVAILABLE
    if code == EXIT_INTERRUPTED:
        console.fail("interrupted", code)
    return code


def _unforeseen(error: Exception) -> str:
    """What nobody thought of, in a sentence or two."""
    if isinstance(error, MemoryError):
        return f"out of memory: {_first_line(error)}"
    if isinstance(error, OSError) and error.strerror:
        return f"{error.filename or 'reading or writing failed'}: {error.strerror}"
    frames = traceback.extract_tb(error.__traceback__)
    ours = [one for one in frames if Path(one.filename).resolve().is_relative_to(_ROOT)] or frames
    where = ours[-1:]
    place = f" ({Path(where[0].filename).name}:{where[0].lineno})" if where else ""
    return (
        f"unforeseen: {type(error).__name__}: {_first_line(error)}{place}. This is a fault of "
        f"eagle3-interop {version('eagle3-interop')}, whatever it was given: please report this "
        f"line and the command; with {TRACEBACK}=1 in the environment the traceback shows."
    )


_ROOT = Path(__file__).resolve().parents[1]


def _first_line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0][:300] or type(error).__name__


def _flush_stdout() -> None:
    """Bring out what was printed, while it can still be said that this failed.

    Raises:
        Unavailable: stdout does not take it.
    """
    try:
        if sys.stdout is not None:
            sys.stdout.flush()
    except OSError as error:
        raise _unwritable(error) from None


def _unwritable(error: OSError) -> Unavailable:
    """What to raise where stdout takes nothing; nothing more is written to it, at exit neither."""
    _abandon(sys.stdout)
    return Unavailable(f"stdout cannot be written, its text is lost: {error.strerror}")


def _abandon(stream: TextIO | None) -> None:
    with suppress(OSError, ValueError, AttributeError):
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, stream.fileno())  # type: ignore[union-attr]
        os.close(null)


@contextmanager
def _stderr_may_fail() -> Iterator[None]:
    """Where remarks cannot be written the exit code still speaks."""
    try:
        yield
    except OSError:
        _abandon(sys.stderr)


def colours(stream: TextIO | None) -> bool:
    """Whether to colour what goes there, by no-color.org and bixense.com/clicolors."""
    said = os.environ
    if said.get("NO_COLOR"):
        return False
    if said.get("FORCE_COLOR") == "0":
        return False
    if any(said.get(name, "0") not in ("", "0") for name in ("FORCE_COLOR", "CLICOLOR_FORCE")):
        return True
    if said.get("CLICOLOR") == "0" or said.get("TERM") == "dumb":
        return False
    return stream is not None and stream.isatty()


def _wrong_word(words: Sequence[str]) -> str:
    """What no command can mean, if there is any: nothing is not left out, and every text is UTF-8."""
    for before, word in pairwise(["", *words]):
        if not word or re.fullmatch(r"--[a-z-]+=", word):
            place = word[:-1] or before
            whose = f" for {place}" if place else ""
            return f"empty value{whose} (unset shell variable?)"
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
    """Where output goes, in the form that the user asked for.

    Attributes:
        answered: the one JSON object was printed.
    """

    answered = False

    def __init__(self, *, as_json: bool = False, quiet: bool = False) -> None:
        """Choose the form: for people, as JSON, or the result and errors only."""
        self.as_json = as_json
        self.quiet = quiet
        Console.answered = False

    @property
    def talks(self) -> bool:
        """Whether there is anybody to read remarks."""
        return not (self.as_json or self.quiet)

    def line(self, text: str = "") -> None:
        """A line about the work, for people."""
        if self.talks:
            _print(_printable(text))

    def result(self, text: str) -> None:
        """A line of what was asked for, which quiet leaves."""
        if not self.as_json:
            _print(_printable(text))

    def show(self, *parts: "RenderableType") -> None:
        """What rich lays out, as wide as the terminal, and unbroken where there is none."""
        from rich.console import Console as RichConsole

        terminal = sys.stdout is not None and sys.stdout.isatty()
        known = terminal or os.environ.get("COLUMNS")
        made = RichConsole(
            file=io.StringIO(),
            width=shutil.get_terminal_size().columns if known else _NO_END,
            force_terminal=True,
            color_system="standard" if colours(sys.stdout) else None,
            highlight=False,
        )
        with made.capture() as captured:
            for part in parts:
                made.print(part)
        text = "\n".join(line.rstrip(" ") for line in captured.get().split("\n"))
        _print(_printable(text), end="")

    def data(self, value: Mapping[str, Any]) -> None:
        """The one JSON object, when it was asked for."""
        if self.as_json and not Console.answered:
            Console.answered = True
            text = json.dumps(value, indent=2, ensure_ascii=False)
            _print(text if _printable(text) == text else json.dumps(value, indent=2))

    def findings(self, found: Iterable[Finding], *, notes: bool = True) -> None:
        """Remarks on stderr, errors first; quiet leaves errors."""
        order = {"error": 0, "warning": 1, "note": 2}
        for item in sorted(found, key=lambda item: order[item.severity]):
            if item.severity != "error" and (self.quiet or self.as_json):
                continue
            if item.severity == "note" and not notes:
                continue
            mark, colour = _MARKS[item.severity]
            code = typer.style(f"{mark} {item.code}", fg=colour, bold=True)
            self.remark(f"{code}  {item.where}: {item.message}")
            if item.fix and item.severity != "note":
                self.remark(f"    {item.fix}")

    def remark(self, text: str) -> None:
        """A line on stderr."""
        with _stderr_may_fail():
            typer.echo(text, err=True, color=colours(sys.stderr))

    def error(self, text: str) -> None:
        """One line about what went wrong."""
        self.remark(typer.style(f"error: {text}", fg="red"))

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

    def fail(self, message: str, code: int) -> None:
        """What went wrong, for people and as the JSON object."""
        self.error(message)
        self.data(_failure(message, code))

    @contextmanager
    def progress(
        self, title: str, total: int, unit: str = "tokens"
    ) -> Iterator[Callable[[int], None] | None]:
        """Show on stderr that something is being done: a bar on a terminal, else a line now and then.

        Args:
            title: what is done.
            total: how much of it; 0 where that is not known.
            unit: in what it is counted; of few ``bytes`` nothing is shown.
        """
        if not self.talks or (unit == "bytes" and total < _BAR_FROM):
            yield None
        elif sys.stderr is not None and sys.stderr.isatty():
            with _bar(title, total, unit) as advance:
                yield advance
        else:
            with self._lines(title, total, unit) as advance:
                yield advance

    @contextmanager
    def _lines(self, title: str, total: int, unit: str) -> Iterator[Callable[[int], None]]:
        done, began, over = 0, time.monotonic(), threading.Event()

        def advance(count: int) -> None:
            nonlocal done
            done += count

        def tell() -> None:
            while not over.wait(EVERY):
                much = f"{done:,} of {total:,} {unit}, " if total else f"{done:,} {unit}, "
                self.remark(f"{title}: {much if done else ''}{time.monotonic() - began:.0f} s")

        teller = threading.Thread(target=tell, daemon=True)
        teller.start()
        try:
            yield advance
        finally:
            over.set()
            teller.join()


def _print(text: str, *, end: str = "\n") -> None:
    """Text on stdout.

    Raises:
        Unavailable: stdout does not take it.
    """
    if sys.stdout is None:
        raise Unavailable("stdout is closed; its text is lost")
    try:
        typer.echo(text + end, nl=False, color=colours(sys.stdout))
    except OSError as error:
        raise _unwritable(error) from None


@contextmanager
def _bar(title: str, total: int, unit: str) -> Iterator[Callable[[int], None]]:
    """A bar that moves from the start, also while nothing is counted yet."""
    from rich import progress as rich
    from rich.console import Console as RichConsole
    from rich.table import Column

    colour = colours(sys.stderr)
    console = RichConsole(stderr=True, color_system="auto" if colour else None)
    counted: list[rich.ProgressColumn] = [rich.TextColumn("{task.completed:,} " + unit)]
    if unit == "bytes":
        counted = [rich.DownloadColumn()]
    elif total:
        counted = [rich.MofNCompleteColumn(), rich.TextColumn(unit)]
    # The title alone may wrap, and what a narrow terminal has no room for is left out: no figure is cut.
    columns = [
        rich.SpinnerColumn(),
        rich.TextColumn("{task.description}", table_column=Column(overflow="fold")),
        *counted,
    ]
    if console.width >= _WIDE:
        columns += [rich.BarColumn(), rich.TimeElapsedColumn(), rich.TimeRemainingColumn()]
    with rich.Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task(title, total=None)

        def advance(count: int) -> None:
            bar.update(task, advance=count, total=total or None)

        yield advance
