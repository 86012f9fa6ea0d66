"""Opening checkpoints: every way that weights are stored, and what is never touched."""

import hashlib
import json
import os
import re
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import numpy as np
import pytest
from safetensors.numpy import save_file

from eagle3_interop.convert.read.checkpoint import open_checkpoint
from eagle3_interop.convert.read.folders import did_you_mean, hub_id
from eagle3_interop.convert.read.target_tables import open_target
from eagle3_interop.schemas.findings import Refused, Unavailable, Usage

A, B = np.arange(6, dtype=np.float32).reshape(2, 3), np.arange(4, dtype=np.float32)


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "config.json").write_text('{"model_type": "llama"}')
    return tmp_path


def write_index(folder, weight_map, name="model.safetensors.index.json"):
    (folder / name).write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))


def values_of(checkpoint):
    return {name: checkpoint.values(name).tolist() for name in checkpoint.tensors}


BOTH = {"a": A.tolist(), "b": B.tolist()}


@pytest.mark.parametrize("name", ["model.safetensors", "draft.safetensors"])
def test_a_single_file_of_any_name_is_read(folder, name):
    save_file({"a": A, "b": B}, folder / name)
    checkpoint = open_checkpoint(str(folder))
    assert checkpoint.config == {"model_type": "llama"}
    assert checkpoint.files == (folder / name,)
    assert values_of(checkpoint) == BOTH


def test_several_files_are_read_without_an_index(folder):
    save_file({"a": A}, folder / "one.safetensors")
    save_file({"b": B}, folder / "two.safetensors")
    assert values_of(open_checkpoint(str(folder))) == BOTH


def test_with_an_index_a_file_outside_it_is_left_out_and_said(folder):
    save_file({"a": A}, folder / "one.safetensors")
    save_file({"b": B}, folder / "two.safetensors")
    save_file({"a": A + 1}, folder / "old.safetensors")
    write_index(folder, {"a": "one.safetensors", "b": "two.safetensors"})
    checkpoint = open_checkpoint(str(folder))
    assert values_of(checkpoint) == BOTH
    (finding,) = checkpoint.findings
    assert (finding.code, finding.where) == ("outside-index", "old.safetensors")


def test_an_unlisted_tensor_in_a_listed_file_counts_and_is_said(folder):
    save_file({"a": A, "b": B}, folder / "one.safetensors")
    write_index(folder, {"a": "one.safetensors"})
    checkpoint = open_checkpoint(str(folder))
    assert values_of(checkpoint) == BOTH
    assert [(item.code, item.where) for item in checkpoint.findings] == [("outside-index", "b")]


def of_speculators(folder):
    """Such a folder is loaded by transformers as well, and no other is."""
    (folder / "config.json").write_text('{"speculators_model_type": "eagle3"}')
    return folder


def clash(folder):
    """The message by which a folder is refused from which frameworks load different files."""
    with pytest.raises(Refused) as refused:
        open_checkpoint(str(folder))
    (finding,) = refused.value.findings
    assert finding.code == "ambiguous-weights"
    return finding.message


def test_a_single_file_beside_an_index_of_others_is_refused(folder):
    save_file({"a": A, "b": B}, folder / "model.safetensors")
    save_file({"a": A + 1, "b": B + 1}, folder / "one.safetensors")
    write_index(folder, {"a": "one.safetensors", "b": "one.safetensors"})
    message = clash(of_speculators(folder))
    assert "vLLM one.safetensors" in message
    assert "transformers model.safetensors" in message


def test_a_second_file_that_transformers_does_not_merge_is_refused(folder):
    save_file({"a": A}, folder / "model.safetensors")
    save_file({"b": B}, folder / "extra.safetensors")
    assert values_of(open_checkpoint(str(folder))) == BOTH  # both engines load both
    assert "SGLang extra.safetensors, model.safetensors" in clash(of_speculators(folder))


def test_an_index_that_names_the_single_file_is_no_clash(folder):
    save_file({"a": A, "b": B}, folder / "model.safetensors")
    save_file({"a": A + 1}, folder / "old.safetensors")
    write_index(folder, dict.fromkeys("ab", "model.safetensors"))
    checkpoint = open_checkpoint(str(folder))
    assert values_of(checkpoint) == BOTH
    assert [item.where for item in checkpoint.findings] == ["old.safetensors"]


