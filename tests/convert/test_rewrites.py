"""The rewrites of a conversion: a list of functions, each from a draft and its tensors to the next."""

import ast
from dataclasses import replace
from pathlib import Path
from unittest import mock

import drafts
import pytest
from conversions import convert, loaded

from eagle3_interop.convert.decide import rewrites
from eagle3_interop.convert.decide.fitting import REWRITES
from eagle3_interop.convert.decide.rewrites.work import begin
from eagle3_interop.schemas import registry
from eagle3_interop.schemas.options import Options

DESTINATIONS = ("speculators", "sglang", "vllm", "universal")


def start(tmp_path, destination):
    """Much to do at once: taps out of order, a tied head, positions to raise, another dtype."""
    tensors = drafts.flat_tensors(later_norm="hidden_norm")
    tensors = {
        name: x for name, x in tensors.items() if name not in ("lm_head.weight", "d2t", "t2d")
    }
    keys = {"tie_word_embeddings": True, "draft_vocab_size": drafts.V}
    source = drafts.sglang(tmp_path / "draft", tensors, **keys)
    target = drafts.target(tmp_path / "target", max_position_embeddings=8192)
    options = Options(target=str(target), target_name="org/target", dtype="float16")
    return begin(loaded(source, target=target, taps=(5, 1, 3)), destination, options)


@pytest.mark.parametrize("destination", DESTINATIONS)
def test_a_rewrite_leaves_what_it_was_given_as_it_was(destination, tmp_path):
    work, changed = start(tmp_path, destination), []
    for rewrite in REWRITES:
        before = work.draft.model_copy(deep=True), dict(work.tensors), work.findings, work.written
        after = rewrite(work)
        assert (work.draft, dict(work.tensors), work.findings, work.written) == before
        if after is not work:
            changed.append(rewrite.__name__)
        work = after
    assert {"order_taps", "raise_positions", "choose_dtype", "write", "cast"} <= set(changed)
    assert ("own_head" in changed) == (destination != "sglang")


@pytest.mark.parametrize("destination", DESTINATIONS)
def test_a_rewrite_that_has_run_finds_nothing_left_to_do_but_to_write(destination, tmp_path):
    work = start(tmp_path, destination)
    for rewrite in REWRITES:
        work = rewrite(work)
        if rewrite.__name__ in ("order_taps", "own_head", "settle_maps", "cast"):
            assert rewrite(work) is work, rewrite.__name__


@pytest.mark.parametrize("destination", ["speculators", "vllm"])
def test_the_destinations_writer_runs_once(destination, tmp_path):
    place = registry.DESTINATIONS[destination]
    writer = mock.Mock(wraps=place.write)
    source = drafts.sglang(tmp_path / "draft")
    target = drafts.target(tmp_path / "target")
    with mock.patch.dict(registry.DESTINATIONS, {destination: replace(place, write=writer)}):
        convert(source, destination, target=target)
    assert writer.call_count == 1


def test_what_the_writer_wants_is_not_known_before_it_ran(tmp_path):
    with pytest.raises(RuntimeError, match="has not run yet"):
        _ = start(tmp_path, "vllm").writing


def test_no_rewrite_asks_for_a_framework_by_its_name():
    """What a destination's loader does is a value of it; a new destination then needs no branch here."""
    folder = Path(rewrites.__file__).parent
    for path in [*folder.glob("*.py"), folder.parent / "fitting.py"]:
        words = {
            x.value for x in ast.walk(ast.parse(path.read_text())) if isinstance(x, ast.Constant)
        }
        assert words.isdisjoint(registry.DESTINATIONS), path.name
