"""What a destination accepts as it is stays as it is, byte for byte."""

import hashlib
import json

import drafts
import numpy as np
import pytest
import torch
from conversions import convert, refusals, same_tensors
from safetensors.numpy import save_file


def sha256(path):
    return hashlib.sha256(path.read_bytes()).hexdigest()


def weights(folder):
    return {path.name: sha256(path) for path in folder.glob("*.safetensors")}


@pytest.mark.parametrize(
    ("layout", "destination"),
    [
        ("speculators", "vllm"), ("speculators", "sglang"), ("speculators", "speculators"), ("speculators", "universal"),
        ("sglang", "vllm"), ("sglang", "sglang"), ("vllm", "sglang"), ("vllm", "vllm"),
    ],
)  # fmt: skip
def test_one_layers_weights_keep_their_sha256(layout, destination, tmp_path):
    source = getattr(drafts, layout)(tmp_path / "draft")
    result = convert(source, destination)
    assert weights(result.folder) == weights(source)
    assert not list(result.folder.glob("*.index.json"))


@pytest.mark.parametrize("layout", ["sglang", "vllm"])
def test_midlayer_is_renamed_for_speculators_and_every_value_stays(layout, tmp_path):
    source = getattr(drafts, layout)(tmp_path / "draft")
    before = drafts.load(source)[1]
    result = convert(source, "speculators")
    renamed = {name.replace("midlayer.", "layers.0."): value for name, value in before.items()}
    assert same_tensors(result.tensors, renamed)


@pytest.mark.parametrize("destination", ["sglang", "vllm"])
def test_canonical_names_renames_anyway(destination, tmp_path):
    source = drafts.speculators(tmp_path / "draft")
    result = convert(source, destination, canonical_names=True)
    prefixes = {name.partition("self_attn")[0] for name in result.tensors if "self_attn" in name}
    assert prefixes == {"midlayer."}


def test_a_single_file_of_any_name_gets_the_usual_one(tmp_path):
    source = drafts.speculators(tmp_path / "draft")
    (source / "model.safetensors").rename(source / "draft-final.safetensors")
    before = list(weights(source).values())
    result = convert(source, "vllm")
    assert weights(result.folder) == {"model.safetensors": before[0]}


def test_speculators_wants_a_file_that_says_which_library_wrote_it(tmp_path):
    source = drafts.speculators(tmp_path / "draft")
    save_file(drafts.speculators_tensors(), source / "model.safetensors")
    assert weights(convert(source, "vllm").folder) == weights(source)
    result = convert(source, "speculators")
    assert weights(result.folder) != weights(source)
    assert same_tensors(result.tensors, drafts.speculators_tensors())


def shard(source, names, *, index):
    """Split a folder's one file into these names, the tensors dealt out in turn."""
    tensors = drafts.load(source)[1]
    (source / "model.safetensors").unlink()
    weight_map = {}
    for i, file in enumerate(names):
        part = {name: tensors[name] for name in sorted(tensors)[i :: len(names)]}
        save_file(part, source / file, metadata={"format": "pt"})
        weight_map |= dict.fromkeys(part, file)
    if index:
        text = json.dumps({"metadata": {}, "weight_map": weight_map})
        (source / "model.safetensors.index.json").write_text(text)
    return source


USUAL = ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"]


@pytest.mark.parametrize("index", [True, False], ids=["with index", "without index"])
def test_shards_keep_their_names_and_bytes(index, tmp_path):
    source = shard(drafts.speculators(tmp_path / "draft"), USUAL, index=index)
    result = convert(source, "vllm")
    assert weights(result.folder) == weights(source)
    written = json.loads((result.folder / "model.safetensors.index.json").read_text())
    assert set(written["weight_map"].values()) == set(USUAL)
    assert written["weight_map"].keys() == drafts.speculators_tensors().keys()
    assert written["metadata"]["total_size"] == sum(
        value.nbytes for value in result.tensors.values()
    )


