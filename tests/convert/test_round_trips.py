"""There and back again: the same bytes and the same description, for every pair of layouts."""

import itertools
import re
import shutil

import drafts
import pytest
from conversions import convert, described, same_tensors
from feature_grid import Features, write
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

LAYOUTS = ("speculators", "sglang", "vllm")

FEATURES = st.builds(
    Features,
    layers=st.sampled_from([1, 1, 2]),
    taps=st.sets(st.integers(0, 5), min_size=1, max_size=4).map(lambda taps: tuple(sorted(taps))),
    fc=st.sampled_from(["plain", "input norm", "block norms"]),
    normed_residual=st.booleans(),
    norm_output=st.booleans(),
    qk_norm=st.booleans(),
    qkv_bias=st.booleans(),
    window=st.sampled_from([None, None, 8]),
    theta=st.sampled_from([1e4, 5e5, 1e6]),
    llama3=st.booleans(),
    eps=st.sampled_from([1e-6, 1e-5]),
    full_vocabulary=st.booleans(),
    sorted_map=st.booleans(),
    embeddings=st.booleans(),
    prefix=st.sampled_from(["midlayer.", "layers.0."]),
)


@pytest.fixture(scope="module")
def target(tmp_path_factory):
    """One that declares no more positions than the drafts, which else would be raised to its own."""
    folder = tmp_path_factory.mktemp("target") / "target"
    return drafts.target(folder, max_position_embeddings=2048)


@settings(
    deadline=None,
    max_examples=80,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(features=FEATURES, pair=st.sampled_from(list(itertools.permutations(LAYOUTS, 2))))
def test_there_and_back_is_the_same_network(features, pair, target, tmp_path):
    home, abroad = pair
    assume(
        len(features.taps) > 1 or "sglang" not in pair
    )  # SGLang skips an fc as wide as the draft
    assume(features.sorted_map or "speculators" not in pair)  # whose maps are sorted
    folder = tmp_path / "draft"
    shutil.rmtree(folder, ignore_errors=True)
    source = write(folder, home, features)
    there = convert(source, abroad, layout=home, target=target)
    back = convert(there.folder, home, layout=abroad, target=target)
    words = {"target": target, "target_name": "org/target"}
    first, last = described(source, home, **words), described(back.folder, home, **words)
    if first.speculative_tokens is None:  # speculators demands a number, which is not forgotten
        last = last.model_copy(update={"speculative_tokens": None})
    assert first == last
    ours, theirs = drafts.load(source)[1], dict(back.tensors)
    if not features.embeddings and "speculators" in pair:
        # The library wants the table in the file: it came from the target.
        ours["embed_tokens.weight"] = drafts.load(target)[1]["model.embed_tokens.weight"]
    assert same_tensors(canonical(ours), canonical(theirs))


def canonical(tensors):
    """Under one spelling, without biases of zeros, which some frameworks cannot be without."""
    names = {re.sub(r"^midlayer\.", "layers.0.", name): value for name, value in tensors.items()}
    return {name: value for name, value in names.items() if value.any() or "bias" not in name}


@pytest.mark.parametrize("home", LAYOUTS)
@pytest.mark.parametrize("taps", [(5, 0, 3), (3, 1, 5)])
def test_permuting_there_and_back_restores_every_block(home, taps, target, tmp_path):
    source = write(tmp_path / "draft", home, Features())
    there = convert(source, "vllm", layout=home, target=target, taps=taps)
    order = sorted(range(3), key=lambda block: taps[block])  # which block now stands where
    undone = convert(there.folder, "vllm", layout="vllm", target=target, taps=tuple(order))
    assert same_tensors(canonical(undone.tensors), canonical(drafts.load(source)[1]))
