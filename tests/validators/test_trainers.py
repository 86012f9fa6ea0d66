"""Exports of real trainers: their own forward, at both depths, against the network that is read from the folder.

The folders and what the trainer's own code computed of them stand in ``data/trainers`` (its README says by
which code). Each was made with random weights, large enough that every norm, rotation and residual shows.
"""

import json
import shutil
from pathlib import Path

import pytest
from conversions import convert, loaded, refusal
from exports import (
    DATA,
    ROUNDING,
    copied,
    distance,
    edited,
    equal,
    forward,
    off,
    read,
    written_as,
)

from eagle3_interop.convert.api import Options, load
from eagle3_interop.schemas.findings import Usage

# SpecForge.


@pytest.mark.parametrize("variant", ["plain", "yarn"])
def test_a_plain_draft_of_specforge_is_its_own_forward(variant):
    assert equal(off(f"specforge/{variant}"))


@pytest.mark.parametrize("variant", ["plain", "yarn"])
def test_a_plain_draft_of_specforge_is_converted_without_a_question(variant, tmp_path):
    result = convert(copied(f"specforge/{variant}", tmp_path / "draft"), "vllm")
    assert result.conversion.report("")["trainer"]["deviations"] == []


def test_specforge_feeds_the_state_before_the_norm_back_whatever_norm_output_says():
    assert equal(off("specforge/norm_output", trainer="specforge"))
    first, second = off("specforge/norm_output", trainer="none")
    assert first < ROUNDING
    assert second > 0.1


def test_a_likely_draft_of_specforge_with_norm_output_asks():
    finding = refusal(read, "specforge/norm_output")
    assert finding.code == "trained-otherwise"
    assert "feedback 'pre-norm' (served: 'post-norm')" in finding.message


def test_the_answer_may_also_be_given_by_the_path_that_differs():
    assert equal(off("specforge/norm_output", sets={"feedback": "pre-norm"}))


@pytest.mark.parametrize("destination", ["sglang", "vllm", "speculators", "universal"])
def test_what_specforge_trained_is_written_and_read_back_the_same(destination, tmp_path):
    source = copied("specforge/norm_output", tmp_path / "draft")
    result = convert(source, destination, trainer="specforge", target=DATA / "target")
    assert result.config["norm_output"] is False
    again = written_as(result)
    assert again.trainer is None
    assert equal(distance(again, forward("specforge/norm_output")))


def test_a_draft_without_a_final_norm_is_refused_by_name():
    finding = refusal(read, "specforge/no_norm_output")
    assert finding.code == "no-final-norm"
    assert "--allow no-final-norm" in finding.fix


def test_no_final_norm_is_what_specforge_computes_and_no_engine_does():
    options = {"allow": ("no-final-norm",)}
    assert equal(off("specforge/no_norm_output", {"head_norm": "off"}, **options))
    assert min(off("specforge/no_norm_output", **options)) > 0.1


def test_a_loss_that_is_allowed_is_still_said():
    said = {
        x.code: x
        for x in read("specforge/no_norm_output", allow=("no-final-norm",)).reading.findings
    }
    assert said["no-final-norm"].severity == "warning"


def test_ids_that_were_a_run_option_are_asked_for_by_its_name():
    said = {x.code: x for x in read("specforge/ids_as_option").reading.findings}
    assert "model.aux_hidden_state_layer_ids" in said["ids-were-options"].message
    assert min(off("specforge/ids_as_option")) > 0.1
    assert equal(off("specforge/ids_as_option", taps=(1, 4, 7)))


def test_ids_that_the_user_gives_are_not_asked_for():
    said = {x.code for x in read("specforge/ids_as_option", taps=(1, 4, 7)).reading.findings}
    assert "ids-were-options" not in said


# Rotations without the config's base.

UNREAD_BASE = {
    "eagle/theta": "eagle",
    "angelslim/theta": "angelslim",
    "angelslim/linear": "angelslim",
    "torchspec/linear": "torchspec",
    "torchspec/yarn": "torchspec",
}
CERTAIN = {name: who for name, who in UNREAD_BASE.items() if who != "eagle"}


@pytest.mark.parametrize("name", UNREAD_BASE)
def test_a_rotation_that_was_trained_without_the_configs_base_is_read_so(name):
    assert equal(off(name, trainer=UNREAD_BASE[name]))
    assert min(off(name, trainer="none")) > 1e-3


@pytest.mark.parametrize("name", CERTAIN)
def test_auto_reads_what_a_certain_trainer_trained_and_says_so(name):
    draft = read(name)
    assert draft.trainer.certainty == "certain"
    assert [(row["path"], row["trained"]) for row in draft.trainer.deviations] == [
        ("rope.theta", 10000.0)
    ]
    assert "read-as-trained" in {x.code for x in draft.reading.findings}


@pytest.mark.parametrize("name", CERTAIN)
def test_what_was_trained_is_written_without_a_sign_and_read_back_the_same(name, tmp_path):
    result = convert(copied(name, tmp_path / "draft"), "vllm", target=DATA / "target")
    assert not {"target_model_type", "_torchspec_version"} & set(result.config)
    assert "trainer-keys" in result.codes
    again = written_as(result)
    assert again.trainer is None
    assert equal(distance(again, forward(name)))


