"""Of a target only config, embedding, final norm and head are read, and its own classes say what they mean."""

import json
import shutil

import pytest
import torch
from conftest import DATA, TARGET, counters, made, measured
from forms import TAPS, as_speculators
from safetensors.torch import load_file, save_file
from transformers import Gemma2Config, Gemma2ForCausalLM

from eagle3_interop.convert.read import target_tables
from eagle3_interop.convert.read.folders import LocalFolder
from eagle3_interop.schemas.findings import Refused
from eagle3_interop.schemas.streams import RecordedBy
from eagle3_interop.validators.accept.shape import Shape
from eagle3_interop.validators.network.weights import Tables, Weights
from eagle3_interop.validators.record.store import Plan, Store
from eagle3_interop.validators.target.recorded import Recording
from eagle3_interop.validators.target.recordings import open_recordings
from eagle3_interop.validators.target.replayed import MEMORY, as_many, replay
from eagle3_interop.validators.target.running import Target
from eagle3_interop.validators.target.tables import TargetTables
from eagle3_interop.validators.target.texts import Text


class Remote:
    """A folder that is not on this machine: it answers ranges, and gives config files only."""

    asked: "list[tuple[str, int, int]]" = []  # noqa: RUF012

    def __init__(self, path):
        self._inner = LocalFolder(path, str(path))
        self.label, self.name, self.revision = str(path), None, None
        self.sizes = self._inner.sizes

    def read(self, name, start, stop):
        Remote.asked.append((name, start, stop))
        return self._inner.read(name, start, stop)

    def path(self, name):
        assert not name.endswith(".safetensors"), f"{name} would be downloaded whole"
        return self._inner.path(name)

    def sha256(self, _name):
        return None


def test_only_tables_and_norm_are_read_by_ranges(recorded, monkeypatch):
    here = measured("plain", streams=str(recorded), shape=Shape.chain(3))
    real = target_tables.open_folder
    monkeypatch.setattr(
        target_tables,
        "open_folder",
        lambda spec: Remote(TARGET) if spec == str(TARGET) else real(spec),
    )
    Remote.asked = []
    assert counters(measured("plain", streams=str(recorded), shape=Shape.chain(3))) == counters(
        here
    )
    held = TargetTables.open(str(TARGET)).checkpoint
    kept = [held.embedding, held.head, held.norm]
    layers = [
        (name, start, stop)
        for name, start, stop in Remote.asked
        if name.endswith(".safetensors")
        and start >= _header_end(TARGET / "model.safetensors")
        and not any(t.start <= start and stop <= t.stop for t in kept)
    ]
    assert layers == []


def _header_end(path):
    with path.open("rb") as file:
        return 8 + int.from_bytes(file.read(8), "little")


def test_a_model_that_transformers_does_not_know_has_the_plain_norm(tmp_path):
    """As Kimi-K2.5, whose class comes with its checkpoint."""
    shutil.copytree(TARGET, tmp_path / "t")
    config = json.loads((TARGET / "config.json").read_text())
    told = {**config, "model_type": "unheard_of", "architectures": ["UnheardOfForCausalLM"]}
    (tmp_path / "t" / "config.json").write_text(json.dumps(told))
    known, unknown = TargetTables.open(str(TARGET)), TargetTables.open(str(tmp_path / "t"))
    x = torch.randn(7, 128)
    assert unknown.final_norm[1] == "a plain RMS norm"
    assert torch.equal(unknown.final_norm[0](x), known.final_norm[0](x))
    assert unknown.digest == known.digest


