"""Options that the commands on networks share: `eagle3-validate`, `eagle3-diagnose` and `eagle3-record`."""

from pathlib import Path
from typing import Annotated

import typer

DraftArg = Annotated[str, typer.Argument(help="The draft: folder, or Hub id ORG/NAME[@REVISION].")]
TargetOpt = Annotated[
    str,
    typer.Option(metavar="PATH|ID", help="The target (verifier) of the draft: folder or Hub id."),
]
PromptsOpt = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        help="Prompts: JSON lines, or one user message a line [40 prompts of the package].",
    ),
]
StreamsOpt = Annotated[
    str | None,
    typer.Option(
        metavar="DIR",
        help="Use the hidden states that eagle3-record wrote there; the target is not run.",
    ),
]
StreamTapsOpt = Annotated[
    str | None,
    typer.Option(
        metavar="LIST",
        help="Layers whose hidden states a trainer's recordings hold, in its order: 2,16,29.",
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
        metavar="CODE", help="Accept the loss of what no engine computes, by the code of the error."
    ),
]
DeviceOpt = Annotated[
    str, typer.Option(help="Where the networks run: auto, cpu, cuda or cuda:N; auto takes a GPU.")
]
EnginePythonOpt = Annotated[
    str | None,
    typer.Option(
        metavar="PATH",
        help="Python of the environment in which the engine is installed [this one].",
    ),
]
EngineArgOpt = Annotated[
    list[str] | None,
    typer.Option(
        metavar="ARG", help="Pass a flag to the engine, for example tensor-parallel-size=8."
    ),
]
JsonOpt = Annotated[
    Path | None, typer.Option(metavar="FILE", help="Write the report as JSON ('-' for stdout).")
]
HtmlOpt = Annotated[
    Path | None, typer.Option(metavar="FILE", help="Write the report as one HTML page.")
]
CsvOpt = Annotated[Path | None, typer.Option(metavar="FILE", help="Write a row a prompt as CSV.")]
RemoteCodeFlag = Annotated[
    bool,
    typer.Option("--trust-remote-code", help="Run Python files that come with the target."),
]
