"""``--dequantize``: the plain draft that a quantised one stands for, by the definitions of its format."""

import json

import drafts
import numpy as np
import pytest
import quantised
from conversions import refusals
from quantised import MATRICES, SCHEMES, folder, written

from eagle3_interop.convert import api
from eagle3_interop.convert.decide.dequantising import dequantised
from eagle3_interop.convert.decide.inspection import compare

KINDS = list(SCHEMES)


def plain(kind: str, leaves=MATRICES, prefix="layers.0.", **changes) -> quantised.Parts:
    tensors = drafts.flat_tensors(prefix=prefix) | changes
    return quantised.quantise(tensors, kind, leaves)[1]


def floats(found: dict) -> quantised.Parts:
    types = {"F32": np.float32, "I64": np.int64, "BOOL": np.bool_}
    return {
        name: np.frombuffer(data, types[dtype]).reshape(shape)
        for name, (dtype, shape, data) in found.items()
    }


@pytest.mark.parametrize("kind", KINDS)
def test_every_format_is_what_it_is_defined_to_be(kind, tmp_path):
    config, found, conversion = written(folder(tmp_path, kind), "vllm", dequantize=True)
    wanted = plain(kind)
    assert "quantization_config" not in config
    assert conversion.fitted.draft.quantisation is None
    got = floats(found)
    assert got.keys() == wanted.keys()
    for name, values in wanted.items():
        # In which order two scales are taken is the library's own: a float32 rounding more.
        np.testing.assert_allclose(got[name], values, rtol=2**-22, atol=0, err_msg=name)


def test_nvfp4_is_what_compressed_tensors_makes_of_it_in_bfloat16():
    import ml_dtypes
    import torch
    from compressed_tensors.compressors import BaseCompressor
    from compressed_tensors.quantization import QuantizationScheme

    parts, values = SCHEMES["nvfp4"][0](drafts.random((32, 64), 1))
    group = SCHEMES["nvfp4"][1]["config_groups"]["group_0"]
    scale = torch.from_numpy(parts["weight_scale"].view(np.uint8)).view(torch.float8_e4m3fn)
    tensors = {
        "weight_packed": torch.from_numpy(parts["weight_packed"]),
        "weight_scale": scale,
        "weight_global_scale": torch.from_numpy(parts["weight_global_scale"]),
    }
    compressor = BaseCompressor.get_value_from_registry("nvfp4-pack-quantized")
    found = compressor.decompress(tensors, scheme=QuantizationScheme.model_validate(group))
    rounded = values.astype(ml_dtypes.bfloat16).astype(np.float32)
    assert np.array_equal(found["weight"].float().numpy(), rounded)


@pytest.mark.parametrize("kind", ["int8", "fp8", "fp8 static", "w4a16", "w8a16", "modelopt fp8"])
def test_one_factor_a_value_is_exact(kind, tmp_path):
    _, found, _ = written(folder(tmp_path, kind), "vllm", dequantize=True)
    assert found == {name: quantised.raw(plain(kind))[name] for name in found}


def test_what_was_refused_for_its_lists_is_written_plain(tmp_path):
    source = folder(tmp_path, "int8", leaves=(*MATRICES, "fc"), ignore=("lm_head",))
    assert refusals(written, source, "sglang") == {"quantised-unmatched"}
    _, found, _ = written(source, "sglang", dequantize=True)
    assert found["fc.weight"] == quantised.raw(plain("int8", (*MATRICES, "fc")))["fc.weight"]


def test_what_would_be_cut_is_put_in_order_plain(tmp_path):
    source = folder(tmp_path, "int8", leaves=("fc",), ignore=("re:.*_proj", "lm_head"))
    assert refusals(written, source, "vllm", taps=(1, 1, 3)) == {"quantised-cut"}
    _, found, _ = written(source, "vllm", taps=(1, 1, 3), dequantize=True)
    first, second, third = np.split(plain("int8", ("fc",))["fc.weight"], 3, axis=1)
    wanted = np.concatenate([first + second, third], axis=1)
    assert np.array_equal(floats({"fc": found["fc.weight"]})["fc"], wanted)