def test_shards_of_other_names_are_numbered(tmp_path):
    source = shard(
        drafts.speculators(tmp_path / "draft"), ["a.safetensors", "b.safetensors"], index=False
    )
    result = convert(source, "vllm")
    assert sorted(weights(result.folder)) == USUAL
    assert set(weights(result.folder).values()) == set(weights(source).values())


def test_only_the_shard_that_changes_is_written_anew(tmp_path):
    source = shard(drafts.speculators(tmp_path / "draft"), USUAL, index=True)
    result = convert(source, "vllm", taps=(5, 1, 3))
    before, after = weights(source), weights(result.folder)
    assert sum(before[name] == after[name] for name in USUAL) == 1


def test_files_written_anew_are_split_at_a_size(tmp_path):
    source = drafts.sglang(tmp_path / "draft")
    limit = 100_000
    result = convert(source, "speculators", max_shard_bytes=limit)
    files = list(result.folder.glob("*.safetensors"))
    assert len(files) > 2
    largest = max(value.nbytes for value in result.tensors.values())
    assert all(path.stat().st_size <= max(limit, largest) + 4096 for path in files)
    index = json.loads((result.folder / "model.safetensors.index.json").read_text())
    assert index["weight_map"].keys() == result.tensors.keys()


@pytest.mark.parametrize("destination", ["sglang", "vllm", "speculators"])
def test_a_bin_file_becomes_safetensors(destination, tmp_path):
    source = drafts.sglang(tmp_path / "draft")
    tensors = {name: torch.from_numpy(value) for name, value in drafts.load(source)[1].items()}
    (source / "model.safetensors").unlink()
    torch.save(tensors, source / "pytorch_model.bin")
    result = convert(source, destination)
    assert [path.name for path in result.folder.glob("*.safetensors")] == ["model.safetensors"]
    plain = convert(drafts.sglang(tmp_path / "plain"), destination)
    assert same_tensors(result.tensors, plain.tensors)
    assert not list(result.folder.glob("*.bin"))


def test_links_share_the_sources_bytes(tmp_path):
    source = drafts.speculators(tmp_path / "draft")
    result = convert(source, "vllm", link=True)
    assert (result.folder / "model.safetensors").samefile(source / "model.safetensors")


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
def test_a_cast_rounds_every_weight_and_no_map(dtype, tmp_path):
    source = drafts.speculators(tmp_path / "draft")
    output = convert_to(source, dtype, tmp_path / "out")
    from safetensors.torch import load_file

    before, after = load_file(source / "model.safetensors"), load_file(output / "model.safetensors")
    for name, value in before.items():
        wanted = value if name in ("d2t", "t2d") else value.to(getattr(torch, dtype))
        assert torch.equal(after[name], wanted)
        assert after[name].dtype == wanted.dtype
    config = json.loads((output / "config.json").read_text())
    assert config["dtype"] == config["torch_dtype"] == dtype


def convert_to(source, dtype, output):
    from eagle3_interop.convert import api

    options = api.Options(dtype=dtype, target_name="org/target")
    api.write(api.convert(api.load(str(source), "auto", options), "vllm", options), output)
    return output


def test_a_cast_that_overflows_is_refused_and_nothing_is_written(tmp_path):
    tensors = drafts.speculators_tensors()
    tensors["norm.weight"][0] = 1e6
    source = drafts.speculators(tmp_path / "draft", tensors)
    assert refusals(convert, source, "vllm", dtype="float16") == {"cast-overflow"}
    assert not (tmp_path / "draft-to-vllm").exists()
    assert convert_to(source, "bfloat16", tmp_path / "out")


def test_the_rest_of_a_network_does_not_move_when_fc_is_permuted(tmp_path):
    source = drafts.speculators(tmp_path / "draft")
    result = convert(source, "vllm", taps=(5, 1, 3))
    before = drafts.load(source)[1]
    changed = {name for name in before if not np.array_equal(before[name], result.tensors[name])}
    assert changed == {"fc.weight"}
