"""Each way to serve a trained draft wrongly is a `fail` that names the stage; each conversion is a `pass`."""

import json
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from eagle3_interop.convert import api
from eagle3_interop.schemas.findings import Refused
from eagle3_interop.validators.accept.drafting import batches
from eagle3_interop.validators.accept.shape import Shape
from eagle3_interop.validators.network.reference import Network
from eagle3_interop.validators.network.weights import Weights
from eagle3_interop.validators.prove import validate as orchestration
from eagle3_interop.validators.prove.agreement import LogitComparison
from eagle3_interop.validators.prove.request import Request
from eagle3_interop.validators.prove.stages import first_parting
from eagle3_interop.validators.target.running import Target
from eagle3_interop.validators.target.writing import write_texts

DATA = Path(__file__).resolve().parents[1] / "data"
TARGET, PLAIN = DATA / "target", DATA / "drafts" / "plain"
EMBED_TAP = DATA / "drafts" / "embed_tap"


@pytest.fixture(scope="module")
def target():
    return Target.load(TARGET)


@pytest.fixture(autouse=True)
def _one_target(monkeypatch, target):
    """Loaded once, not by each validation."""
    monkeypatch.setattr(orchestration, "load_target", lambda *_: target)


@pytest.fixture(scope="module")
def prompts(tmp_path_factory):
    path = tmp_path_factory.mktemp("prompts") / "prompts.jsonl"
    path.write_text("".join((DATA / "prompts.jsonl").read_text().splitlines(keepends=True)[:4]))
    return path


def run(checkpoint, source, prompts, **changes):
    options = {"shape": Shape.chain(3), "new_tokens": 24, "prompts": prompts} | changes
    return orchestration.validate(Request(str(checkpoint), str(TARGET), str(source), **options))[0]


