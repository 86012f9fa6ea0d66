"""Recording from SGLang: an engine and a server that answer as SGLang does, with what the tiny target computes.

The real ones: ``tests/engines/test_recording.py``.
"""

import json
import sys
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
import torch
from conftest import TARGET, counters, measured
from safetensors.torch import load_file

from eagle3_interop.convert.read.target_tables import open_target
from eagle3_interop.schemas.engines.recording import at_least
from eagle3_interop.schemas.findings import Unavailable, Usage
from eagle3_interop.validators.accept.shape import Shape
from eagle3_interop.validators.engines.started import StartedEngine
from eagle3_interop.validators.record.record import record
from eagle3_interop.validators.record.sglang import SGLangServer, SGLangStarted, capture_ids
from eagle3_interop.validators.record.wish import Wish
from eagle3_interop.validators.target.running import Target
from eagle3_interop.validators.target.tables import TargetTables
from eagle3_interop.validators.target.writing import write_texts

NEW, AHEAD = 20, 6
CHAIN = Shape.chain(4)

FAKE = """
import json, os
from pathlib import Path
told = json.load(open(os.environ["FAKE_ENGINE"]))
class Engine:
    def __init__(self, server_args):
        self.last = "--enable-return-hidden-states" in server_args
        seen = Path(os.environ["FAKE_ENGINE"] + ".seen")
        seen.write_text((seen.read_text() if seen.exists() else "") + json.dumps(server_args) + "\\n")
        self.left = told.get("crash_after", 10**9)
    def generate(self, input_ids, sampling_params, return_hidden_states, return_logprob, top_logprobs_num):
        assert return_hidden_states and sampling_params["ignore_eos"]
        self.left -= 1
        if self.left < 0:
            raise RuntimeError("no kernel image is available")
        if self.last:
            return told["last"][json.dumps(input_ids)]
        answer = told["first"][json.dumps(input_ids)]
        assert len(answer["output_ids"]) == sampling_params["max_new_tokens"]
        return answer
    def shutdown(self): pass
"""


@pytest.fixture(scope="module")
def answers(prompts):
    """What SGLang answers: taps 1, 3 and 5 of each text, its likeliest tokens, its last state."""
    target = Target.load(TARGET)
    rows = [json.loads(line)["token_ids"] for line in prompts.read_text().splitlines()]
    first, last = {}, {}
    for text in write_texts(target, rows, NEW + AHEAD + 1, 0).texts:
        row, more = list(text.prompt), list(text.completion)
        tokens = [*row, *more[:-1]]
        found = target.features(torch.tensor([tokens]), (1, 3, 5))
        states = torch.cat([found.taps[tap][0] for tap in (1, 3, 5)], dim=-1)
        scores = target.logits(found.final[0][len(row) - 1 :]).log_softmax(-1).topk(20)
        top = [
            [[score, token, None] for score, token in zip(s, t, strict=True)]
            for s, t in zip(scores.values.tolist(), scores.indices.tolist(), strict=True)
        ]
        hidden = [states[: len(row)].tolist(), *states[len(row) :].tolist()]
        info = {"hidden_states": hidden, "output_top_logprobs": top}
        first[json.dumps(row)] = {"output_ids": more, "meta_info": info}
        ends = {"hidden_states": [found.final[0].tolist()]}
        last[json.dumps(tokens)] = {"output_ids": [0], "meta_info": ends}
    return {"first": first, "last": last}


@pytest.fixture
def engine(answers, tmp_path, monkeypatch):
    """A Python that has a fake SGLang of a given version, and a file of what it shall answer."""

    def made(version="0.5.23", arguments=(), **changes):
        home = tmp_path / "site"
        (home / "sglang" / "srt").mkdir(parents=True, exist_ok=True)
        (home / "sglang" / "__init__.py").write_text(FAKE)
        (home / "sglang" / "srt" / "__init__.py").touch()
        (home / "sglang" / "srt" / "server_args.py").write_text("prepare_server_args = list\n")
        info = home / "sglang-0.dist-info"
        info.mkdir(exist_ok=True)
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: sglang\nVersion: {version}\n")
        told = tmp_path / "told.json"
        told.write_text(json.dumps({**answers, **changes}))
        monkeypatch.setenv("PYTHONPATH", str(home))
        monkeypatch.setenv("FAKE_ENGINE", str(told))
        return StartedEngine.found("sglang", sys.executable, arguments)

    made.seen = lambda: [
        json.loads(line) for line in (tmp_path / "told.json.seen").read_text().splitlines()
    ]
    return made


def wish_for(out, prompts, **options):
    options = {"taps": (1, 3, 5), "new_tokens": NEW, "lookahead": AHEAD, "device": "cpu", **options}
    return Wish(str(TARGET), out, prompts, **options)


def run(wish, recorder):
    return record(wish, recorder, say=lambda _: None)