@pytest.mark.parametrize(
    "name",
    ["eagle/plain", "eagle/linear", "angelslim/mrope", "automodel/plain", "automodel/norm_output"],
)
def test_a_draft_that_servers_read_as_it_was_trained_is_its_own_forward(name):
    assert equal(off(name))
    assert read(name).trainer.deviations == ()


def test_a_likely_draft_of_eagle_with_another_base_asks():
    finding = refusal(read, "eagle/theta")
    assert finding.code == "trained-otherwise"
    assert "rope.theta 10000.0 (served: 500000.0)" in finding.message


# Latent attention (MLA).

LATENT = {
    "automodel/latent_yarn": {"layers.attention.softmax_scale": 0.204124145232},
    "torchspec/latent_yarn": {"rope.theta": 10000.0},
    "torchspec/latent_vllm": {"rope.theta": 10000.0, "taps": (2, 4, 5)},
    "torchspec/latent_linear": {"rope.scaling": "linear", "rope.theta": 10000.0},
}
"""What each trained otherwise; (16 + 8) ** -0.5 is the factor on scores without mscale."""


@pytest.mark.parametrize("name", [*LATENT, "automodel/latent"])
def test_a_trainers_latent_attention_is_read_as_its_own_forward(name):
    assert equal(off(name))


@pytest.mark.parametrize("name", LATENT)
def test_what_a_trainer_computes_otherwise_of_latent_attention_is_said(name):
    found = {row["path"]: row["trained"] for row in read(name).trainer.deviations}
    assert found == LATENT[name]


@pytest.mark.parametrize(
    "name", ["automodel/latent_yarn", "torchspec/latent_yarn", "torchspec/latent_vllm"]
)
def test_servers_compute_another_network_than_was_trained_with_latent_attention(name):
    assert min(off(name, trainer="none")) > 0.03


@pytest.mark.parametrize("destination", ["sglang", "vllm", "universal"])
@pytest.mark.parametrize(
    "name", ["automodel/latent", "automodel/latent_yarn", "torchspec/latent_yarn"]
)
def test_trained_latent_attention_is_written_so_that_engines_compute_it(
    name, destination, tmp_path
):
    result = convert(copied(name, tmp_path / "draft"), destination, target=DATA / "target")
    again = written_as(result)
    assert again.trainer is None
    assert equal(distance(again, forward(name)))


def test_automodels_scores_need_mscales_of_zero(tmp_path):
    source = copied("automodel/latent_yarn", tmp_path / "draft")
    written = convert(source, "vllm", target=DATA / "target").config["rope_parameters"]
    assert (written["mscale"], written["mscale_all_dim"]) == (0, 0)


@pytest.mark.parametrize("destination", ["sglang", "vllm"])
def test_a_linear_rope_of_latent_attention_runs_nowhere(destination, tmp_path):
    source = copied("torchspec/latent_linear", tmp_path / "draft")
    assert refusal(convert, source, destination).code == "latent-rope"


@pytest.mark.parametrize("destination", ["sglang", "vllm", "universal"])
def test_modelopts_kimi_template_is_written_with_the_size_of_its_head(destination, tmp_path):
    source = Path(shutil.copytree(DATA.parent / "kimik2", tmp_path / "draft"))
    result = convert(source, destination, target=DATA / "target", allow=("double-norm",))
    assert "draft_vocab_size" not in json.loads((source / "config.json").read_text())
    assert result.config["draft_vocab_size"] == len(result.tensors["d2t"]) == 32
    assert "head-unread" in result.codes
    assert (result.draft.vocabulary.head, result.draft.vocabulary.mapped) == ("own", True)


def test_the_base_of_a_plain_rope_depends_on_what_torchspec_ran_with():
    (doubt,) = [
        x for x in read("torchspec/latent").reading.findings if x.code == "rope-base-untold"
    ]
    assert doubt.settled_by == "rope.theta"
    assert equal(
        off("torchspec/latent", sets={"rope.theta": 10000.0})
    )  # it ran with transformers 5
    answered = read("torchspec/latent", sets={"rope.theta": 10000.0})
    assert "rope-base-untold" not in {x.code for x in answered.reading.findings}


# A head that was pruned by offsets.


def test_a_head_whose_rows_repeat_where_offsets_do_is_refused():
    assert refusal(read, "torchspec/pruned").code == "repeated-head-rows"


def test_repeated_head_rows_are_refused_whoever_trained_the_draft(tmp_path):
    folder = edited("torchspec/pruned", tmp_path / "draft")
    config = json.loads((folder / "config.json").read_text())
    del config["_torchspec_version"]
    (folder / "config.json").write_text(json.dumps(config))
    assert refusal(loaded, folder).code == "repeated-head-rows"


@pytest.mark.parametrize("name", ["specforge/plain", "eagle/plain", "angelslim/theta"])
def test_a_head_that_was_pruned_by_ids_has_no_repeated_rows(name):
    assert "repeated-head-rows" not in {x.code for x in read(name, trainer="none").reading.findings}


