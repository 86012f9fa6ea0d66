"""Quantised drafts in the real draft classes: which modules each builds quantised, what arrives, and what it computes."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import quantised
import random_drafts
import run_engine
import torch
import trained
from matrix import EQUAL, HOLDS, REFUSED, Matrix
from quantised import MATRICES
from random_drafts import Spec
from safetensors.torch import load_file, save_file

from eagle3_interop.convert import api
from eagle3_interop.convert.decide.dequantising import dequantised
from eagle3_interop.schemas.dialects.quantised import listed, write
from eagle3_interop.schemas.engines.naming import Fails
from eagle3_interop.schemas.engines.releases import newest
from eagle3_interop.schemas.findings import Refused, errors

pytestmark = pytest.mark.engine

DEPTH = 6
"""Layers of the target: vLLM gives the draft's the numbers from here on."""

GROUPED, LATENT = "two layers", "one latent layer"
SPECS = {
    GROUPED: random_drafts.GRID["two layers"],
    LATENT: Spec(
        ("sglang", "vllm"),
        latent={
            "q_lora_rank": 64,
            "kv_lora_rank": 64,
            "qk_nope_head_dim": 32,
            "qk_rope_head_dim": 64,
            "v_head_dim": 32,
        },
    ),
}
STEPS, LENGTH = 2, 24
LATENT_LEAVES = ("q_a_proj", "q_b_proj", "kv_a_proj_with_mqa", "o_proj", *MATRICES[4:])
"""All but the one that SGLang needs plain."""

LISTS: dict[str, list[str]] = {
    "nothing": [],
    "plain names": ["fc", "lm_head", "down_proj"],
    "vLLM's own names": [
        "model.fc",
        "model.layers.6.mlp.down_proj",
        "model.layers.7.mlp.down_proj",
    ],
    "numbered as in the file": ["layers.0.mlp.down_proj", "model.layers.1.self_attn.o_proj"],
    "the parts of one matrix": [f"model.layers.6.self_attn.{part}_proj" for part in "qkv"],
    "patterns of parts": [f"re:.*{part}_proj" for part in "qkv"],
    "some parts": ["re:.*gate_proj", "re:.*q_proj"],
    "a pattern": ["re:.*down_proj", "re:.*fc$"],
    "SGLang's own names": ["model.qkv_proj", "model.self_attn.o_proj", "lm_head"],
    "ends of names": ["self_attn.o_proj", "gate_up_proj"],
    "a class": ["Linear"],
}
"""Ignore lists of compressed-tensors, right and wrong."""

WILDCARDS: dict[str, list[str]] = {
    "nothing": [],
    "plain names": ["fc", "lm_head", "down_proj"],
    "vLLM's own names": ["model.fc", "model.layers.6.mlp.down_proj"],
    "wildcards": ["*fc", "*lm_head", "*down_proj"],
    "a branch": ["model.layers.6*", "model.layers.1.*"],
    "parts": ["*self_attn*", "re:.*gate_proj"],
}
"""Lists of ModelOpt."""

TARGETS: dict[str, list[list[str]]] = {
    "a class": [["Linear"]],
    "a class and the head": [["Linear", "re:.*lm_head"]],
    "another class": [["RowParallelLinear"], ["Linear"]],
    "names": [["re:.*o_proj", "re:.*qkv_proj"], ["re:.*"]],
    "a class before names": [["Linear"], ["re:.*down_proj"]],
}
"""Targets of the groups."""


def config(kind: str, ignore: list[str], targets: list[list[str]] | None = None) -> dict[str, Any]:
    said = quantised.quantisation_config(kind, ()) | {"ignore": ignore}
    if targets is not None:
        one = said["config_groups"]["group_0"]
        other = quantised.SCHEMES["fp8"][1]["config_groups"]["group_0"]
        schemes = [one, {**other, "format": "float-quantized"}]
        schemes[0] = {**schemes[0], "format": "int-quantized"}
        groups = {
            f"group_{index}": {**schemes[index], "targets": each}
            for index, each in enumerate(targets)
        }
        said |= {"config_groups": groups, "format": "mixed-precision"}
    return said


CASES = {
    **{("ignore", name): config("int8", ignore) for name, ignore in LISTS.items()},
    **{("wildcards", name): config("modelopt fp8", names) for name, names in WILDCARDS.items()},
    **{("targets", name): config("int8", ["re:.*fc$"], groups) for name, groups in TARGETS.items()},
}