def test_two_starts_give_the_taps_and_the_last_state(engine, prompts, tmp_path):
    wish = wish_for(tmp_path / "s", prompts)
    manifest = run(wish, SGLangStarted(wish, engine()))
    assert (manifest.taps, manifest.last, manifest.basis) == ((1, 3, 5), "post-norm", "last-state")
    assert manifest.by.version == "0.5.23"
    live = measured("plain", prompts=prompts, new_tokens=NEW, shape=CHAIN)
    assert counters(measured("plain", streams=str(tmp_path / "s"), shape=CHAIN)) == counters(live)
    first, second = engine.seen()
    assert "--return-aux-hidden-state-layer-ids" in first
    assert first[first.index("--return-aux-hidden-state-layer-ids") + 1 :][:3] == ["0", "2", "4"]
    assert {"--disable-radix-cache", "--chunked-prefill-size=-1"} <= set(first) & set(second)
    assert "--enable-return-hidden-states" in second
    assert not (tmp_path / "s" / ".parts").exists()


def test_without_the_last_state_the_likeliest_tokens_are_kept(engine, prompts, tmp_path):
    wish = wish_for(tmp_path / "s", prompts)
    manifest = run(wish, SGLangStarted(wish, engine(), last_state=False))
    assert (manifest.last, manifest.basis) == ("absent", "top-logprobs")
    assert len(engine.seen()) == 1
    file = load_file(tmp_path / "s" / "hs_0.safetensors")
    prompt = manifest.texts[0].prompt
    assert bool((file["top_ids"][: prompt - 1] == -1).all())
    assert torch.equal(file["top_ids"][prompt - 1 : -1, 0].long(), file["token_ids"][prompt:])
    live = measured("plain", prompts=prompts, new_tokens=NEW, shape=CHAIN)
    found = measured("plain", streams=str(tmp_path / "s"), shape=CHAIN)
    assert counters(found) == counters(live)
    assert found.streams.teacher_forced.choice == "text"
    assert found.streams.teacher_forced.in_draft_vocabulary is None


def test_a_crash_keeps_what_was_recorded_and_the_next_run_goes_on(engine, prompts, tmp_path):
    wish = wish_for(tmp_path / "s", prompts)
    with pytest.raises(Unavailable, match="no kernel image is available"):
        run(wish, SGLangStarted(wish, engine(crash_after=3)))
    assert len(list((tmp_path / "s" / ".parts").glob("*.safetensors"))) == 3
    run(wish, SGLangStarted(wish, engine()))
    live = measured("plain", prompts=prompts, new_tokens=NEW, shape=CHAIN)
    assert counters(measured("plain", streams=str(tmp_path / "s"), shape=CHAIN)) == counters(live)


@pytest.mark.parametrize("version", ["0.5.22", "0.5.3.post1", "0.4.10"])
def test_an_older_sglang_is_refused_by_name(version, engine, prompts, tmp_path):
    wish = wish_for(tmp_path / "s", prompts)
    with pytest.raises(Unavailable, match=rf"SGLang {version} .* SGLang 0\.5\.23 and later do"):
        run(wish, SGLangStarted(wish, engine(version)))
    assert not (tmp_path / "s").exists()


@pytest.mark.parametrize(
    ("found", "fine"), [("0.5.23", 1), ("0.5.23.post2", 1), ("0.6", 1), ("0.5.9", 0), ("1.0rc1", 1)]
)
def test_releases_are_compared_by_their_numbers(found, fine):
    assert at_least(found, "0.5.23") is bool(fine)


@pytest.mark.parametrize("flags", [["pp-size=2"], ["--pipeline-parallel-size", "4"]])
def test_pipeline_stages_are_refused_by_name(flags, engine, prompts, tmp_path):
    wish = wish_for(tmp_path / "s", prompts)
    with pytest.raises(Usage, match=r"pipeline stages .* take tensor parallelism"):
        run(wish, SGLangStarted(wish, engine(arguments=flags)))


def test_tensor_parallelism_is_passed_on(engine, prompts, tmp_path):
    wish = wish_for(tmp_path / "s", prompts)
    run(wish, SGLangStarted(wish, engine(arguments=["tensor-parallel-size=8"])))
    assert all("--tensor-parallel-size=8" in argv for argv in engine.seen())


@pytest.mark.parametrize(
    ("taps", "words"),
    [
        ((1, 6), "does not capture after the last layer"),
        ((0,), "SGLang hands out the stream after"),
    ],
)
def test_layers_that_sglang_does_not_hand_out_are_wrong_usage(
    taps, words, engine, prompts, tmp_path
):
    wish = wish_for(tmp_path / "s", prompts, taps=taps)
    with pytest.raises(Usage, match=words):
        run(wish, SGLangStarted(wish, engine()))


def shortened(answers, by):
    """Answers in which a text's hidden states are fewer than its tokens: a cached prefix, a dropped chunk."""
    first = json.loads(json.dumps(answers["first"]))
    entry = next(iter(first.values()))
    entry["meta_info"]["hidden_states"][0] = entry["meta_info"]["hidden_states"][0][by:]
    return first


def test_rows_are_counted_against_tokens(answers, engine, prompts, tmp_path):
    wish = wish_for(tmp_path / "s", prompts)
    with pytest.raises(Unavailable, match="belong to these tokens and layers"):
        run(wish, SGLangStarted(wish, engine(first=shortened(answers, 7)), last_state=False))


