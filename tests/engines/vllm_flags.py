"""What vLLM's own parser takes: the flags of ``vllm serve``, and the keys of its speculative config (run by vLLM's Python)."""

import dataclasses

import rig
import vllm
from vllm.config.speculative import SpeculativeConfig
from vllm.entrypoints.launchers.cli_args import make_arg_parser
from vllm.utils.argparse_utils import FlexibleArgumentParser


def main() -> None:
    """Answer with all of them; or, asked for ``lines``, with what the parser says of each."""
    request, output = rig.read_arguments()
    parser = make_arg_parser(FlexibleArgumentParser(prog="vllm serve"))
    settings = sorted(field.name for field in dataclasses.fields(SpeculativeConfig) if field.init)
    answer = {
        "engine": "vllm",
        "release": vllm.__version__,
        "flags": rig.flags_of(parser),
        "settings": settings,
        "refuses_other_settings": SpeculativeConfig.__pydantic_config__["extra"] == "forbid",
    }
    if "lines" in request:
        answer = {"said": rig.parses(parser, request["lines"])}
    rig.write_result(output, answer)


if __name__ == "__main__":
    main()