KINDS = {"CompressedTensorsW8A8Int8": 0, "CompressedTensorsW8A8Fp8": 1}
"""Which group a scheme is of."""


@pytest.fixture(scope="session")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("quantised")


@pytest.fixture(scope="session")
def answers(root: Path, request: pytest.FixtureRequest) -> dict[str, Any]:
    """What both engines build from every list, of the drafts that are selected."""
    found: dict[str, Any] = {}
    items = (item for item in request.session.items if hasattr(item, "callspec"))
    selected = {item.callspec.params.get("what") for item in items}
    for engine in ("vllm", "sglang"):
        folders = {}
        for what, spec in SPECS.items():
            if what not in selected:
                continue
            layout = engine if engine in spec.layouts else "sglang"
            plain = random_drafts.write(spec, layout, root / f"{engine}-{what[:3]}", trained.TARGET)
            if layout != engine:
                output = root / f"{engine}-{what[:3]}-own"
                loaded = api.load(str(plain), layout, trained.OPTIONS)
                api.write(api.convert(loaded, engine, trained.OPTIONS), output)
                plain = output
            own = json.loads((plain / "config.json").read_text())
            for case, said in CASES.items():
                folder = root / f"{engine}-{len(folders)}"
                folder.mkdir()
                (folder / "config.json").write_text(
                    json.dumps({**own, "quantization_config": said})
                )
                (folder / "model.safetensors").symlink_to(plain / "model.safetensors")
                folders[what, *case] = folder
            found[engine, what] = api.load(str(plain), engine, trained.OPTIONS).reading.draft
        cases = [{"draft": str(folder)} for folder in folders.values()]
        asked = {"target": str(trained.TARGET), "cases": cases}
        answer = run_engine.run_engine(f"{engine}-quantised", asked, timeout_s=1200)
        found[engine] = dict(zip(folders, answer["cases"], strict=True))
        found[engine, "version"] = answer["version"]
    return found


@pytest.mark.parametrize("what", [GROUPED, pytest.param(LATENT, marks=pytest.mark.conformance)])
@pytest.mark.parametrize("case", CASES, ids=" ".join)
@pytest.mark.parametrize("engine", ["vllm", "sglang"])
def test_our_rules_answer_as_the_engines_own_matchers(
    engine: str, case: tuple[str, str], what: str, answers: dict[str, Any]
) -> None:
    naming, said = newest(engine).naming, listed(CASES[case])
    answer = answers[engine][what, *case]
    expected: dict[str, tuple[str, int | None]] = {}
    for asked in naming.asks(answers[engine, what], DEPTH):
        if asked.plain and "head" not in asked.name and "kv_b" not in asked.name:
            continue  # it is never asked for
        try:
            scheme = naming.answer(asked, said)
        except Fails:
            assert "error" in answer, asked
            return
        group = next((i for i, (_, each) in enumerate(said.groups) if each == scheme), None)
        expected[asked.name] = (asked.kind, group)
    assert "error" not in answer, answer["error"]
    found = {
        module["name"]: (
            module["kind"],
            None if module["scheme"] is None else KINDS.get(module["scheme"], 0),
        )
        for module in answer["modules"]
    }
    if engine == "sglang" and what == LATENT:
        found.pop("model.self_attn.kv_b_proj", None)
        expected.pop("model.self_attn.kv_b_proj", None)
    if engine == "vllm" and what == LATENT:
        found.pop("lm_head", None)
        expected.pop("lm_head", None)
    assert found == expected


def test_lists_that_we_write_are_right_in_both(answers: dict[str, Any], matrix: Matrix) -> None:
    fact = (
        "quantised drafts: vLLM asks by `model.layers.N` from the target's depth on, SGLang's llama class by names "
        "without a number, both for `qkv_proj` and never for its parts; entries that end with a leaf's name are "
        "found by both"
    )
    for engine, title in (("vllm", "vLLM"), ("sglang", "SGLang")):
        detail = f"class: its own matchers on {len(answers[engine])} folders"
        version = {engine: answers[engine, "version"]}
        matrix.record("facts", fact, title, HOLDS, detail, **version)


