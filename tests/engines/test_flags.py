"""The lists of flags that ``serve --check`` judges by are those of the engines' own parsers."""

import json
import shlex

import pytest
import record_flags
import run_engine

from eagle3_interop.convert.serve import command
from eagle3_interop.schemas.engines.flags import flags_of

pytestmark = pytest.mark.engine


@pytest.mark.parametrize("engine", ["vllm", "sglang"])
def test_the_recorded_flags_are_those_of_the_engines_parser(engine):
    asked = record_flags.ask(engine)
    recorded = record_flags.DATA / f"{engine}-{asked['release']}.json"
    assert json.loads(recorded.read_text()) == asked
    assert flags_of(engine).release == asked["release"]


def test_vllm_refuses_a_key_of_its_speculative_config_that_it_does_not_have():
    assert record_flags.ask("vllm")["refuses_other_settings"]


LINES = {
    "vllm": [
        "t",
        "t -O3 --enforce-eager -tp 2 -q fp8",
        "t --max_model_len 4096",
        "t --max-model 4096",
        "--enforce-eager t",
        "t -sc.model d -sc.method eagle3",
        "t --speculative-conf.model d",
        "t --max-modl-len 4",
        "t --speculative-draft-sliding-window 3",
        "t --max 3",
        "t --no-such.key 3",
        "t -z 3",
    ],
    "sglang": [
        "--model-path t",
        "--model t --speculative-algo EAGLE3",
        "--model-path t --speculative-num-st 3 --context-len 4096",
        "--model-path t --cuda-graph-bs 1 2 3 --tp 2",
        "--model-path t --speculative-draft 3",
        "--model-path t --speculative-draft-sliding-window 3",
        "--model-path t --max-modl-len 3",
        "--model-path t -z 3",
    ],
}


@pytest.mark.parametrize("engine", LINES)
def test_a_flag_is_said_to_be_unknown_where_the_engines_parser_says_so(engine):
    lines = LINES[engine]
    asked = {"lines": [shlex.split(line) for line in lines]}
    said = run_engine.run_engine(f"{engine}-flags", asked)["said"]
    refused = {line for line, words in zip(lines, said, strict=True) if words is not None}
    start = {"vllm": "vllm serve", "sglang": "python -m sglang.launch_server"}[engine]
    judged = {line: command.judge(f"{start} {line}", engine, {}, "d") for line in lines}
    unknown = {
        line
        for line, found in judged.items()
        if "serve-unknown-flag" in {item.code for item in found}
    }
    assert unknown == refused
    assert 2 < len(refused) < len(lines) - 2
