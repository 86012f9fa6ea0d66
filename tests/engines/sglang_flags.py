"""What SGLang's own parser takes: the flags of ``sglang serve`` and ``sglang.launch_server`` (run by SGLang's Python)."""

import argparse

import rig
import sglang
from sglang.cli.serve import _extract_model_type_override
from sglang.srt.server_args import ServerArgs


def main() -> None:
    """Answer with all of them; or, asked for ``lines``, with what the parser says of each."""
    request, output = rig.read_arguments()
    parser = argparse.ArgumentParser(prog="sglang serve")
    ServerArgs.add_cli_args(parser)
    flags = rig.flags_of(parser)
    if not _extract_model_type_override(["--model-type", "llm"])[1]:
        flags["--model-type"] = 1  # `sglang serve` takes it out before its parser sees it
    answer = {
        "engine": "sglang",
        "release": sglang.__version__,
        "flags": flags,
    }
    if "lines" in request:
        answer = {"said": rig.parses(parser, request["lines"])}
    rig.write_result(output, answer)


if __name__ == "__main__":
    main()