@pytest.mark.conformance
@pytest.mark.parametrize("kind", ["fp8 static", "w4a16", "nvfp4", "modelopt fp8"])
def test_sglangs_latent_class_fails_on_what_has_no_rows_to_join(kind: str, root: Path) -> None:
    """So that these are refused for it; with its latent projections plain they load."""
    plain = random_drafts.write(SPECS[LATENT], "sglang", root / f"{kind}-plain", trained.TARGET)
    tensors = {
        name: value.numpy() for name, value in load_file(plain / "model.safetensors").items()
    }
    own, cases, codes = json.loads((plain / "config.json").read_text()), [], []
    for leaves in (LATENT_LEAVES, LATENT_LEAVES[3:]):
        ignore = ["re:.*fc", "lm_head", "re:.*kv_b_proj"]
        if len(leaves) < len(LATENT_LEAVES):
            ignore += ["re:.*q_b_proj", "re:.*q_a_proj", "re:.*kv_a_proj_with_mqa", "re:.*fused_.*"]
        said = quantised.quantisation_config(kind, ignore)
        stored, _ = quantised.quantise(tensors, kind, leaves)
        source = quantised.save(
            root / f"{kind}-{len(leaves)}", {**own, "quantization_config": said}, stored
        )
        cases.append({"draft": str(source), "output": f"{source}.loaded.safetensors"})
        try:
            converted(source, "sglang")
        except Refused as refused:
            codes.append({item.code for item in errors(refused.findings)})
        else:
            codes.append(set())
    request = {"target": str(trained.TARGET), "cases": cases}
    joined, apart = run_engine.run_engine("sglang-quantised", request)["cases"]
    assert "param.shape" in joined["error"] or "concatenated" in joined["error"], joined["error"]
    assert "error" not in apart, apart["error"]
    assert codes == [{"quantised-unmatched"}, set()]


# What arrives in SGLang, and what vLLM computes.

LATENT_ROW = "int8, W8A8, latent attention"
RUN = {
    "int8, W8A8": "int8",
    LATENT_ROW: "int8",
    "FP8, W8A8 dynamic": "fp8",
    "4 bits, W4A16": "w4a16",
}
PROBED = {
    **RUN,
    "FP8, W8A8 static": "fp8 static",
    "8 bits, W8A16": "w8a16",
    "NVFP4, compressed-tensors": "nvfp4",
    "FP8, ModelOpt": "modelopt fp8",
    "NVFP4, ModelOpt": "modelopt nvfp4",
}
FUSED = {
    "qkv_proj": ("q_proj", "k_proj", "v_proj"),
    "gate_up_proj": ("gate_proj", "up_proj"),
    "fused_qkv_a_proj_with_mqa": ("q_a_proj", "kv_a_proj_with_mqa"),
}


@pytest.fixture(scope="session")
def sources(root: Path) -> dict[str, Path]:
    """One draft of each scheme, in SGLang's layout, bfloat16 beside its quantised weights."""
    with pytest.MonkeyPatch.context() as patch:
        # vLLM's CPU kernel takes groups of 32 and more.
        said = quantised._compressed(
            "pack-quantized", quantised._weights(4, "group", group_size=32)
        )
        patch.setitem(quantised.SCHEMES, "w4a16", (quantised._grouped(4, 32), said))
        found: dict[str, Path] = {}
        for row, kind in PROBED.items():
            latent = row == LATENT_ROW
            spec, place = SPECS[LATENT] if latent else Spec(layers=1), root / f"plain-{len(found)}"
            plain = random_drafts.write(spec, "sglang", place, trained.TARGET)
            file = load_file(plain / "model.safetensors")
            tensors = {name: value.numpy() for name, value in file.items()}
            stored, _ = quantised.quantise(tensors, kind, LATENT_LEAVES if latent else MATRICES)
            ignore = ("re:.*fc", "lm_head", *(("re:.*kv_b_proj",) if latent else ()))
            own = json.loads((plain / "config.json").read_text())
            own["quantization_config"] = quantised.quantisation_config(kind, ignore)
            found[row] = quantised.save(root / f"source-{len(found)}", own, stored)
        return found


def converted(source: Path, destination: str, **options: Any) -> Path:
    output = source.parent / f"{source.name}-{destination}{''.join(options)}"
    chosen = api.Options(target=str(trained.TARGET), target_name="org/target", **options)
    api.write(api.convert(api.load(str(source), "sglang", chosen), destination, chosen), output)
    return output


