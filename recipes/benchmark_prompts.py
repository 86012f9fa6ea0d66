"""MT-Bench, HumanEval and GSM8K, as their authors published them, as prompts with a category.

    python recipes/benchmark_prompts.py question.jsonl HumanEval.jsonl.gz test.jsonl --out prompts.jsonl
    eagle3-validate DRAFT --target TARGET --prompts prompts.jsonl

| file | of | becomes | category |
|---|---|---|---|
| `question.jsonl` | lm-sys/FastChat, `fastchat/llm_judge/data/mt_bench/` | the first turn | its own: `writing`, `math`, ... |
| `HumanEval.jsonl.gz` | openai/human-eval, `data/` | `prompt` | `humaneval` |
| `test.jsonl` | openai/grade-school-math, `grade_school_math/data/` | `question` | `gsm8k` |

Each becomes one user message, nothing added. `--text` writes it as plain text, for a target without a chat template. MT-Bench's second
turn answers to what the model said to the first, which no file holds: it is left out.
"""

import gzip
import json
from pathlib import Path
from typing import Annotated, Any

import typer

from eagle3_interop.convert.console import Console
from eagle3_interop.convert.read.strict_json import loads
from eagle3_interop.convert.write.places import check_files
from eagle3_interop.schemas.findings import Unavailable, Usage
from eagle3_interop.validators.target.prompts import parse_prompts


def read(path: Path) -> list[tuple[str, str]]:
    """Text and category of every entry of a file.

    Raises:
        Usage: it cannot be read, or a line is none of the three benchmarks'.
    """
    try:
        raw = path.read_bytes()
        content = (gzip.decompress(raw) if raw[:2] == b"\x1f\x8b" else raw).decode("utf-8")
    except (OSError, EOFError, UnicodeDecodeError) as error:
        raise Usage(f"{path}: {error}") from error
    lines = [(number, line) for number, line in enumerate(content.split("\n"), 1) if line.strip()]
    if not lines:
        raise Usage(f"{path}: nothing in it")
    return [entry(line, f"{path}:{number}") for number, line in lines]


def entry(line: str, where: str) -> tuple[str, str]:
    """Text and category of one line.

    Raises:
        Usage: it is none of the three benchmarks'.
    """
    try:
        told = loads(line)
    except ValueError as error:
        raise Usage(f"{where}: not JSON: {error}") from error
    keys = told.keys() if isinstance(told, dict) else set()
    found: tuple[Any, Any] = (None, None)
    if {"question_id", "category", "turns"} <= keys and isinstance(told["turns"], list):
        found = (told["turns"][0] if told["turns"] else None, told["category"])
    elif {"task_id", "prompt", "entry_point"} <= keys:
        found = (told["prompt"], "humaneval")
    elif {"question", "answer"} <= keys:
        found = (told["question"], "gsm8k")
    if not all(isinstance(part, str) and part.strip() for part in found):
        raise Usage(
            f"{where}: neither MT-Bench (question_id, category, turns) nor HumanEval (task_id, prompt, "
            "entry_point) nor GSM8K (question, answer)."
        )
    return found


def spread(entries: list[tuple[str, str]], limit: int | None) -> list[tuple[str, str]]:
    """As many as are wanted, from all over the file: MT-Bench is sorted by category."""
    if limit is None or limit >= len(entries):
        return entries
    return [entries[number * len(entries) // limit] for number in range(limit)]


def prompt(text: str, category: str, *, plain: bool) -> str:
    """A line of prompts."""
    said: dict[str, Any] = {"prompt": text}
    if not plain:
        said = {"messages": [{"role": "user", "content": text}]}
    return json.dumps({**said, "category": category})


def convert(
    files: Annotated[list[Path], typer.Argument(metavar="FILE...", help="As published.")],
    out: Annotated[Path, typer.Option(metavar="FILE", help="Where the prompts go.")],
    limit: Annotated[
        int | None,
        typer.Option(metavar="N", min=1, help="Prompts of each file, spread over it [all]."),
    ] = None,
    text: Annotated[bool, typer.Option("--text", help="Plain text in place of a chat.")] = False,
) -> None:
    """Turn benchmarks into prompts for eagle3-validate."""
    console = Console()
    with console.outcomes(lambda found: {"findings": [one.code for one in found]}):
        check_files({"--out": out}, files)
        chosen = [one for file in files for one in spread(read(file), limit)]
        lines = "".join(prompt(*one, plain=text) + "\n" for one in chosen)
        parse_prompts(lines, str(out))
        try:
            out.write_text(lines, encoding="utf-8")
        except OSError as error:
            raise Unavailable(f"{out}: {error.strerror}") from error
        kinds = dict.fromkeys(category for _, category in chosen)
        console.result(f"{out}: {len(chosen)} prompts: {', '.join(kinds)}")


if __name__ == "__main__":
    typer.run(convert)