# NeMo Automodel.


def test_automodel_trains_without_the_targets_windows():
    draft = read("automodel/sliding_target")
    assert draft.reading.draft.layers.windows == (None,)
    assert equal(off("automodel/sliding_target"))
    assert min(off("automodel/sliding_target", trainer="none")) > 0.01


@pytest.mark.parametrize("destination", ["vllm", "universal"])
def test_what_automodel_trained_is_read_back_the_same(destination, tmp_path):
    source = copied("automodel/sliding_target", tmp_path / "draft")
    again = written_as(convert(source, destination, target=DATA / "target"))
    assert again.trainer is None
    assert equal(distance(again, forward("automodel/sliding_target")))


# ModelOpt.

TWO_NORMS = {"hidden_norms": "two"}


@pytest.mark.parametrize("variant", ["default", "no_export_rope", "llama3"])
def test_two_norms_are_what_modelopt_computes_and_no_engine_does(variant):
    options = {"allow": ("double-norm",)}
    assert equal(off(f"modelopt/{variant}", TWO_NORMS, **options))
    assert min(off(f"modelopt/{variant}", **options)) > 0.01


@pytest.mark.parametrize("variant", ["default", "no_export_rope", "llama3"])
def test_a_draft_of_modelopt_is_refused_by_name(variant):
    finding = refusal(read, f"modelopt/{variant}")
    assert finding.code == "double-norm"
    assert "--allow double-norm" in finding.fix


def test_the_rope_that_modelopt_exports_by_default_was_never_trained():
    draft = read("modelopt/default", allow=("double-norm",))
    assert (draft.reading.draft.rope.scaling, draft.reading.draft.rope.parameters) == (None, {})
    assert min(off("modelopt/default", TWO_NORMS, trainer="none")) > 0.01


@pytest.mark.parametrize("destination", ["sglang", "vllm", "speculators", "universal"])
def test_what_is_left_of_modelopts_draft_is_written_without_its_sign(destination, tmp_path):
    source = copied("modelopt/default", tmp_path / "draft")
    options = {"allow": ("double-norm",), "target": DATA / "target"}
    again = written_as(convert(source, destination, **options))
    assert again.trainer is None
    assert equal(distance(again, forward("modelopt/default"), TWO_NORMS))


# What every trainer's page shares.


def test_only_what_no_engine_computes_can_be_allowed():
    with pytest.raises(Usage, match="no-final-norm"):
        read("specforge/plain", allow=("wrong-layout",))


def test_a_scaled_rotation_is_made_plain_by_one_word():
    draft = read("specforge/yarn", sets={"rope.scaling": None}).reading.draft
    assert (draft.rope.scaling, draft.rope.parameters) == (None, {})


@pytest.mark.parametrize("name", ["angelslim/theta", "specforge/norm_output", "modelopt/default"])
def test_a_validation_measures_what_engines_compute_and_says_that_it_was_trained_otherwise(name):
    chosen = Options(target=str(DATA / "target"))
    served = load(str(DATA / name), "auto", chosen, served=True)
    assert served.reading.draft.network == read(name, trainer="none").reading.draft.network
    said = {x.code: x.severity for x in served.reading.findings}
    assert said["served-otherwise"] == "warning"
    assert "error" not in said.values()


def test_no_key_is_said_to_be_kept_that_is_left_out(tmp_path):
    result = convert(copied("modelopt/default", tmp_path / "draft"), "vllm", allow=("double-norm",))
    left = ("next_layer_regular", "parallel_draft_step")
    assert all(key in result.said("trainer-keys").message for key in left)
    assert not any(key in result.said("unknown-keys").message for key in left)
    assert "use_mtp_layernorm" in result.said("unknown-keys").message


def test_keys_that_stay_are_said_to_be_kept(tmp_path):
    result = convert(copied("modelopt/default", tmp_path / "draft"), "vllm", trainer="none")
    assert "next_layer_regular" in result.said("unknown-keys").message


@pytest.mark.parametrize("destination", ["sglang", "vllm", "speculators", "universal"])
@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("angelslim/theta", {}),
        ("automodel/sliding_target", {}),
        ("eagle/theta", {"trainer": "eagle"}),
        ("modelopt/two_layers", {"allow": ("double-norm",)}),
        ("specforge/norm_output", {"trainer": "specforge"}),
        ("specforge/no_norm_output", {"allow": ("no-final-norm",)}),
        ("speculators/sliding", {}),
        ("torchspec/yarn", {}),
    ],
)
@pytest.mark.parametrize("beside", [True, False])
def test_converting_an_output_again_gives_the_same_bytes(
    tmp_path, destination, name, options, beside
):
    target = DATA / "target"
    source = copied(name, tmp_path / "draft")
    once = convert(source, destination, target=target, **options).folder
    if not beside:
        (once / "eagle3_interop.json").unlink()
    twice = convert(once, destination, target=target).folder
    written = {path.name for path in once.iterdir()} - {"eagle3_interop.json"}
    for file in written:
        assert (twice / file).read_bytes() == (once / file).read_bytes(), file