def sabotaged(folder, source=PLAIN, config=lambda _config: None, tensors=lambda _tensors: None):
    """A copy of a checkpoint after changes to its config and its tensors."""
    folder.mkdir()
    content = json.loads((source / "config.json").read_text())
    stored = load_file(source / "model.safetensors")
    config(content)
    tensors(stored)
    (folder / "config.json").write_text(json.dumps(content))
    stored = {name: tensor.contiguous() for name, tensor in stored.items()}
    save_file(stored, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def ids(*taps):
    return lambda config: config.update(eagle_aux_hidden_state_layer_ids=list(taps))


def flag(name):
    return lambda config: config.update({name: True})


def theta(config):
    config["transformer_layer_config"]["rope_parameters"]["rope_theta"] = 5e5


def permute_blocks(tensors):
    tensors["fc.weight"] = torch.cat(tensors["fc.weight"].chunk(3, dim=1)[::-1], dim=1)


def shift_head(tensors):
    tensors["lm_head.weight"] = tensors["lm_head.weight"].roll(1, dims=0)


def other_tokens(tensors):
    """Every draft id stands for the token after the right one, in both maps alike."""
    listed = tensors["t2d"].nonzero()[:, 0]
    moved = (listed + 1)[listed < len(tensors["t2d"]) - 1]
    if len(moved) < len(listed):
        moved = torch.cat([moved, (~tensors["t2d"]).nonzero()[:1, 0]]).sort().values
    tensors["d2t"] = moved - torch.arange(len(moved))
    tensors["t2d"] = torch.zeros_like(tensors["t2d"])
    tensors["t2d"][moved] = True


def scaled(name):
    def change(tensors):
        tensors[name] = tensors[name] * 1.125

    return change


SABOTAGE = {
    "embedding-tap-served-as-first-layer": ("fc input", ids(0, 3, 5), None),
    "ids-off-by-one": ("fc input", ids(2, 4, 6), None),
    "fc-blocks-permuted": ("fc output", None, permute_blocks),
    "residual-flipped": ("residual", flag("norm_before_residual"), None),
    "feedback-flipped": ("feedback of step 2", flag("norm_output"), None),
    "theta": ("attention", theta, None),
    "head-rows-shifted": ("head", None, shift_head),
    "other-tokens": ("vocabulary map", None, other_tokens),
    "embeddings": ("embedding", None, scaled("embed_tokens.weight")),
    "hidden-norm": ("first-layer input", None, scaled("layers.0.hidden_norm.weight")),
    "value-weights": ("attention", None, scaled("layers.0.self_attn.v_proj.weight")),
    "mlp-weights": ("MLP", None, scaled("layers.0.mlp.down_proj.weight")),
    "final-norm": ("final norm", None, scaled("norm.weight")),
}


@pytest.mark.parametrize("case", SABOTAGE)
def test_a_wrong_wiring_fails_and_says_where(tmp_path, prompts, case):
    stage, config, tensors = SABOTAGE[case]
    changes = {"config": config, "tensors": tensors}
    wrong = sabotaged(tmp_path / case, **{key: value for key, value in changes.items() if value})
    report = run(wrong, PLAIN, prompts)
    assert report.verdict == "fail"
    part = report.against.first_difference
    assert part.stage == stage
    assert part.max_abs_diff > 0
    assert part.meaning
    failed = {gate.name for gate in report.gates if not gate.passed}
    assert "draft-vocabulary" in failed if case == "other-tokens" else "logits-agree" in failed
    assert report.against.differences if config else report.against.tensors


def test_a_draft_on_the_embeddings_served_on_the_first_layer(tmp_path, prompts):
    """What vLLM makes of SGLang's ids, and what nobody notices: the draft still drafts."""
    wrong = sabotaged(tmp_path / "wrong", EMBED_TAP, config=ids(1, 3, 5))
    report = run(wrong, EMBED_TAP, prompts)
    assert report.verdict == "fail"
    assert report.against.first_difference.stage == "fc input"
    assert report.against.differences["taps"] == ([1, 3, 5], [0, 3, 5])
    assert not next(gate for gate in report.gates if gate.name == "counters-equal").passed
    assert report.acceptance.accept_length > 1.5


@pytest.mark.parametrize("layout", ["sglang", "vllm"])
def test_a_dropped_map_is_refused_by_name(tmp_path, prompts, layout):
    """Engines would take draft ids for target ids without a word; no network can be read from it."""
    made = converted(PLAIN, layout, tmp_path / "made")
    broken = sabotaged(
        tmp_path / "broken", made, tensors=lambda stored: (stored.pop("d2t"), stored.pop("t2d", 0))
    )
    with pytest.raises(Refused) as refused:
        run(broken, PLAIN, prompts)
    assert "missing-map" in {item.code for item in refused.value.findings}


def converted(source, layout, output):
    options = api.Options(target=str(TARGET), target_name="org/target")
    api.write(api.convert(api.load(str(source), "auto", options), layout, options), output)
    return output


@pytest.mark.parametrize(
    ("draft", "layout"),
    [
        ("plain", "sglang"),
        ("plain", "vllm"),
        ("plain", "universal"),
        ("embed_tap", "sglang"),
        ("norm_before_residual", "universal"),
        ("qwen3", "universal"),
    ],
)
def test_a_conversion_and_the_way_back_pass(tmp_path, prompts, draft, layout):
    source = DATA / "drafts" / draft
    there = converted(source, layout, tmp_path / "there")
    back = converted(there, "speculators", tmp_path / "back")
    for checkpoint in (there, back):
        report = run(checkpoint, source, prompts)
        assert report.verdict == "pass"
        assert len(report.gates) == 3
        assert report.acceptance == report.against.acceptance
        assert report.against.logits.max_abs_diff == 0
        assert report.against.first_difference is None
        assert not report.against.tensors
        assert not report.against.differences


def network(target, taps, blocks=None):
    loaded = api.load(str(PLAIN), "auto", api.Options(target=str(TARGET), taps=taps))
    weights = Weights.read(loaded.reading, loaded.checkpoint, tables=target.tables)
    if blocks is None:
        return Network(loaded.reading.draft, weights)
    tensors = {name: weights[name] for name in loaded.reading.names}
    parts = tensors["fc.weight"].chunk(3, dim=1)
    tensors["fc.weight"] = torch.cat([parts[i] for i in blocks], dim=1)
    return Network(
        loaded.reading.draft, Weights.of(loaded.reading.draft, tensors, tables=target.tables)
    )


def test_permuted_blocks_differ_by_rounding_only(target):
    """Taps in the trainer's own order against what a conversion makes of them: sums run in another order."""
    ours, theirs = network(target, (1, 3, 5), (1, 2, 0)), network(target, (5, 1, 3))
    lines = (DATA / "prompts.jsonl").read_text().splitlines()[:3]
    texts = write_texts(target, [json.loads(line)["token_ids"] for line in lines], 48, 4).texts
    comparison = LogitComparison(ours, theirs, 4)
    for batch in batches(target, texts, comparison.taps):
        comparison.add(batch)
        assert first_parting(ours, theirs, batch, 4) is None
    assert 0 < comparison.result().max_abs_diff < comparison.limit / 20
    assert comparison.result().top1_agreement == 1


def test_a_looser_limit_is_the_users(tmp_path, prompts):
    wrong = sabotaged(tmp_path / "wrong", tensors=scaled("norm.weight"))
    gates = {gate.name: gate for gate in run(wrong, PLAIN, prompts, max_logit_diff=100.0).gates}
    assert gates["max-logit-diff"].passed
    assert gates["max-logit-diff"].wanted == 100
    assert "logits-agree" not in gates


def test_files_beside_the_checkpoint_are_not_part_of_it(tmp_path, prompts):
    folder = shutil.copytree(PLAIN, tmp_path / "draft")
    (folder / "notes.txt").write_text("x")
    files = run(folder, PLAIN, prompts).checkpoint.files
    assert set(files) == {"config.json", "model.safetensors"}