@pytest.fixture(scope="session")
def arrived(sources: dict[str, Path]) -> dict[str, Any]:
    """The parameters of SGLang's class, loaded from our outputs."""
    outputs = {row: converted(source, "sglang") for row, source in sources.items()}
    cases = [
        {"draft": str(folder), "output": f"{folder}.loaded.safetensors"}
        for folder in outputs.values()
    ]
    request = {"target": str(trained.TARGET), "cases": cases}
    answer = run_engine.run_engine("sglang-quantised", request, timeout_s=900)
    return {
        "version": answer["version"],
        **{
            row: (case, Path(asked["output"]))
            for row, case, asked in zip(outputs, answer["cases"], cases, strict=True)
        },
    }


@pytest.mark.conformance
@pytest.mark.parametrize("row", PROBED)
def test_every_part_arrives_in_sglangs_class_as_it_lies_in_the_file(
    row: str, sources: dict[str, Path], arrived: dict[str, Any], matrix: Matrix
) -> None:
    case, path = arrived[row]
    assert "error" not in case, case["error"]
    # The llama class calls its first layer as others do, whatever its file says.
    loaded = {
        name.replace("model.layers.0.", "model.midlayer."): value
        for name, value in load_file(path).items()
    }
    stored = load_file(sources[row] / "model.safetensors")
    wrong = []
    for name, part in stored.items():
        if name.rpartition(".")[0].rpartition(".")[2] not in (*MATRICES, *LATENT_LEAVES):
            continue
        found = _slot(f"model.{name}", loaded, stored)
        same = found is not None and _bytes(found.reshape(-1)) == _bytes(part.reshape(-1), found)
        if not same and not name.endswith("weight_shape"):
            wrong.append(name)
    detail = f"{len(stored)} tensors of its file, loaded"
    versions = {"sglang": arrived["version"]}
    matrix.claim("quantised", row, "SGLang's class", HOLDS, not wrong, detail, **versions)


def _slot(
    name: str, loaded: dict[str, torch.Tensor], stored: dict[str, torch.Tensor]
) -> torch.Tensor | None:
    """Where a part of the file lies in the class: by itself, or among the rows of what it is put into."""
    module, _, part = name.rpartition(".")
    path, _, leaf = module.rpartition(".")
    if name in loaded:
        return loaded[name]
    for whole, leaves in FUSED.items():
        target = loaded.get(f"{path}.{whole}.{part}")
        if leaf not in leaves or target is None:
            continue
        at, files = leaves.index(leaf), [f"{path}.{each}.{part}" for each in leaves]
        parts = [stored[file.removeprefix("model.")] for file in files]
        sizes = [len(each) if each.ndim else 1 for each in parts]
        return target[sum(sizes[:at]) : sum(sizes[: at + 1])]
    return None


def _bytes(value: torch.Tensor, like: torch.Tensor | None = None) -> bytes:
    """Its numbers; scales in the dtype that the class holds them in."""
    if like is not None and like.dtype != value.dtype:
        value = value.to(like.dtype)
    return value.contiguous().view(torch.uint8).numpy().tobytes()


@pytest.fixture(scope="session")
def computed(root: Path, sources: dict[str, Path]) -> dict[str, Any]:
    """Logits of vLLM's class in bfloat16: of quantised outputs, of the plain drafts that they stand for, and of one
    whose list misses."""
    inputs = root / "inputs.safetensors"
    rng = np.random.default_rng(1)
    features = rng.standard_normal((LENGTH, 3 * random_drafts.TARGET_WIDTH)).astype(np.float32)
    save_file(
        {
            "token_ids": torch.from_numpy(rng.integers(0, random_drafts.V, LENGTH)),
            "features": torch.from_numpy(features).bfloat16(),
        },
        inputs,
    )
    folders = {}
    for row in RUN:
        source = sources[row]
        folders[row, "quantised"] = converted(source, "vllm")
        folders[row, "universal"] = converted(source, "universal")
        folders[row, "plain"] = converted(source, "vllm", dequantize=True)
    missed = root / "missed"
    missed.mkdir()
    quantised_folder = folders["int8, W8A8", "quantised"]
    said = json.loads((quantised_folder / "config.json").read_text())
    said["quantization_config"]["ignore"] = ["fc", "lm_head"]
    (missed / "config.json").write_text(json.dumps(said))
    (missed / "model.safetensors").symlink_to(quantised_folder / "model.safetensors")
    folders["int8, W8A8", "missed"] = missed
    cases = [
        {"draft": str(folder), "inputs": str(inputs), "output": f"{folder}.vllm.safetensors"}
        for folder in folders.values()
    ]
    request = {
        "target": str(trained.TARGET),
        "steps": STEPS,
        "dtype": "bfloat16",
        "cases": cases,
    }
    answer = run_engine.run_engine("vllm-draft-class", request, timeout_s=1200)
    found: dict[str, Any] = {"version": answer["version"]}
    for key, case, said_of in zip(folders, cases, answer["cases"], strict=True):
        found[key] = said_of.get("error") or load_file(case["output"])["logits"].float()
    return found