def test_a_consolidated_file_which_vllm_alone_prefers_is_refused(folder):
    save_file({"a": A, "b": B}, folder / "model.safetensors")
    save_file({"a": A + 1, "b": B}, folder / "consolidated.safetensors")
    assert "vLLM consolidated.safetensors" in clash(folder)


def test_a_bin_that_transformers_takes_before_oddly_named_safetensors_is_refused(folder):
    save_file({"a": A, "b": B}, folder / "draft.safetensors")
    (folder / "pytorch_model.bin").touch()
    assert "transformers pytorch_model.bin" in clash(of_speculators(folder))


def test_a_bin_beside_the_single_file_is_read_by_nobody(folder):
    save_file({"a": A, "b": B}, folder / "model.safetensors")
    (folder / "pytorch_model.bin").touch()
    assert values_of(open_checkpoint(str(folder))) == BOTH


def test_a_bin_that_vllm_and_sglang_would_load_too_is_refused(folder):
    (folder / "pytorch_model.bin").touch()
    (folder / "ema.bin").touch()
    assert "vLLM ema.bin, pytorch_model.bin" in clash(folder)


def test_a_trainers_own_bins_are_passed_over(folder):
    torch = pytest.importorskip("torch")
    torch.save({"a": torch.from_numpy(A), "b": torch.from_numpy(B)}, folder / "pytorch_model.bin")
    (folder / "training_args.bin").touch()
    (folder / "optimizer.bin").touch()
    assert values_of(open_checkpoint(str(folder))) == BOTH


def test_a_target_may_hold_a_second_set_of_files(folder):
    tables = {"model.embed_tokens.weight": A, "lm_head.weight": A}
    save_file(tables, folder / "one.safetensors")
    save_file({"tok_embeddings.weight": A}, folder / "consolidated.safetensors")
    write_index(folder, dict.fromkeys(tables, "one.safetensors"))
    assert open_target(str(folder)).embedding.shape == A.shape


def test_a_tensor_in_two_files_is_refused(folder):
    save_file({"a": A}, folder / "one.safetensors")
    save_file({"a": A + 1}, folder / "two.safetensors")
    with pytest.raises(Refused, match=r"one\.safetensors and in two\.safetensors") as refused:
        open_checkpoint(str(folder))
    assert refused.value.findings[0].code == "duplicate-tensor"


def test_a_bin_is_read_in_place_as_torch_reads_it(folder):
    torch = pytest.importorskip("torch")
    tensors = {
        "f32": torch.randn(3, 4),
        "view": torch.randn(5, 4)[2:4],
        "bf16": torch.randn(2, 3).to(torch.bfloat16),
        "fp8": torch.randn(2, 3).to(torch.float8_e4m3fn),
        "parameter": torch.nn.Parameter(torch.randn(2)),
        "ids": torch.arange(3),
        "seen": torch.tensor([True, False]),
        "scalar": torch.tensor(7),
    }
    torch.save(tensors, folder / "pytorch_model.bin")
    checkpoint = open_checkpoint(str(folder))
    assert list(checkpoint.tensors) == list(tensors)
    for name, tensor in tensors.items():
        expected = tensor.detach().contiguous().flatten().view(torch.uint8).numpy()
        assert checkpoint.values(name).shape == tuple(tensor.shape)
        assert checkpoint.values(name).tobytes() == expected.tobytes()


def test_a_sharded_bin_is_read_by_its_index(folder):
    torch = pytest.importorskip("torch")
    torch.save({"a": torch.from_numpy(A)}, folder / "one.bin")
    torch.save({"b": torch.from_numpy(B)}, folder / "two.bin")
    write_index(folder, {"a": "one.bin", "b": "two.bin"}, "pytorch_model.bin.index.json")
    assert values_of(open_checkpoint(str(folder))) == BOTH


@pytest.mark.parametrize("name", ["eagle_meta.pt", "eagle3_meta.pt"])
def test_a_map_in_a_side_file_is_taken_and_said(folder, name):
    torch = pytest.importorskip("torch")
    save_file({"a": A}, folder / "model.safetensors")
    torch.save({"d2t": torch.arange(3), "t2d": torch.tensor([True]), "step": 5}, folder / name)
    checkpoint = open_checkpoint(str(folder))
    assert checkpoint.values("d2t").tolist() == [0, 1, 2]
    assert checkpoint.values("t2d").tolist() == [True]
    assert {item.code for item in checkpoint.findings} == {"map-in-side-file"}


