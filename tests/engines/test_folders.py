"""What engines make of odd folders, by their own loaders and classes, and that our reading says the same."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import random_drafts
import run_engine
import trained
from matrix import HOLDS, Matrix
from random_drafts import D, Spec, Tensors, V
from safetensors.numpy import load_file, save_file
from test_classes import RIGS, STEPS, TOLERANCE, difference, logits_of, write_inputs

from eagle3_interop.convert import api
from eagle3_interop.convert.decide import inspection
from eagle3_interop.schemas.options import Options

pytestmark = pytest.mark.engine

PARTIAL = {
    "rope_type": "default",
    "rope_theta": 1e4,
    "partial_rotary_factor": 0.25,
    "mrope_section": [2, 1, 1],
}
TOLD = Options(target=str(trained.TARGET), target_name="org/target")


def changed(
    source: Path,
    folder: Path,
    *,
    drop: tuple[str, ...] = (),
    names: tuple[str, str] = ("", ""),
    config: Mapping[str, Any] | None = None,
    **keys: Any,
) -> Path:
    """A copy of a folder with other keys, without some tensors, its names begun otherwise."""
    folder.mkdir()
    old = json.loads((source / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(dict(config) if config else {**old, **keys}))
    tensors: Tensors = load_file(source / "model.safetensors")
    kept = {names[1] + name: x for name, x in tensors.items() if name not in drop}
    save_file(kept, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def converted(source: Path, destination: str, **options: Any) -> Path:
    chosen = Options(**{**TOLD.__dict__, **options})
    output = source.parent / f"{source.name}-to-{destination}"
    api.write(api.convert(api.load(str(source), "auto", chosen), destination, chosen), output)
    return output


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Each folder by its name in the tests below."""
    root = tmp_path_factory.mktemp("folders")
    one, full, partial = Spec(), Spec(draft_vocab=V), Spec(decoder={"rope_parameters": PARTIAL})
    flat = random_drafts.write(one, "vllm", root / "flat", trained.TARGET)
    stock = random_drafts.write(one, "sglang", root / "stock", trained.TARGET)
    bare = random_drafts.write(full, "speculators", root / "bare", trained.TARGET)
    found = {"flat": flat, "stock": stock}
    # A factor where SGLang does not look, and sections that only the rotated quarter fits.
    found["partial"] = random_drafts.write(partial, "sglang", root / "partial", trained.TARGET)
    found["partial, for vLLM"] = converted(found["partial"], "vllm")
    found["partial, for SGLang"] = converted(found["partial"], "sglang")
    whole = {**PARTIAL, "partial_rotary_factor": 1.0}
    found["unfilled"] = changed(flat, root / "unfilled", rope_parameters=whole)
    # A head and a table that vLLM shares.
    tables = ("lm_head.weight", "embed_tokens.weight", "d2t", "t2d")
    found["no tables"] = changed(bare, root / "no-tables", drop=tables)
    found["no tables, for SGLang"] = converted(found["no tables"], "sglang")
    found["no tables, for vLLM"] = converted(found["no tables"], "vllm")
    # A class with norms, and none in the file.
    found["no norms"] = changed(
        flat, root / "no-norms", architectures=["Qwen3ForCausalLM"], model_type="qwen3"
    )
    settled = {"layers.attention.qk_norm": False}
    found["no norms, told"] = converted(found["no norms"], "vllm", sets=settled)
    # vLLM's wrapper, a trainer's wrapper, and a quantisation of nothing.
    inner = json.loads((flat / "config.json").read_text())
    wrapped = {"model_type": "eagle", "method": "eagle3", "truncated_vocab_size": D, "model": inner}
    wrapped["architectures"] = ["Eagle3LlamaForCausalLM"]
    found["wrapped"] = changed(flat, root / "wrapped", config=wrapped)
    found["prefixed"] = changed(flat, root / "prefixed", names=("", "_orig_mod."))
    found["prefixed, for vLLM"] = converted(found["prefixed"], "vllm")
    found["stock prefixed"] = changed(stock, root / "stock-prefixed", names=("", "_orig_mod."))
    gptq = {"quant_method": "gptq", "bits": 4, "group_size": 128, "desc_act": False}
    found["gptq"] = changed(flat, root / "gptq", quantization_config=gptq)
    return found


JOBS = {
    "vllm": (
        "flat", "partial, for vLLM", "unfilled", "no tables", "no tables, for vLLM", "no norms", "no norms, told",
        "wrapped", "prefixed", "prefixed, for vLLM", "gptq",
    ),
    "sglang": (
        "stock", "partial", "partial, for SGLang", "no tables, for SGLang", "stock prefixed", "wrapped", "no norms",
    ),
}  # fmt: skip


