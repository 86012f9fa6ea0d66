"""What the conversions take for granted of the frameworks, each shown by running it where that is cheap."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import random_drafts
import run_engine
import test_classes
import trained
from matrix import HOLDS, Matrix
from random_drafts import Spec

from eagle3_interop.schemas.dialects.base import TargetFacts
from eagle3_interop.schemas.engines import targets
from eagle3_interop.schemas.engines.sglang import ids_to_taps

pytestmark = pytest.mark.engine

DEPTH = 12
LISTS = ([0, 2, 4], [1, 3, 5], [2, 4, 8], [3, 5, 12], [2, 4, 12], [5, 6, 7, 8])
LOOP = {"taps": [0, 2, 3], "depth": 3}

END = {
    "gemma3_causal.Gemma3TextModel": ("Gemma3ForCausalLM", "Gemma3ForConditionalGeneration"),
    "gemma4_causal.Gemma4TextModel": (
        "Gemma4ForCausalLM",
        "Gemma4ForConditionalGeneration",
        "Gemma4UnifiedForConditionalGeneration",
    ),
    "gpt_oss.GptOssModel": ("GptOssForCausalLM",),
    "minimax_m3.MiniMaxM3Model": (
        "MiniMaxM3SparseForCausalLM",
        "MiniMaxM3SparseForConditionalGeneration",
    ),
}
"""Inner models that capture the end, and the target classes that hold them."""

NO_TARGETS = frozenset(
    {
        "arcee.ArceeModel",
        "bailing_moe_v3.BailingMoELinearModel",
        "beam.BeamModel",
        "glm4.Glm4Model",
        "granitemoehybrid.GraniteMoeHybridModel",
        "laguna.LagunaModel",
        "lfm2.Lfm2Model",
        "lfm2_moe.Lfm2MoeModel",
        "mimo_v2.MiMoV2Model",
        "muse_glimmer.MuseGlimmerModel",
        "muse_spark.MuseSpark1xModel",
        "nanbeige.NanbeigeModel",
        "nemotron_h.NemotronHModel",
    }
)
"""Inner models of classes without the method, which SGLang refuses as EAGLE-3 targets."""

READ = frozenset({"qwen4_exp.Qwen4ExpModel"})
"""Read, not run: it captures at flagged layers alone."""


@pytest.fixture(scope="session")
def rules() -> dict[str, Any]:
    """Of all of SGLang's target classes; some load only where the CPU's own kernels are not looked for."""
    cases = [{"ids": ids, "layers": DEPTH} for ids in (*LISTS, None)]
    return run_engine.run_engine(
        "sglang-capture-rules",
        {"cases": cases, **LOOP},
        variables={"SGLANG_USE_CPU_ENGINE": "0"},
    )


def of_class(name: str) -> TargetFacts:
    return TargetFacts("target", 32, DEPTH, 96, "", (name,))


def test_every_target_class_of_sglang_reads_ids_as_we_do(
    rules: dict[str, Any], matrix: Matrix
) -> None:
    *lists, defaults = rules["cases"]
    own = targets.SGLANG_IDS_AS_TAPS | {targets.SGLANG_GPT_OSS}
    assert own <= defaults.keys()
    for ids, classes in zip(LISTS, lists, strict=True):
        for name, layers in classes.items():
            if layers == ["handed on", ids]:
                continue  # a wrapper: its language model's class translates
            found = layers[1] if layers[0] == "handed on" else layers
            assert found == ids_to_taps(ids, of_class(name)), (name, ids, layers)
    for name, layers in defaults.items():
        if layers[0] == "handed on" and layers[1] is None:
            continue
        found = layers[1] if layers[0] == "handed on" else layers
        late = name == targets.SGLANG_LATE_DEFAULT
        assert found == ([3, 7, 10] if late else [2, 6, 9]), name
    fact = (
        "ids of DeepSeek, Kimi K2.5, GLM-4.7-Flash, GLM-5 and Mistral Large 3: taps unless the first is 1; "
        "gpt_oss: taps if the largest is L; every other target class: id + 1; MiniMax M3 VL: a default one "
        "layer later"
    )
    detail = f"the method of {len(defaults)} classes called on {len(LISTS)} lists and on none"
    matrix.record("facts", fact, "SGLang", HOLDS, detail, sglang=rules["version"])


def test_every_loop_of_sglang_captures_the_end_where_we_say_so(
    rules: dict[str, Any], matrix: Matrix
) -> None:
    assert {name for names in END.values() for name in names} == targets.SGLANG_CAPTURES_THE_END
    loops = {
        name: found
        for name, found in rules["loops"].items()
        if name not in NO_TARGETS and name not in READ
    }
    assert loops.pop("deepseek_v2.DeepseekV2Model") == (
        "RuntimeError: captured 2 of 3 aux hidden states"
    )
    assert END.keys() <= loops.keys()
    for name, found in loops.items():
        assert found == ([0, 2, 3] if name in END else [0, 2]), name
    fact = (
        "the stream after the last layer is captured of Gemma 3 and 4, gpt_oss and MiniMax M3, of no other "
        "target class; the embedding of every one"
    )
    detail = f"the loops of {len(loops) + 1} models run over layers that hand on"
    matrix.record("facts", fact, "SGLang", HOLDS, detail, sglang=rules["version"])


def test_gemma_3_in_sglang_captures_what_the_mlp_adds(
    rules: dict[str, Any], matrix: Matrix
) -> None:
    held = rules["gemma3_layer"] == {
        "captured is the stream": False,
        "captured is what the MLP adds": True,
        "with the residual it is the stream": True,
    }
    fact = "of Gemma 3, what the last MLP adds is captured, without the residual"
    matrix.claim("facts", fact, "SGLang", HOLDS, held, "its layer run", sglang=rules["version"])


Change = Callable[[dict[str, Any]], None]


class Folders:
    """Folders that are run together, in one process a framework."""

    def __init__(self, root: Path) -> None:
        self.root, self.grid = root, test_classes.Grid()
        self._jobs: dict[str, list[tuple[Path, Path]]] = {}
        self._inputs: dict[int, Path] = {}

    def add(
        self,
        engine: str,
        name: str,
        spec: Spec,
        layout: str,
        config: Change = lambda _: None,
        tensors: Change = lambda _: None,
    ) -> None:
        """A hand-written draft, changed, for one class to run."""
        path = self.root / f"{name}.source"
        source = random_drafts.write(spec, layout, path, trained.TARGET)
        folder = trained.changed(source, self.root / name, config, tensors)
        taps = max(1, len(spec.taps))
        if taps not in self._inputs:
            inputs = self.root / f"{taps}.inputs.safetensors"
            self._inputs[taps] = test_classes.write_inputs(inputs, spec)
        self._jobs.setdefault(engine, []).append((folder, self._inputs[taps]))

    def run(self) -> None:
        for engine, folders in self._jobs.items():
            test_classes.run(engine, trained.TARGET, folders, self.grid, self.root)

    def logits(self, engine: str, name: str) -> Any:
        return self.grid.found[engine, self.root / name]

    def equal(self, engine: str, one: str, other: str) -> bool:
        """Whether two folders are one network to a class."""
        first, second = self.logits(engine, one), self.logits(engine, other)
        if isinstance(first, str) or isinstance(second, str):
            raise AssertionError(f"{one}: {first}\n{other}: {second}")  # noqa: TRY004
        return test_classes.difference(first, second, test_classes.STEPS) < test_classes.TOLERANCE


def pop(*keys: str) -> Change:
    return lambda values: [values.pop(key) for key in keys] and None


def drop(*parts: str) -> Change:
    def change(tensors: dict[str, Any]) -> None:
        for name in [name for name in tensors if any(part in name for part in parts)]:
            del tensors[name]

    return change


def stock(config: dict[str, Any]) -> None:
    config["architectures"] = ["LlamaForCausalLMEagle3"]


def negate_fc(tensors: dict[str, Any]) -> None:
    tensors["fc.weight"] = np.ascontiguousarray(-tensors["fc.weight"])


def unsaid(value: bool) -> Spec:
    return Spec(flags={"norm_before_residual": value})


@pytest.fixture(scope="session")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Folders:
    this = Folders(tmp_path_factory.mktemp("facts"))
    for layout in ("speculators", "vllm"):
        for value in (True, False):
            this.add("vllm", f"{layout}-{value}", unsaid(value), layout)
        absent = pop("norm_before_residual")
        this.add("vllm", f"{layout}-absent", unsaid(True), layout, absent)
    four = Spec(taps=(1, 2, 4, 5))
    this.add("vllm", "four-taps", four, "vllm")
    this.add("vllm", "four-taps-uncounted", four, "vllm", pop("num_aux_hidden_states"))
    this.add("sglang", "plain", Spec(), "sglang")
    this.add("sglang", "flag", unsaid(True), "sglang")
    this.add("sglang", "own-table", Spec(own_embeddings=True), "sglang")
    this.add(
        "sglang", "no-table", Spec(own_embeddings=True), "sglang", tensors=drop("embed_tokens")
    )
    biased = Spec(decoder={"attention_bias": True}, biases=(*random_drafts.QKV, "o_proj"))
    qkv = tuple(f"{part}.bias" for part in random_drafts.QKV)
    this.add("sglang", "biases", biased, "sglang")
    this.add("sglang", "o-bias", biased, "sglang", tensors=drop(*qkv))
    qwen3 = Spec(kind="qwen3")
    this.add("sglang", "qk-norms", qwen3, "sglang")
    this.add("sglang", "no-qk-norms", qwen3, "sglang", tensors=drop("q_norm", "k_norm"))
    two = Spec(layers=2)
    shallow = lambda config: config.update(num_hidden_layers=1)  # noqa: E731
    this.add("sglang", "layer-beyond", two, "sglang", shallow)
    this.add("sglang", "no-layer-beyond", two, "sglang", shallow, drop("layers.1."))
    windowed = Spec(decoder=random_drafts.SLIDING)
    this.add("sglang", "window", windowed, "sglang")
    this.add("sglang", "no-window", windowed, "sglang", pop("sliding_window", "layer_types"))
    one = Spec(taps=(5,))
    this.add("sglang", "one-tap", one, "sglang")
    this.add("sglang", "one-tap-negated", one, "sglang", tensors=negate_fc)
    this.add("sglang", "three-taps-negated", Spec(), "sglang", tensors=negate_fc)
    this.run()
    return this


SAME = {
    "a speculators folder without `norm_before_residual` is read as true": (
        "vllm", "speculators-absent", "speculators-True", "speculators-False",
    ),
    "a flat folder without `norm_before_residual` is read as false": (
        "vllm", "vllm-absent", "vllm-False", "vllm-True",
    ),
    "`norm_before_residual` is ignored": ("sglang", "flag", "plain", None),
    "the draft's embeddings are replaced by the target's": ("sglang", "own-table", "no-table", None),
    "q/k/v biases are dropped without a word": ("sglang", "biases", "o-bias", None),
    "q/k norms are dropped without a word": ("sglang", "qk-norms", "no-qk-norms", None),
    "layers beyond num_hidden_layers are dropped without a word": (
        "sglang", "layer-beyond", "no-layer-beyond", None,
    ),
    "a sliding window in the config is ignored": ("sglang", "window", "no-window", None),
    "with one tap and equal widths fc is skipped": ("sglang", "one-tap", "one-tap-negated", None),
}  # fmt: skip
"""Fact: framework, a folder, another that is the same network to it, and one that is not."""


@pytest.mark.parametrize("fact", SAME)
def test_two_folders_are_one_network(fact: str, folders: Folders, matrix: Matrix) -> None:
    engine, one, same, other = SAME[fact]
    held = folders.equal(engine, one, same)
    if other is not None:
        held = held and not folders.equal(engine, one, other)
    _claim(matrix, folders, fact, engine, held, "class")


def test_sglang_applies_fc_where_it_is_wider(folders: Folders) -> None:
    """The control of the row above."""
    assert not folders.equal("sglang", "plain", "three-taps-negated")


def test_vllm_sizes_fc_from_its_own_key(folders: Folders, matrix: Matrix) -> None:
    assert not isinstance(folders.logits("vllm", "four-taps"), str)
    said = folders.logits("vllm", "four-taps-uncounted")
    fact = "fc of the llama class is sized by `num_aux_hidden_states`, not by top-level ids"
    how = "class: four ids without the key fail to load"
    _claim(matrix, folders, fact, "vllm", isinstance(said, str), how)


def _claim(matrix: Matrix, folders: Folders, fact: str, engine: str, held: bool, how: str) -> None:
    title = {"vllm": "vLLM", "sglang": "SGLang"}[engine]
    versions = {engine: folders.grid.versions[engine]}
    matrix.claim("facts", fact, title, HOLDS, held, how, **versions)


@pytest.mark.conformance
def test_vllm_takes_nested_ids_as_they_are(tmp_path: Path, matrix: Matrix) -> None:
    """A flat file with ids in eagle_config alone, as SGLang's are: not shifted."""
    folder = trained.convert(trained.source("plain"), "vllm", tmp_path)

    def nest(config: dict[str, Any]) -> None:
        ids = config.pop("eagle_aux_hidden_state_layer_ids")
        config["eagle_config"] = {"eagle_aux_hidden_state_layer_ids": ids}

    found = trained.generate("vllm", trained.changed(folder, tmp_path / "nested", nest))
    wanted = trained.expected(trained.source("plain"), "speculators")
    held = found["aux_layers"] == [1, 3, 5] and trained.same(found, wanted)
    fact = "ids in `eagle_config` alone are fed as they are, not shifted"
    matrix.claim("facts", fact, "vLLM", HOLDS, held, "engine", vllm=found["version"])