def test_a_map_beside_the_weights_wins_over_a_side_file(folder):
    torch = pytest.importorskip("torch")
    save_file({"d2t": np.array([5])}, folder / "model.safetensors")
    torch.save({"d2t": torch.arange(1)}, folder / "eagle_meta.pt")
    checkpoint = open_checkpoint(str(folder))
    assert checkpoint.values("d2t").tolist() == [5]
    assert checkpoint.findings == ()


def test_tokenizer_and_licence_are_carried_and_code_is_not(folder):
    save_file({"a": A}, folder / "model.safetensors")
    carried = ["LICENSE", "chat_template.jinja", "generation_config.json", "tokenizer.json"]
    for name in [*carried, "config.py", "tokenizer.py", "README.md", "optimizer.pt"]:
        (folder / name).write_text("x")
    assert [path.name for path in open_checkpoint(str(folder)).sides] == carried


def test_a_hub_cache_is_read_through_its_symlinks(tmp_path):
    commit = "0123456789" * 4
    snapshot, blobs = tmp_path / "snapshots" / commit, tmp_path / "blobs"
    snapshot.mkdir(parents=True)
    blobs.mkdir()
    (blobs / "config").write_text("{}")
    save_file({"a": A}, blobs / "weights")
    digest = hashlib.sha256((blobs / "weights").read_bytes()).hexdigest()
    (blobs / "weights").rename(blobs / digest)
    (snapshot / "config.json").symlink_to(blobs / "config")
    (snapshot / "model.safetensors").symlink_to(blobs / digest)
    checkpoint = open_checkpoint(str(snapshot))
    assert checkpoint.values("a").tolist() == A.tolist()
    assert checkpoint.files == (snapshot / "model.safetensors",)
    origin = checkpoint.provenance()
    assert origin["revision"] == commit
    assert origin["files"]["model.safetensors"]["sha256"] == digest


def test_a_local_folder_wins_over_a_hub_id(folder, monkeypatch):
    monkeypatch.chdir(folder)
    draft = folder / "org" / "draft"
    draft.mkdir(parents=True)
    (draft / "config.json").write_text("{}")
    save_file({"a": A}, draft / "model.safetensors")
    assert open_checkpoint("org/draft").files == (draft / "model.safetensors",)


@pytest.mark.parametrize("spec", ["/no/such/folder", "./draft", "../draft", "a/b/c", "draft"])
def test_a_path_that_does_not_exist_is_wrong_usage(spec, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(Usage, match=re.escape(spec)):
        open_checkpoint(spec)


@pytest.mark.parametrize(
    ("word", "near"),
    [
        ("drafts/plian", "drafts/plain"),
        ("draft/plain", "drafts/plain"),
        ("Drafts/Plain", "drafts/plain"),
        ("./drafts/plan", "drafts/plain"),
        ("drafts/plain/", None),
        ("drafts/unlike", None),
        ("somewhere/unlike", None),
        ("drafts/plain/noets", None),
    ],
)
def test_a_mistyped_path_is_told_the_nearest_folder(monkeypatch, tmp_path, word, near):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "drafts" / "plain").mkdir(parents=True)
    (tmp_path / "drafts" / "plain" / "notes").touch()
    said = did_you_mean(word, folder=True)
    assert said == (f"; did you mean {near}?" if near else "")


def no_hub(*_arguments, **_options):
    raise OSError("no network here")


@pytest.mark.parametrize(
    ("word", "said"),
    [
        ("drafts/plian", "drafts/plian: no such folder; did you mean drafts/plain?"),
        ("drafts/unlike", "there is no unlike in the folder drafts"),
    ],
)
def test_a_mistyped_path_is_no_failure_of_the_hub(monkeypatch, tmp_path, word, said):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "drafts" / "plain").mkdir(parents=True)
    monkeypatch.setattr("huggingface_hub.HfApi.model_info", no_hub)
    with pytest.raises(Usage, match=re.escape(said)):
        open_checkpoint(word)
    with pytest.raises(Unavailable, match="no network here"):
        open_checkpoint("somewhere/unlike")