@pytest.fixture(scope="module")
def found(
    folders: dict[str, Path], tmp_path_factory: pytest.TempPathFactory
) -> dict[tuple[str, str], Any]:
    """(Engine, folder) to the logits of its own class on it, or the error."""
    root = tmp_path_factory.mktemp("runs")
    inputs = write_inputs(root / "inputs.safetensors", Spec())
    answers: dict[tuple[str, str], Any] = {}
    for engine, names in JOBS.items():
        cases = [
            {
                "draft": str(folders[name]),
                "inputs": str(inputs),
                "output": str(root / f"{engine}-{i}"),
            }
            for i, name in enumerate(names)
        ]
        request = {"target": str(trained.TARGET), "steps": STEPS, "cases": cases}
        said = run_engine.run_engine(RIGS[engine], request, timeout_s=1800)
        answers["version", engine] = said["version"]
        for name, case, one in zip(names, cases, said["cases"], strict=True):
            answers[engine, name] = one.get("error") or logits_of(Path(case["output"]))
    return answers


def said_of(folder: Path, engine: str) -> str:
    loaded = api.load(str(folder), "auto", Options(), describing=True)
    return str(inspection.engines(loaded)[engine]["as_is"])


def versions(found: Mapping[tuple[str, str], Any]) -> dict[str, str]:
    return {engine: found["version", engine] for engine in JOBS}


def equal(
    found: Mapping[tuple[str, str], Any], one: tuple[str, str], other: tuple[str, str]
) -> bool:
    assert not isinstance(found[other], str), found[other]
    return difference(found[one], found[other], STEPS) < TOLERANCE


def test_sglang_reads_the_factor_at_the_top_alone_and_rescales_the_sections(
    found: dict[tuple[str, str], Any], folders: dict[str, Path], matrix: Matrix
) -> None:
    assert equal(found, ("sglang", "partial, for SGLang"), ("sglang", "partial"))
    assert equal(found, ("vllm", "partial, for vLLM"), ("sglang", "partial"))
    assert said_of(folders["partial"], "sglang") == "same"
    fact = "a partial_rotary_factor inside rope_parameters is not read by SGLang; multimodal sections are rescaled"
    detail = "class: one network on folder and conversions"
    matrix.record("facts", fact, "SGLang", HOLDS, detail, **versions(found))


def test_vllm_fails_on_sections_that_do_not_fill_the_rotated_part(
    found: dict[tuple[str, str], Any], folders: dict[str, Path]
) -> None:
    assert isinstance(found["vllm", "unfilled"], str)
    assert said_of(folders["unfilled"], "vllm") == "does-not-load"


def test_vllm_shares_head_and_table_of_the_target(
    found: dict[tuple[str, str], Any], folders: dict[str, Path], matrix: Matrix
) -> None:
    assert equal(found, ("vllm", "no tables, for vLLM"), ("vllm", "no tables"))
    assert equal(found, ("sglang", "no tables, for SGLang"), ("vllm", "no tables"))
    assert said_of(folders["no tables"], "vllm") == "same"
    fact = (
        "a speculators folder of full vocabulary without head and table takes the target's in vLLM"
    )
    detail = "class: one network on folder and conversions"
    matrix.record("facts", fact, "vLLM", HOLDS, detail, **versions(found))


def test_vllms_class_with_norms_runs_without_them_as_another_network(
    found: dict[tuple[str, str], Any],
) -> None:
    assert not isinstance(found["vllm", "no norms"], str)
    assert not equal(found, ("vllm", "no norms"), ("vllm", "flat"))
    assert equal(found, ("vllm", "no norms, told"), ("vllm", "flat"))


def test_sglang_takes_that_name_for_a_targets_class_and_fails(
    found: dict[tuple[str, str], Any],
) -> None:
    assert isinstance(found["sglang", "no norms"], str)


def test_vllms_wrapper_form_is_the_folder_that_it_wraps_and_fails_in_sglang(
    found: dict[tuple[str, str], Any], folders: dict[str, Path]
) -> None:
    assert equal(found, ("vllm", "wrapped"), ("vllm", "flat"))
    assert said_of(folders["wrapped"], "vllm") == "same"
    assert isinstance(found["sglang", "wrapped"], str)
    assert said_of(folders["wrapped"], "sglang") == "does-not-load"


def test_names_that_a_wrapper_left_fail_in_vllm_and_are_dropped_by_sglang_in_silence(
    found: dict[tuple[str, str], Any], folders: dict[str, Path]
) -> None:
    assert isinstance(found["vllm", "prefixed"], str)
    assert equal(found, ("vllm", "prefixed, for vLLM"), ("vllm", "flat"))
    assert said_of(folders["prefixed"], "vllm") == "does-not-load"
    assert not isinstance(found["sglang", "stock prefixed"], str)
    assert not equal(found, ("sglang", "stock prefixed"), ("sglang", "stock"))
    assert said_of(folders["stock prefixed"], "sglang") == "different"


def test_a_quantisation_of_no_tensor_keeps_vllm_from_loading(
    found: dict[tuple[str, str], Any], folders: dict[str, Path]
) -> None:
    assert isinstance(found["vllm", "gptq"], str)
    assert said_of(folders["gptq"], "vllm") != "same"