@pytest.mark.conformance
def test_sglang_ignores_ids_at_the_top(tmp_path: Path, matrix: Matrix) -> None:
    folder = trained.convert(trained.source("plain"), "sglang", tmp_path)
    ids = {"eagle_aux_hidden_state_layer_ids": [0, 1, 2]}
    other = trained.changed(folder, tmp_path / "top", lambda config: config.update(ids))
    found = trained.generate("sglang", other)
    wanted = trained.expected(trained.source("plain"), "speculators")
    held = found["aux_layers"] == [1, 3, 5] and trained.same(found, wanted)
    fact = "ids at the top level are ignored"
    matrix.claim("facts", fact, "SGLang", HOLDS, held, "engine", sglang=found["version"])


@pytest.mark.conformance
def test_the_stream_after_the_last_layer(tmp_path: Path, matrix: Matrix) -> None:
    """A tap that vLLM feeds and that a llama target in SGLang never captures: refused with reason."""
    ids = {"eagle_aux_hidden_state_layer_ids": [1, 3, 6]}
    source = trained.changed(
        trained.source("plain"), tmp_path / "end", lambda config: config.update(ids)
    )
    folder = trained.convert(source, "vllm", tmp_path)
    found = trained.generate("vllm", folder)
    wanted = trained.expected(source, "speculators")
    held = found["aux_layers"] == [1, 3, 6] and trained.same(found, wanted)
    fact = "the stream after the last layer can be tapped (id L)"
    matrix.claim("facts", fact, "vLLM", HOLDS, held, "engine", vllm=found["version"])

    cell = test_classes.convert(source, "speculators", "sglang", trained.OPTIONS)
    assert cell.codes == ("end-tap",)
    assert cell.folder is not None
    try:
        trained.generate("sglang", cell.folder)
        failed = False
    except run_engine.EngineError:
        failed = True
    fact = "a llama target never captures the stream after its last layer: forced, it fails"
    matrix.claim("facts", fact, "SGLang", HOLDS, failed, "engine", sglang="0.5.23")
