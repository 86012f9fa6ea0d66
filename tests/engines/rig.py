"""What every runner shares: one JSON request on stdin, one JSON object into the ``--output`` file.

Runners are executed by an engine's own Python, which has torch and the engine but nothing of this
project.
"""

import argparse
import json
import sys
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class GenerationRequest:
    """One greedy generation with or without a draft.

    Attributes:
        target: Folder of the target model.
        draft: Folder of the draft, None to generate without one.
        prompts: Token ids of each prompt.
        max_new_tokens: Exactly this many tokens are generated after each prompt.
        num_draft_tokens: Proposed tokens a step when drafting a chain.
        topk: Branches of a draft tree, 1 for a chain (SGLang only).
        steps: Depth of the tree; for a chain ``num_draft_tokens``.
        draft_tokens: Nodes of the tree, its root included; for a chain ``num_draft_tokens + 1``.
        dtype: What the engine computes in.
        engine_args: Further keyword arguments of the engine's own constructor.
    """

    target: str
    prompts: list[list[int]]
    draft: str | None = None
    max_new_tokens: int = 32
    num_draft_tokens: int = 4
    topk: int = 1
    steps: int | None = None
    draft_tokens: int | None = None
    dtype: str = "float32"
    engine_args: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.topk > 1 and (self.steps is None or self.draft_tokens is None):
            raise ValueError("a tree (topk > 1) needs steps and draft_tokens")


def read_arguments() -> tuple[dict[str, Any], Path]:
    """Return the request on stdin and the path of the output file."""
    parser = argparse.ArgumentParser()
    parser.add_argument(
        "--output", type=Path, required=True, help="file that receives the JSON result"
    )
    arguments = parser.parse_args()
    return json.load(sys.stdin), arguments.output


def generation_request(request: dict[str, Any]) -> GenerationRequest:
    """Check a request's keys and fill in what it leaves out."""
    unknown = sorted(request.keys() - {known.name for known in fields(GenerationRequest)})
    if unknown:
        raise ValueError(f"unknown keys in the request: {', '.join(unknown)}")
    return GenerationRequest(**request)


def flags_of(parser: argparse.ArgumentParser) -> dict[str, int | str]:
    """Every flag of a parser, and how many values it takes: a number, or argparse's sign for it."""
    return {
        name: 1 if action.nargs is None else action.nargs
        for action in parser._actions
        for name in action.option_strings
    }


def parses(parser: argparse.ArgumentParser, lines: list[list[str]]) -> list[str | None]:
    """For each command line the parser's own complaint; None, where it takes it."""

    def complain(message: str) -> None:
        raise ValueError(message)

    parser.error = complain  # type: ignore[method-assign, assignment]
    found: list[str | None] = []
    for line in lines:
        try:
            parser.parse_args(line)
            found.append(None)
        except ValueError as error:
            found.append(str(error))
    return found


def write_result(output: Path, result: dict[str, Any]) -> None:
    """Write the result, as the last thing that a successful runner does."""
    output.write_text(json.dumps(result), encoding="utf-8")