def test_rows_of_a_packed_head_are_sorted_plain(tmp_path):
    ids = drafts.draft_ids()[::-1]
    tensors = drafts.flat_tensors(prefix="layers.0.") | drafts.maps(ids)
    source = folder(
        tmp_path,
        "w4a16 uneven",
        leaves=("lm_head",),
        ignore=("re:.*_proj", "re:.*fc"),
        tensors=tensors,
    )
    _, found, _ = written(source, "speculators", dequantize=True)
    values = quantised.quantise(tensors, "w4a16 uneven", ("lm_head",))[1]["lm_head.weight"]
    assert np.array_equal(
        floats({"head": found["lm_head.weight"]})["head"], values[np.argsort(ids)]
    )


def test_it_is_rounded_once_to_the_drafts_own_dtype(tmp_path):
    import ml_dtypes

    tensors = {
        name: value.astype(ml_dtypes.bfloat16) if value.dtype == np.float32 else value
        for name, value in drafts.flat_tensors(prefix="layers.0.").items()
    }
    source = folder(tmp_path, "int8", tensors=tensors, torch_dtype="bfloat16")
    _, found, conversion = written(source, "vllm", dequantize=True)
    values = quantised.quantise(tensors, "int8")[1]
    name = "layers.0.mlp.up_proj.weight"
    assert conversion.fitted.draft.dtype == "bfloat16"
    assert found[name] == quantised.raw({name: values[name].astype(ml_dtypes.bfloat16)})[name]


def test_values_beyond_the_dtype_are_refused(tmp_path):
    tensors = {
        name: value.astype(np.float16) if value.dtype == np.float32 else value
        for name, value in drafts.flat_tensors(prefix="layers.0.").items()
    }
    stored, _ = quantised.quantise(tensors, "int8")
    stored["layers.0.mlp.up_proj.weight_scale"] *= 1e6
    config = {
        **drafts.VLLM_CONFIG,
        "torch_dtype": "float16",
        "quantization_config": quantised.quantisation_config("int8"),
    }
    source = quantised.save(tmp_path / "draft", config, stored)
    assert refusals(written, source, "vllm", dequantize=True) == {"cast-overflow"}


def test_a_cast_is_made_of_the_plain_values(tmp_path):
    _, found, _ = written(folder(tmp_path, "int8"), "vllm", dequantize=True, dtype="bfloat16")
    assert {part[0] for name, part in found.items() if name.endswith(".weight")} == {"BF16"}


def test_a_plain_draft_is_written_as_it_would_be_without(tmp_path):
    source = drafts.vllm(tmp_path / "draft")
    with_it = written(source, "vllm", dequantize=True)
    without = written(source, "vllm")
    assert with_it[:2] == without[:2]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("destination", ["vllm", "sglang"])
def test_both_sides_of_a_conversion_stand_for_the_same_draft(kind, destination, tmp_path):
    """Also of formats that no CPU computes with."""
    source = folder(tmp_path, kind, "sglang")
    written(source, destination)
    output = api.load(str(tmp_path / f"draft-to-{destination}"))
    for name in output.reading.draft.quantisation.modules:
        weight = f"{name}.weight"
        one, other = dequantised(api.load(str(source))), dequantised(output)
        mine, theirs = (side.checkpoint.values(side.reading.names[weight]) for side in (one, other))
        assert np.array_equal(mine, theirs)
    assert compare(api.load(str(source)), output)["tensors"] == {}


def test_without_the_library_the_command_says_what_to_install(tmp_path, monkeypatch):
    import sys

    monkeypatch.setitem(sys.modules, "compressed_tensors", None)
    monkeypatch.setitem(sys.modules, "compressed_tensors.compressors", None)
    from eagle3_interop.schemas.findings import Unavailable

    with pytest.raises(Unavailable, match=r"eagle3-interop\[dequantize\]"):
        written(folder(tmp_path, "int8"), "vllm", dequantize=True)


def test_modelopts_formats_need_no_library(tmp_path, monkeypatch):
    import sys

    monkeypatch.setitem(sys.modules, "compressed_tensors", None)
    written(folder(tmp_path, "modelopt nvfp4"), "vllm", dequantize=True)


def test_the_provenance_says_that_it_was_asked_for(tmp_path):
    written(folder(tmp_path, "int8"), "vllm", dequantize=True)
    said = json.loads((tmp_path / "draft-to-vllm" / "eagle3_interop.json").read_text())
    assert said["options"]["dequantize"] is True
    assert said["draft"]["quantisation"] is None