@pytest.mark.parametrize(
    ("word", "spec"),
    [
        ("https://huggingface.co/org/draft", "org/draft"),
        ("https://huggingface.co/org/draft/", "org/draft"),
        ("https://huggingface.co/org/draft/tree/main", "org/draft@main"),
        ("https://huggingface.co/org/draft/tree/v1.0/", "org/draft@v1.0"),
        ("https://huggingface.co/org/draft/commit/" + "f" * 40, "org/draft@" + "f" * 40),
        ("https://huggingface.co/org/draft/tree/refs%2Fpr%2F3", "org/draft@refs/pr/3"),
        ("http://www.huggingface.co/org/draft?library=vllm", "org/draft"),
        ("huggingface.co/org/draft#usage", "org/draft"),
        ("https://hf.co/org/draft", "org/draft"),
        ("hf://org/draft", "org/draft"),
        ("hf://models/org/draft", "org/draft"),
        ("hf://org/draft@main", "org/draft@main"),
        ("hf://org/draft@refs/pr/3", "org/draft@refs/pr/3"),
        ("org/draft@main", "org/draft@main"),
        ("/a/folder", "/a/folder"),
    ],
)
def test_a_model_of_the_hub_is_understood_as_it_is_copied_from_there(word, spec):
    assert hub_id(word) == spec


@pytest.mark.parametrize(
    "word",
    [
        "https://huggingface.co/datasets/org/prompts",
        "https://huggingface.co/spaces/org/demo",
        "https://huggingface.co/org",
        "https://huggingface.co/org/draft/tree/main/sub/folder",
        "https://elsewhere.example/org/draft",
        "hf://datasets/org/prompts",
    ],
)
def test_a_url_of_something_else_is_wrong_usage(word):
    with pytest.raises(Usage, match="neither a folder nor a Hub id"):
        open_checkpoint(word)


def test_a_file_instead_of_a_folder_is_wrong_usage(folder):
    with pytest.raises(Usage, match="give the folder"):
        open_checkpoint(str(folder / "config.json"))


# Targets


def write_target(folder, config, tensors):
    (folder / "config.json").write_text(json.dumps(config))
    save_file(tensors, folder / "model.safetensors")
    return open_target(str(folder))


def test_a_target_gives_its_two_tables(tmp_path):
    config = {"model_type": "llama", "hidden_size": 3, "num_hidden_layers": 4}
    tensors = {"model.embed_tokens.weight": A, "lm_head.weight": A + 1, "model.norm.weight": B}
    target = write_target(tmp_path, config, tensors)
    assert target.values(target.embedding).tolist() == A.tolist()
    assert target.values(target.head).tolist() == (A + 1).tolist()
    assert (target.tied, target.vocab_size) == (False, 2)
    assert (target.facts.hidden_size, target.facts.layers) == (3, 4)


@pytest.mark.parametrize("nested", ["text_config", "llm_config", "language_config"])
def test_a_multimodal_target_speaks_through_its_text_config(tmp_path, nested):
    config = {"model_type": "kimi_k25", nested: {"model_type": "deepseek_v3", "hidden_size": 3}}
    target = write_target(tmp_path, config, {"language_model.model.embed_tokens.weight": A})
    assert target.text_config["model_type"] == "deepseek_v3"
    assert (target.model_type, target.facts.hidden_size) == ("kimi_k25", 3)
    assert target.embedding.name == "language_model.model.embed_tokens.weight"


def test_a_tied_target_has_its_embeddings_as_head(tmp_path):
    config = {"hidden_size": 3, "tie_word_embeddings": True}
    target = write_target(tmp_path, config, {"model.embed_tokens.weight": A})
    assert target.tied
    assert target.head == target.embedding


def test_of_a_sharded_target_only_the_files_of_the_tables_are_opened(tmp_path):
    save_file({"model.embed_tokens.weight": A}, tmp_path / "one.safetensors")
    (tmp_path / "two.safetensors").write_text("never looked at")
    weight_map = {"model.embed_tokens.weight": "one.safetensors", "x": "two.safetensors"}
    write_index(tmp_path, weight_map)
    (tmp_path / "config.json").write_text('{"hidden_size": 3, "limits": [0.0, Infinity]}')
    assert open_target(str(tmp_path)).embedding.file == tmp_path / "one.safetensors"


# The Hub, played by a server of our own: a subprocess, because the client fixes its address on import.