def test_a_norm_that_is_not_there_is_named_where_it_is_needed(tmp_path):
    """Speculators' files hold the last state before the norm."""
    row = json.loads((DATA / "prompts.jsonl").read_text().splitlines()[0])["token_ids"]
    folder = as_speculators(tmp_path / "s", [row])
    shutil.copytree(TARGET, tmp_path / "t")
    tensors = load_file(TARGET / "model.safetensors")
    del tensors["model.norm.weight"]
    save_file(tensors, tmp_path / "t" / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(Refused, match="holds no final norm under a known name"):
        measured("plain", target=tmp_path / "t", streams=str(folder), stream_taps=TAPS)


@pytest.fixture(scope="module")
def gemma(tmp_path_factory):
    """A target that scales its embeddings, norms with 1 + weight, and bends its logits."""
    torch.manual_seed(0)
    folder = tmp_path_factory.mktemp("gemma") / "target"
    shutil.copytree(TARGET, folder)
    (folder / "generation_config.json").unlink()
    config = Gemma2Config(
        vocab_size=1024, hidden_size=128, intermediate_size=96, num_hidden_layers=6, num_attention_heads=4,
        num_key_value_heads=2, head_dim=32, max_position_embeddings=512, initializer_range=0.2,
    )  # fmt: skip
    model = Gemma2ForCausalLM(config)
    torch.nn.init.normal_(model.model.norm.weight, std=0.3)
    model.save_pretrained(folder)
    return folder


def test_a_target_that_scales_and_bends_is_recorded_as_it_runs(gemma, prompts, tmp_path):
    manifest = made(tmp_path / "s", prompts, target=gemma, new_tokens=12)
    assert (manifest.taps[0], manifest.last) == (0, "pre-norm")
    held = TargetTables.open(str(gemma))
    recording = Recording(open_recordings(tmp_path / "s", held), held)
    one = recording.recordings.texts[2]
    target = Target.load(gemma)
    live = target.features(one.tokens[None], range(7))
    assert torch.allclose(recording.stream(one, 0, one.count), live.taps[0][0], atol=1e-4)
    final = recording.final(one, one.count)
    assert torch.allclose(final, live.final[0], atol=1e-4)
    assert torch.allclose(recording.logits(final), target.logits(live.final[0]), atol=1e-3)
    assert float(recording.logits(final).abs().max()) < 30


def test_the_embedding_of_a_target_that_scales_it_is_not_looked_up(gemma, prompts, tmp_path):
    made(tmp_path / "s", prompts, target=gemma, new_tokens=12, taps=(3, 5))
    with pytest.raises(Refused, match=r"reads tap 0; recorded are 3, 5, 6"):
        measured("embed_tap", target=gemma, streams=str(tmp_path / "s"))


# What the distribution rests on, where the last state is not there.


def bare(folder, held, basis, top=()):
    """One text of eight tokens without the last state."""
    plan = Plan(
        target=held.described(), by=RecordedBy(engine="sglang", version="0.5.23", how="server"),
        dtype="float32", taps=(1, 3, 5), last="absent", basis=basis, new_tokens=4, lookahead=2,
        prompts=((5, 6),), source="-",
    )  # fmt: skip
    store = Store(folder, plan)
    tensors = {"hidden_states": torch.randn(8, 3, 128), **dict(top)}
    store.add([5, 6, 7, 8, 9, 10, 11, 12], tensors)
    store.finish()
    return Recording(open_recordings(folder, held), held)


def test_the_text_alone_is_a_distribution_of_one_token(tmp_path):
    held = TargetTables.open(str(TARGET))
    recording = bare(tmp_path / "s", held, "text")
    likely = replay(recording, recording.texts(None, 2)).likely(recording, 1, 7).softmax(-1)
    assert likely.argmax(-1).tolist() == [7, 8, 9, 10, 11, 12]
    assert float(likely.max(-1).values.min()) > 0.999


def test_the_likeliest_tokens_are_the_distribution_as_far_as_they_go(tmp_path):
    held = TargetTables.open(str(TARGET))
    ids = torch.full((8, 2), -1, dtype=torch.int32)
    scores = torch.full((8, 2), -torch.inf)
    ids[1:] = torch.tensor([20, 30])
    scores[1:] = torch.tensor([0.7, 0.3]).log()
    recording = bare(
        tmp_path / "s", held, "top-logprobs", {"top_ids": ids, "top_logprobs": scores}.items()
    )
    streams = replay(recording, recording.texts(None, 2))
    share = streams.likely(recording, 0, 8).softmax(-1)
    assert share[3, [20, 30]].tolist() == pytest.approx([0.7, 0.3], abs=1e-4)
    assert bool(torch.isfinite(share).all())


def test_a_diagnosis_reads_as_many_texts_as_it_can_hold():
    texts = [Text((1,), (2,) * 999, 900) for _ in range(100)]
    width = MEMORY // (4 * 30_000)
    chosen = as_many(texts, width)
    assert 25 <= len(chosen) <= 30
    assert as_many(texts[:10], width) == texts[:10]


def test_a_draft_without_fc_reads_the_recorded_last_state(recorded):
    held = TargetTables.open(str(TARGET))
    recording = Recording(open_recordings(recorded, held), held)
    text = recording.texts(None, 3)[0]
    tokens = torch.tensor([[*text.prompt, *text.completion]])
    found = recording.features_of([text], tokens, (), final=True)
    live = Target.load(TARGET).features(tokens, ())
    assert torch.allclose(found.final, live.final, atol=2e-5)


@pytest.mark.parametrize("kind", ["own", "target"])
def test_rows_of_a_table_are_those_of_its_cast_copy(kind, drafts):
    """Looked up first and cast then, so that no copy of the table is made."""
    made_up = drafts.make_draft(embeddings=kind)
    table = torch.randn(128, 64).to(torch.bfloat16)
    tensors = {**drafts.make_tensors(made_up), "embed_tokens.weight": table}
    weights = Weights.of(made_up, tensors, tables=lambda: Tables(table, table))
    tokens = torch.tensor([[3, 77, 3]])
    assert torch.equal(weights.embedded(tokens), table.float()[tokens])
    assert weights.embedded(tokens).dtype == torch.float32


def test_a_table_with_nan_is_refused_before_a_row_is_read(drafts):
    made_up = drafts.make_draft(embeddings="own")
    tensors = drafts.make_tensors(made_up)
    tensors["embed_tokens.weight"][90, 1] = float("nan")
    with pytest.raises(Refused, match=r"embed_tokens\.weight"):
        Weights.of(made_up, tensors).embedded(torch.tensor([[1]]))