def test_another_model_behind_the_engine_is_found_by_its_last_state(
    answers, engine, prompts, tmp_path
):
    last = json.loads(json.dumps(answers["last"]))
    for entry in last.values():
        rows = torch.tensor(entry["meta_info"]["hidden_states"][0])
        entry["meta_info"]["hidden_states"][0] = rows.flip(-1).tolist()
    wish = wish_for(tmp_path / "s", prompts)
    with pytest.raises(Unavailable, match="it serves another model"):
        run(wish, SGLangStarted(wish, engine(last=last)))


def test_what_is_no_number_is_not_written(answers, engine, prompts, tmp_path):
    first = json.loads(json.dumps(answers["first"]))
    next(iter(first.values()))["meta_info"]["hidden_states"][0][3][5] = float("nan")
    wish = wish_for(tmp_path / "s", prompts)
    with pytest.raises(Unavailable, match="hold NaN or infinite values"):
        run(wish, SGLangStarted(wish, engine(first=first), last_state=False))


def test_an_engine_that_is_not_there_is_named(prompts, tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    wish = wish_for(tmp_path / "s", prompts)
    with pytest.raises(Unavailable, match="SGLang is not installed for"):
        run(wish, SGLangStarted(wish, StartedEngine.found("sglang", sys.executable, [])))


# A server that runs.


@contextmanager
def server(answers, **changes):
    """A server that was started for recording, but for what is changed."""
    info = {
        "version": "0.5.23", "enable_return_aux_hidden_states": True, "disable_radix_cache": True,
        "return_aux_hidden_state_layer_ids": [0, 2, 4], "chunked_prefill_size": -1, "pp_size": 1, **changes,
    }  # fmt: skip

    class Handler(BaseHTTPRequestHandler):
        def _send(self, value):
            body = json.dumps(value).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def do_GET(self):
            self._send(info)

        def do_POST(self):
            asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            assert asked["return_hidden_states"] is True
            self._send(answers["first"][json.dumps(asked["input_ids"])])

        def log_message(self, *_):
            pass

    httpd = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=httpd.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{httpd.server_port}"
    finally:
        httpd.shutdown()
        thread.join()
        httpd.server_close()


def test_a_running_server_is_recorded(answers, prompts, tmp_path):
    wish = wish_for(tmp_path / "s", prompts, taps=None)
    with server(answers) as url:
        manifest = run(wish, SGLangServer(wish, url))
    assert (manifest.taps, manifest.by.how) == ((1, 3, 5), "server")
    live = measured("plain", prompts=prompts, new_tokens=NEW, shape=CHAIN)
    assert counters(measured("plain", streams=str(tmp_path / "s"), shape=CHAIN)) == counters(live)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"version": "0.5.22"}, r"SGLang 0\.5\.22"),
        ({"version": None}, "does not answer as SGLang does"),
        ({"enable_return_aux_hidden_states": False}, "was not started to hand out hidden states"),
        ({"disable_radix_cache": False}, "its radix cache is on"),
        ({"chunked_prefill_size": 2048}, "splits prompts into chunks of 2048"),
        ({"pp_size": 2}, "spread over pipeline stages"),
    ],
)
def test_a_server_that_was_started_otherwise_is_told_how(
    changes, words, answers, prompts, tmp_path
):
    wish = wish_for(tmp_path / "s", prompts, taps=None)
    with server(answers, **changes) as url, pytest.raises(Unavailable, match=words) as raised:
        run(wish, SGLangServer(wish, url))
    if changes.get("version", "") is not None and "version" not in changes:
        assert "--return-aux-hidden-state-layer-ids" in str(raised.value)


def test_other_layers_than_the_server_hands_out_are_wrong_usage(answers, prompts, tmp_path):
    wish = wish_for(tmp_path / "s", prompts, taps=(1, 2))
    with (
        server(answers) as url,
        pytest.raises(Usage, match=r"the server hands out taps \[1, 3, 5\]"),
    ):
        run(wish, SGLangServer(wish, url))


def test_ids_are_in_the_targets_own_convention(tmp_path):
    """A DeepSeek class takes ids as taps, unless the first is 1; others one less."""
    plain = TargetTables.open(str(TARGET))
    assert capture_ids((1, 3, 5), plain) == [0, 2, 4]
    for name in ("tokenizer.json", "model.safetensors"):
        (tmp_path / name).write_bytes((TARGET / name).read_bytes())
    config = json.loads((TARGET / "config.json").read_text())
    told = {**config, "architectures": ["DeepseekV3ForCausalLM"]}
    (tmp_path / "config.json").write_text(json.dumps(told))
    deep = TargetTables.open(str(tmp_path))
    assert capture_ids((3, 5), deep) == [3, 5]
    assert capture_ids((2, 3, 5), deep) == [1, 2, 4]
    assert open_target(str(tmp_path)).facts.architectures == ("DeepseekV3ForCausalLM",)