class Hub(BaseHTTPRequestHandler):
    files: dict[str, bytes] = {}  # noqa: RUF012
    requested: list[tuple[str, str]] = []  # noqa: RUF012
    commit = "f" * 40

    def log_message(self, *_arguments):
        pass

    def do_GET(self):
        sizes = {name: len(content) for name, content in self.files.items()}
        name = self.path.rpartition("/")[2]
        if self.path.startswith("/api/models/org/draft/tree"):
            tree = [
                {"type": "file", "path": name, "size": size, "oid": "0"}
                for name, size in sizes.items()
            ]
            self.answer(json.dumps(tree).encode())
        elif self.path.startswith("/api/models/org/draft"):
            siblings = [{"rfilename": name, "size": size} for name, size in sizes.items()]
            facts = {"id": "org/draft", "_id": "0", "sha": self.commit, "siblings": siblings}
            self.answer(json.dumps(facts).encode())
        elif "/resolve/" in self.path and name in self.files:
            self.serve(name)
        else:
            self.answer(b"", status=404)

    do_HEAD = do_GET  # noqa: N815

    def serve(self, name):
        content, wanted = self.files[name], self.headers["Range"]
        if self.command == "GET":
            self.requested.append((name, wanted))
        if wanted is None:
            self.answer(content)
        else:
            first, last = map(int, re.fullmatch(r"bytes=(\d+)-(\d+)", wanted).groups())
            self.answer(content[first : last + 1], status=206)

    def answer(self, content, status=200):
        self.send_response(status)
        self.send_header("Content-Length", str(len(content)))
        self.send_header("X-Repo-Commit", self.commit)
        self.send_header("ETag", f'"{hashlib.sha256(content).hexdigest()}"')
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)


@pytest.fixture
def hub(folder, tmp_path_factory):
    save_file({"a": A, "b": B}, folder / "model.safetensors")
    Hub.files = {path.name: path.read_bytes() for path in folder.iterdir()}
    Hub.requested = []
    server = ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    thread = threading.Thread(target=server.serve_forever, args=(0.02,))
    thread.start()
    yield {
        **{key: value for key, value in os.environ.items() if not key.startswith("HF_")},
        "HF_ENDPOINT": f"http://127.0.0.1:{server.server_address[1]}",
        "HF_HOME": str(tmp_path_factory.mktemp("hub")),
        "NO_PROXY": "*",
    }
    server.shutdown()
    thread.join()
    server.server_close()


SCRIPT = """
import json, sys
from eagle3_interop.convert.read.checkpoint import open_checkpoint
from eagle3_interop.schemas.findings import Unavailable
try:
    opened = open_checkpoint(sys.argv[1], weights=sys.argv[2] == "weights")
except Unavailable as error:
    sys.exit(str(error))
values = {name: opened.values(name).tolist() for name in opened.tensors}
there = [path.exists() for path in opened.files]
print(json.dumps([values, opened.revision, opened.provenance()["path"], there]))
"""


def in_process(environment, *arguments):
    command = [sys.executable, "-c", SCRIPT, *arguments]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)


def test_a_hub_checkpoint_is_downloaded_to_be_converted(hub):
    result = in_process(hub, "org/draft@main", "weights")
    assert json.loads(result.stdout) == [BOTH, Hub.commit, "org/draft@main", [True]], result.stderr


def test_a_hub_checkpoint_is_inspected_by_ranges(hub):
    result = in_process(hub, "org/draft", "headers")
    assert json.loads(result.stdout) == [BOTH, Hub.commit, "org/draft", [False]], result.stderr
    assert all(wanted for name, wanted in Hub.requested if name == "model.safetensors")


def test_what_is_in_the_hubs_cache_needs_no_network(hub):
    in_process(hub, "org/draft", "weights")
    result = in_process({**hub, "HF_HUB_OFFLINE": "1"}, "org/draft", "weights")
    assert json.loads(result.stdout)[0] == BOTH, result.stderr


def test_a_hub_that_does_not_answer_is_said_in_one_line(hub):
    result = in_process({**hub, "HF_HUB_OFFLINE": "1"}, "org/other", "weights")
    assert result.returncode == 1
    assert result.stderr.startswith("org/other: no such local folder, and the Hub did not give it")
    assert result.stderr.count("\n") == 1