def apart(one: Any, other: Any) -> float:
    """Relative difference of logits, in the mean square; infinite for something else altogether."""
    if isinstance(one, str) or isinstance(other, str) or not torch.isfinite(one).all():
        return float("inf")
    return float((one - other).norm() / other.norm())


@pytest.mark.parametrize("row", RUN)
@pytest.mark.parametrize("output", ["quantised", "universal"])
def test_vllm_computes_the_draft_that_our_output_stands_for(
    row: str, output: str, computed: dict[str, Any], matrix: Matrix
) -> None:
    found, wanted = computed[row, output], computed[row, "plain"]
    assert not isinstance(wanted, str), wanted
    difference = apart(found, wanted)
    failure = found[:200] if isinstance(found, str) else ""
    column = "vllm" if output == "quantised" else output
    detail = f"{difference:.2g}{failure and ': '}{failure}"
    matrix.claim(
        "quantised", row, column, EQUAL, difference < 0.06, detail, vllm=computed["version"]
    )


def test_a_list_that_misses_is_garbage_without_an_error(computed: dict[str, Any]) -> None:
    found, wanted = computed["int8, W8A8", "missed"], computed["int8, W8A8", "plain"]
    assert not isinstance(found, str), found
    assert not torch.isfinite(found).all() or apart(found, wanted) > 0.3


@pytest.mark.parametrize("row", PROBED)
def test_both_sides_stand_for_the_same_numbers(
    row: str, sources: dict[str, Path], matrix: Matrix
) -> None:
    """Of schemes that no CPU computes with, this is the proof."""
    source = dequantised(api.load(str(sources[row]), "sglang", trained.OPTIONS))
    count = 0
    for destination in ("vllm", "sglang"):
        output = dequantised(
            api.load(str(converted_once(sources[row], destination)), destination, trained.OPTIONS)
        )
        for name in source.reading.names:
            if name.endswith("_proj.weight"):
                mine, theirs = (
                    side.checkpoint.values(side.reading.names[name]) for side in (source, output)
                )
                assert np.array_equal(mine, theirs), name
                count += 1
    detail = f"{count} matrices"
    matrix.record("quantised", row, "numbers", EQUAL, detail)


def converted_once(source: Path, destination: str) -> Path:
    output = source.parent / f"{source.name}-{destination}"
    return output if output.exists() else converted(source, destination)


@pytest.mark.parametrize("row", [row for row in PROBED if "latent" not in row])
def test_a_quantised_fc_is_refused_for_sglangs_llama_class_which_drops_its_scale(
    row: str, sources: dict[str, Path]
) -> None:
    draft = api.load(str(sources[row]), "sglang", trained.OPTIONS).reading.draft
    group = draft.quantisation.groups[0]
    modules = tuple(sorted({*group.modules, "fc"}))
    changed = draft.quantisation.model_copy(
        update={"groups": (group.model_copy(update={"modules": modules}),)}
    )
    draft = draft.model_copy(update={"quantisation": changed})
    said = listed(write(draft, {}))
    missed = dict(newest("sglang").naming.misreads(draft, said, None))
    assert missed.keys() == {"model.fc"}
    assert not list(newest("vllm").naming.misreads(draft, said, None))


def test_modelopts_schemes_are_refused_for_the_library(
    sources: dict[str, Path], matrix: Matrix
) -> None:
    for row in ("FP8, ModelOpt", "NVFP4, ModelOpt"):
        with pytest.raises(Refused) as refused:
            converted(sources[row], "universal")
        codes = ", ".join(sorted({item.code for item in errors(refused.value.findings)}))
        matrix.record("quantised", row, "universal", REFUSED, codes)
