"""The lists of flags that ``serve --check`` judges by are those of the engines' own parsers."""

import json

import pytest
import record_flags

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
