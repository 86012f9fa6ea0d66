"""--engine and --server: against engines and servers that answer what the reference, or a mistake, would count."""

import json
import os
import sys
import threading
import time
from contextlib import contextmanager, suppress
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace

import pytest
from typer.testing import CliRunner

from eagle3_interop.convert import api
from eagle3_interop.schemas.draft import Mla
from eagle3_interop.schemas.findings import Unavailable, Usage
from eagle3_interop.schemas.report import Report
from eagle3_interop.validators import validate_cli
from eagle3_interop.validators.accept.acceptance import measure
from eagle3_interop.validators.accept.shape import Shape
from eagle3_interop.validators.engines import judge, miswirings, prediction, running, started
from eagle3_interop.validators.engines.answers import Served, Work, from_sglang
from eagle3_interop.validators.engines.running import RunningServer, checked_url, parse_metrics
from eagle3_interop.validators.engines.started import StartedEngine
from eagle3_interop.validators.network.reference import Network
from eagle3_interop.validators.network.weights import Weights
from eagle3_interop.validators.prove.request import Request
from eagle3_interop.validators.report.speed import speed_lines
from eagle3_interop.validators.target.running import Target
from eagle3_interop.validators.target.writing import write_texts

DATA = Path(__file__).resolve().parents[1] / "data"
TARGET, PLAIN = DATA / "target", DATA / "drafts" / "plain"
CHAIN, TREE = Shape.chain(4), Shape(3, 2, 6)
NEW_TOKENS = 24

FAKE_VLLM = """
import json, os, sys, time
from dataclasses import dataclass
from types import SimpleNamespace as Named
__version__ = "0.33.0"
told = json.load(open(os.environ["FAKE_ENGINE"]))
SamplingParams = lambda **options: options
class LLM:
    @classmethod
    def from_engine_args(cls, arguments):
        json.dump({"argv": arguments.argv, "pid": os.getpid(), "env": dict(os.environ)},
                  open(os.environ["FAKE_ENGINE"] + ".seen", "w"))
        if told.get("crash"):
            print("loading with api_key='s3cret' of hf_abcdefghijklmnopqrstuvwx")
            raise RuntimeError("no kernel image is available")
        while told.get("hang"):
            time.sleep(0.1)
        print("INFO Using auxiliary layers from speculative config: (1, 3, 5)")
        engine = cls()
        engine.done = 0
        engine.drafting = any("--speculative-config.model=" in word for word in arguments.argv)
        assert engine.drafting or arguments.per_request_spec_decode_metrics == "none"
        if not engine.drafting and told.get("bare_crash"):
            raise RuntimeError("no memory is left")
        return engine
    def get_metrics(self):
        got, k = told["totals"], self.done * int(self.drafting)
        yield Named(name="vllm:spec_decode_num_drafts", value=7 + k * got["drafts"])
        yield Named(name="vllm:spec_decode_num_accepted_tokens", value=5 + k * got["accepted"])
        yield Named(name="vllm:spec_decode_num_accepted_tokens_per_pos",
                    values=[1 + k * x for x in got["per_position"]])
    def generate(self, prompts, sampling, use_tqdm=True):
        n = sampling["max_tokens"]
        self.done += int(n > 1)
        found = [told["answers"][told["prompts"].index(p["prompt_token_ids"])] for p in prompts]
        time.sleep(1e-4 * n)
        return [Named(outputs=[Named(token_ids=a["output_ids"][:n], spec_decode_metrics=Named(
            histogram=a["meta_info"]["spec_correct_drafts_histogram"] if n > 1 else [0])
            if self.drafting else None)]) for a in found]
"""
FAKE_SGLANG = """
import json, os
__version__ = "0.5.23"
told = json.load(open(os.environ["FAKE_ENGINE"]))
class Engine:
    def __init__(self, server_args):
        json.dump({"argv": server_args, "env": dict(os.environ)},
                  open(os.environ["FAKE_ENGINE"] + ".seen", "w"))
    def generate(self, input_ids, sampling_params):
        n = sampling_params["max_new_tokens"]
        found = [told["answers"][told["prompts"].index(ids)] for ids in input_ids]
        return [{**a, "output_ids": a["output_ids"][:n]} for a in found]
    def shutdown(self):
        pass
"""
FAKES = {
    "vllm/__init__.py": FAKE_VLLM,
    "vllm/engine/__init__.py": "",
    "vllm/platforms.py": """
import json, os
from types import SimpleNamespace as Named
told = json.load(open(os.environ["FAKE_ENGINE"]))
current_platform = Named(is_cpu=lambda: told.get("on_a_cpu", False))
""",
    "vllm/engine/arg_utils.py": '''
from dataclasses import dataclass
@dataclass
class EngineArgs:
    argv: list
    disable_log_stats: bool = True
    per_request_spec_decode_metrics: str = "none"
    add_cli_args = staticmethod(lambda parser: parser)
    @classmethod
    def from_cli_args(cls, argv):
        return cls(argv)
''',
    "vllm/utils/__init__.py": "",
    "vllm/utils/argparse_utils.py": '''
class FlexibleArgumentParser:
    def parse_args(self, argv):
        return argv
''',
    "sglang/__init__.py": FAKE_SGLANG,
    "sglang/srt/__init__.py": "",
    "sglang/srt/server_args.py": "prepare_server_args = list",
}  # fmt: skip


class World:
    """The target's texts, and what an engine counts on them that computes this network or that."""

    def __init__(self):
        lines = (DATA / "prompts.jsonl").read_text().splitlines()[:3]
        self.prompts = [json.loads(line)["token_ids"] for line in lines]
        self.target = Target.load(TARGET)
        self.loaded = api.load(str(PLAIN), "auto", api.Options(target=str(TARGET)))
        weights = Weights.read(
            self.loaded.reading, self.loaded.checkpoint, tables=self.target.tables
        )
        self.network = Network(self.loaded.reading.draft, weights)
        self.texts = write_texts(self.target, self.prompts, NEW_TOKENS, 4).texts

    def known(self):
        return {
            one.name: one
            for one in miswirings.miswirings(self.network.draft, self.target.depth, 128)
        }

    def answers(self, shape=CHAIN, mistake=None):
        """As SGLang gives them."""
        network = self.network
        if mistake is not None:
            network = miswirings._wired(network, self.known()[mistake].draft)
        return [self._answer(network, text, shape) for text in self.texts]

    def _answer(self, network, text, shape):
        counted = measure(network, self.target, [text], [shape])[shape]
        reached = [counted.drafts, *counted.per_position, 0]
        info = {
            "spec_verify_ct": counted.drafts,
            "spec_num_correct_drafts": counted.accepted,
            "spec_correct_drafts_histogram": [a - b for a, b in pairwise(reached)],
        }
        return {"output_ids": list(text.completion[:NEW_TOKENS]), "meta_info": info}

    def work(self, **changes):
        work = Work(
            target="target",
            draft="draft",
            plugin=False,
            prompts=tuple(map(tuple, self.prompts)),
            new_tokens=NEW_TOKENS,
            stop_ids=(),
            shape=CHAIN,
            dtype="float32",
        )
        return replace(work, **changes)

    def served(self, answers, work=None):
        return from_sglang(answers, work or self.work(), "0", "started")


@pytest.fixture(scope="module")
def world():
    return World()


@pytest.fixture
def fake(tmp_path, monkeypatch, world):
    """Sets what the fake engines answer; returns what they were asked."""
    for name, content in FAKES.items():
        path = tmp_path / "fakes" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
    told = tmp_path / "told.json"
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "fakes"))
    monkeypatch.setenv("FAKE_ENGINE", str(told))

    def tell(answers, **more):
        totals = world.served(answers) if answers and "totals" not in more else None
        if totals:
            more["totals"] = prediction.figures(totals)
        told.write_text(json.dumps({"prompts": world.prompts, "answers": answers, **more}))
        return lambda: json.loads(Path(f"{told}.seen").read_text())

    return tell


@pytest.fixture
def prompts(tmp_path, world):
    path = tmp_path / "prompts.jsonl"
    path.write_text("".join(json.dumps({"token_ids": ids}) + "\n" for ids in world.prompts))
    return path


def validate(prompts, *options, checkpoint=PLAIN):
    arguments = ["--target", TARGET, "--prompts", prompts, "--max-new-tokens", NEW_TOKENS]
    arguments += ["--device", "cpu", "--json", "-", *options]
    if not {"--batch", "--speed"} & set(options):
        arguments.append("--no-speed")
    return CliRunner().invoke(validate_cli.app, [str(x) for x in (checkpoint, *arguments)])


def report_of(result, code):
    assert result.exit_code == code, result.output
    return json.loads(result.stdout)


def gate_of(report):
    return {gate["name"]: gate for gate in report["gates"]}["engine-counters"]


# An engine that is timed.

KEYS = {"batch", "with", "without", "ratio", "target_step", "draft_step", "batches", "rounds", "new_tokens", "same_texts"}  # fmt: skip


@pytest.mark.parametrize("engine", ["vllm", "sglang"])
def test_a_started_engine_is_timed_with_the_draft_and_without(fake, prompts, world, engine):
    seen = fake(world.answers())
    options = ("--engine", engine, "--engine-python", sys.executable, "--batch", "1,3")
    report = report_of(validate(prompts, *options, "--engine-arg=spec-x=1", "--engine-arg=y"), 0)
    speed = report["speed"]
    assert set(speed) == KEYS
    assert [row["batch"] for row in speed["batches"]] == [1, 3]
    assert (speed["batch"], speed["same_texts"]) == (1, 1.0)
    assert speed["ratio"] == pytest.approx(speed["with"] / speed["without"])
    assert [tokens for tokens, _ in speed["target_step"]] == [1, 2, 4, 5]
    last = seen()["argv"]
    assert not [word for word in last if "spec" in word]
    assert "--y" in last
    assert any("drafting makes" in line for line in speed_lines(Report.model_validate(report)))


def test_an_engine_that_fails_without_the_draft_leaves_no_speed_up(fake, prompts, world):
    fake(world.answers(), bare_crash=True)
    options = ("--engine", "vllm", "--engine-python", sys.executable, "--batch", "1")
    report = report_of(validate(prompts, *options), 0)
    speed = report["speed"]
    assert speed["with"] > 0
    assert (speed["without"], speed["ratio"], speed["target_step"]) == (None, None, None)
    said = {item["code"]: item["message"] for item in report["findings"]}
    assert "no memory is left" in said["speed-not-measured"]


def test_no_speed_is_measured_where_it_is_not_wanted(fake, prompts, world):
    fake(world.answers(), bare_crash=True)
    options = ("--engine", "vllm", "--engine-python", sys.executable)
    assert report_of(validate(prompts, *options), 0)["speed"] is None


@pytest.mark.parametrize("engine", ["vllm", "sglang"])
def test_a_server_has_a_speed_of_its_own_and_no_speed_up(engine, prompts, world):
    with serving(FakeServer(engine, world)) as url:
        report = report_of(validate(prompts, "--server", url, "--batch", "1"), 0)
    speed = report["speed"]
    assert speed["with"] > 0
    assert (speed["without"], speed["ratio"], speed["same_texts"]) == (None, None, None)
    assert any("--baseline-server URL" in x for x in speed_lines(Report.model_validate(report)))


def without_a_draft(engine, world, **faults):
    return FakeServer(engine, world, **{"steps": 0, "algorithm": None, **faults})


@pytest.mark.parametrize("engine", ["vllm", "sglang"])
def test_a_server_is_compared_with_the_one_without_the_draft(engine, prompts, world):
    with serving(FakeServer(engine, world)) as url, serving(without_a_draft(engine, world)) as bare:
        options = ("--server", url, "--baseline-server", bare, "--batch", "1,3")
        report = report_of(validate(prompts, *options), 0)
    speed = report["speed"]
    assert all(row["ratio"] > 0 for row in speed["batches"])
    assert speed["same_texts"] == 1
    assert not [x for x in report["findings"] if x["code"] == "baseline-differs"]


def test_a_baseline_of_another_model_is_a_warning(prompts, world):
    other = without_a_draft("vllm", world, model="another")
    with serving(FakeServer("vllm", world)) as url, serving(other) as bare:
        options = ("--server", url, "--baseline-server", bare, "--batch", "1")
        report = report_of(validate(prompts, *options), 0)
    said = {item["code"]: item["message"] for item in report["findings"]}
    assert said["baseline-differs"] == "it serves another, and --server served."


@pytest.mark.parametrize(
    ("other", "words"),
    [
        (lambda world: FakeServer("vllm", world), "--baseline-server drafts 4 tokens a step"),
        (lambda world: without_a_draft("sglang", world), "--baseline-server is SGLang 0.5.23"),
    ],
)
def test_what_is_no_baseline(other, words, prompts, world):
    with serving(FakeServer("vllm", world)) as url, serving(other(world)) as bare:
        result = validate(prompts, "--server", url, "--baseline-server", bare, "--batch", "1")
    assert result.exit_code == 2
    assert words in result.stderr


@pytest.mark.parametrize(
    "options",
    [
        ("--baseline-server", "http://127.0.0.1:9"),
        ("--batch", "0"),
        ("--batch", "1,x"),
        ("--batch", ""),
        ("--batch", "2000"),
    ],
)
def test_wrong_words_about_speed(prompts, options):
    assert validate(prompts, *options).exit_code == 2


# An engine that is started.


def test_an_engine_that_runs_the_draft(fake, prompts, world):
    seen = fake(world.answers())
    options = ("--engine", "vllm", "--engine-python", sys.executable)
    result = validate(
        prompts, *options, "--engine-arg=tp-size=8", "--engine-arg", "--enforce-eager"
    )
    report = report_of(result, 0)
    engine, gate = report["engine"], gate_of(report)
    assert report["verdict"] == "pass"
    assert gate["passed"]
    assert gate["got"] == gate["wanted"] == prediction.figures(world.served(world.answers()))
    assert engine["got"] == engine["expected"]
    assert engine["sentence"].startswith("vLLM 0.33.0 runs this draft as the reference does: ")
    assert engine["aux_layers"] == engine["taps"] == [1, 3, 5]
    assert (engine["prompts_that_differ"], engine["not_the_targets_choice"]) == (0, 0)
    argv = seen()["argv"]
    assert argv[-2:] == ["--tp-size=8", "--enforce-eager"]
    assert f"--model={TARGET}" in argv
    assert f"--speculative-config.model={PLAIN}" in argv
    assert "--speculative-config.num_speculative_tokens=4" in argv
    assert seen()["env"]["PATH"].startswith(str(Path(sys.executable).parent))


LATENT_TARGET = ["--compilation-config.custom_ops+=-rotary_embedding"]
CPU_MLA = ["--attention-backend=CPU_MLA", "--speculative-config.attention_backend=CPU_MLA"]


@pytest.mark.parametrize(
    ("latent", "flags", "variables"),
    [
        ({"target", "draft"}, CPU_MLA + LATENT_TARGET, []),
        ({"target"}, LATENT_TARGET, ["VLLM_MLA_DISABLE=1"]),
        ({"draft"}, [], []),
        (set(), [], []),
    ],
)
@pytest.mark.parametrize("cpu", [True, False])
def test_latent_attention_in_vllm_on_a_cpu(fake, world, monkeypatch, latent, flags, variables, cpu):
    """What it needs stands before the user's own flags, and is told; a GPU gets none of it."""
    monkeypatch.delenv("VLLM_MLA_DISABLE", raising=False)
    seen = fake(world.answers(), on_a_cpu=cpu)
    engine = StartedEngine.found("vllm", sys.executable, ["enforce-eager"])
    served = engine.generate(world.work(latent=frozenset(latent)))
    given = flags if cpu else []
    assert seen()["argv"][-len(given) - 1 :] == [*given, "--enforce-eager"]
    assert "--speculative-config.num_speculative_tokens=4" in seen()["argv"][: -len(given) - 1]
    assert served.told == tuple(given + (variables if cpu else []))
    found = seen()["env"].get("VLLM_MLA_DISABLE")
    assert found == ("1" if cpu and variables else None)


def test_a_variable_that_the_user_set_stays(fake, world, monkeypatch):
    monkeypatch.setenv("VLLM_MLA_DISABLE", "0")
    seen = fake(world.answers(), on_a_cpu=True)
    engine = StartedEngine.found("vllm", sys.executable, [])
    served = engine.generate(world.work(latent=frozenset({"target"})))
    assert seen()["env"]["VLLM_MLA_DISABLE"] == "0"
    assert served.told == tuple(LATENT_TARGET)


def test_a_tree_in_sglang(fake, prompts, world):
    seen = fake(world.answers(TREE), totals={})
    options = ("--engine", "sglang", "--engine-python", sys.executable, "--tree", "3,2,6")
    report = report_of(validate(prompts, *options), 0)
    assert report["engine"]["tree"] == [3, 2, 6]
    assert report["engine"]["aux_layers"] is None
    flags = {"--speculative-num-steps=3", "--speculative-eagle-topk=2"}
    assert flags | {"--speculative-num-draft-tokens=6"} <= set(seen()["argv"])


def test_an_engine_that_runs_something_else(fake, prompts, world):
    fake(world.answers(mistake="taps-lower"))
    result = validate(prompts, "--engine", "vllm", "--engine-python", sys.executable)
    report = report_of(result, 1)
    assert report["verdict"] == "fail"
    assert not gate_of(report)["passed"]
    assert "does not run this draft as the reference does: expected" in report["engine"]["sentence"]
    names = [cause["name"] for cause in report["engine"]["causes"] if cause["exact"]]
    assert names == ["taps-lower"]
    said = {item["code"]: item["message"] for item in report["findings"]}["engine-differs"]
    assert "takes every tap one layer lower: [0, 2, 4], not [1, 3, 5]" in said
    assert "It says that it took the inputs of layers [1, 3, 5]." in said


def test_a_crash_shows_the_end_of_the_log_without_secrets(fake, prompts):
    fake([], totals={}, crash=True)
    result = validate(prompts, "--engine", "vllm", "--engine-python", sys.executable)
    assert result.exit_code == 4
    assert "vLLM ended with exit code 1; its last lines:" in result.stderr
    assert "RuntimeError: no kernel image is available" in result.stderr
    assert "s3cret" not in result.output
    assert "hf_abc" not in result.output


def test_secrets_in_logs():
    for line in (
        "api_key='s3cret'",
        "--api-key s3cret",
        "--api-key=s3cret",
        "['--api-key', 's3cret']",
        '"HF_TOKEN": "s3cret"',
    ):
        assert "s3cret" not in started.tail(f"a\n{line}")
    harmless = "skip_tokenizer_init=True, max_total_tokens=8192"
    assert started.tail(harmless) == harmless


def test_a_failure_that_a_server_answers_is_shown_without_secrets(world):
    """A secret that the shown part of an answer would cut in two is known by its whole."""

    class Failing(FakeServer):
        def get(self, path):
            if path == "/version":
                return {"version": "0.0.1 of https://me:s3cret@host"}
            return self.faults["says"] if path == "/fails" else super().get(path)

    key = "hf_" + "s3cret" * 6
    for said in (
        f"x-api-key: {key}",
        "Authorization: Bearer s3cret-s3cret",
        "https://me:s3cret@host/v1?token=s3cret",
        "." * 480 + f" {key}",
    ):
        with serving(Failing("vllm", world, says=said)) as url:
            with pytest.raises(Unavailable) as failed:
                running._read(f"{url}/fails")
            assert "500" in str(failed.value)
            assert "s3cret" not in str(failed.value)
            assert "s3cret" not in RunningServer.found(url).version


def test_the_layers_that_vllm_says():
    head = "INFO 11-29 [gpu_model_runner.py:5243] "
    for line in (
        "Using auxiliary layers from speculative config: (1, 3, 5)",
        "Using Eagle3 auxiliary layers from config: [1, 3, 5]",
        "Using Eagle3 auxiliary layers from model: (1, 3, 5)",
    ):
        assert started.said_layers(f"x\n{head}{line}\ny") == (1, 3, 5)
    assert started.said_layers("x") is None


def test_an_engine_that_hangs_is_ended(fake, world, monkeypatch):
    monkeypatch.setattr(started, "STALL_S", 1.5)
    seen = fake([], totals={}, hang=True)
    with pytest.raises(Unavailable, match=r"said nothing for 1\.5 s"):
        StartedEngine.found("vllm", sys.executable, []).generate(world.work())
    with pytest.raises(ProcessLookupError):
        os.kill(seen()["pid"], 0)


def test_an_engine_that_is_not_installed(prompts):
    result = validate(prompts, "--engine", "vllm")
    assert result.exit_code == 4
    assert "vLLM is not installed for" in result.stderr
    assert "--engine-python" in result.stderr


def test_the_plugin_is_switched_on_where_the_checkpoint_needs_it(fake, world):
    seen = fake(world.answers(), totals={})
    engine = StartedEngine.found("sglang", sys.executable, [])
    engine.generate(world.work())
    assert "SGLANG_EXTERNAL_MODEL_PACKAGE" not in seen()["env"]
    engine.generate(world.work(plugin=True))
    assert seen()["env"]["SGLANG_EXTERNAL_MODEL_PACKAGE"] == "eagle3_interop.sglang_plugin"


def test_a_plugin_that_is_not_installed_there(fake, world):
    fake(world.answers(), totals={})
    bare = getattr(sys, "_base_executable", sys.executable)
    with pytest.raises(Unavailable, match="pip install eagle3-interop there"):
        StartedEngine.found("sglang", bare, []).generate(world.work(plugin=True))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--engine", "vllm", "--server", "http://localhost:1"), "not both"),
        (("--engine-arg", "x"), "--engine starts"),
        (("--engine-python", "x"), "--engine starts"),
        (("--engine", "vllm", "--tree", "3,2,6"), "vLLM drafts chains only"),
        (("--engine", "vllm", "--engine-python", "/no/such"), "no such program"),
        (("--engine", "other"), "vllm"),
        (("--batch", "1,4"), "give --engine or --server"),
        (("--speed",), "give --engine or --server"),
        (("--server", "http://localhost:1", "--no-speed", "--batch", "4"), "give one of them"),
        (("--server", "file:///etc/passwd"), "http://HOST:PORT"),
        (("--server", "http://me:secret@localhost"), "EAGLE3_SERVER_KEY"),
        (("--server", "http://localhost:99999"), "port"),
        (("--server", "http://localhost/?key=secret"), "without ?"),
    ],
)
def test_wrong_usage(prompts, options, words):
    result = validate(prompts, *options)
    assert result.exit_code == 2
    assert words.lower() in result.stderr.lower()
    assert "secret" not in result.stderr
    assert "Traceback" not in result.output


# The prediction, and causes.


def test_every_known_mistake_is_named_by_its_counters(world):
    known = world.known()
    assert {"taps-lower", "taps-higher", "taps-reversed", "fc-skipped", "residual"} <= set(known)
    for name in known:
        served = world.served(world.answers(mistake=name))
        causes, tried = miswirings.likeliest(
            world.network, world.target, world.texts, CHAIN, served
        )
        assert tried == len(known)
        assert name in [cause.miswiring.name for cause in causes]


def test_mistakes_make_sense_for_the_draft(drafts):
    full = drafts.make_draft(
        block_norms=True, input_norm=True, qk_norm=True, qkv_bias=True, output_bias=True, count=2,
        windows=(8, None), taps=(5, 1, 3), draft_vocabulary=64,
    )  # fmt: skip
    names = [one.name for one in miswirings.miswirings(full, 8, 64)]
    assert names == [
        "taps-lower", "taps-higher", "default-taps", "taps-sorted", "taps-reversed",
        "taps-next", "taps-next", "taps-next", "fc-skipped",
        "residual", "feedback", "d2t-ignored", "target-embeddings", "no-norm-before-fc", "no-fc-norm",
        "no-qk-norm", "no-qkv-bias", "no-output-bias", "no-window", "one-layer",
    ]  # fmt: skip
    plain = [one.name for one in miswirings.miswirings(drafts.make_draft(no_fc=True), 6, 32)]
    assert plain == ["residual", "feedback"]


def test_mistakes_of_latent_attention(drafts):
    attention = Mla(
        heads=4, q_rank=None, kv_rank=32, nope_dim=24, rope_dim=8, v_dim=16, softmax_scale=0.5
    )
    draft = drafts.make_draft(latent=attention)
    found = {one.name: one.draft for one in miswirings.miswirings(draft, 6, 32)}
    assert not found["rope-pairs"].layers.attention.interleaved
    assert found["no-mscale"].layers.attention.softmax_scale == 32**-0.5
    plain = attention.model_copy(update={"softmax_scale": 32**-0.5})
    names = [one.name for one in miswirings.miswirings(drafts.make_draft(latent=plain), 6, 32)]
    assert "no-mscale" not in names


def test_a_list_of_taps_that_lost_its_first(drafts):
    """[embedding, 3, 31] were trained, and the streams before layers 3, 31 and 59 of 61 are served."""
    draft = drafts.make_draft(taps=(0, 3, 31))
    found = [one.draft.taps for one in miswirings.miswirings(draft, 61, 64)]
    assert (3, 31, 59) in found
    deep = drafts.make_draft(taps=(1, 3, 6))
    assert "taps-next" not in [one.name for one in miswirings.miswirings(deep, 6, 64)]


def test_the_window_of_a_target_that_slides_is_a_mistake_to_look_for(drafts):
    draft = drafts.make_draft(count=2, windows=(8, None))
    (found,) = [
        one for one in miswirings.miswirings(draft, 8, 64, 12) if one.name == "target-window"
    ]
    assert found.draft.layers.windows == (8, 12)
    sliding = drafts.make_draft(windows=(8,))
    names = [one.name for one in miswirings.miswirings(sliding, 8, 64, 12)]
    assert "target-window" not in names


def test_float32_asks_for_equality_and_half_precision_for_an_interval(world):
    exact = world.served(world.answers())
    off = replace(exact, accepted=exact.accepted + 1)

    def predicted(*dtypes):
        return prediction.predict(world.network, world.target, world.texts, CHAIN, dtypes)

    single, half = predicted("float32", "float32"), predicted("float32", "bfloat16")
    assert single.explains(exact)
    assert not single.explains(off)
    assert half.explains(exact)
    assert half.explains(off)
    assert half.open_starts > single.open_starts
    low, high = half.allowed["accepted"]
    assert low < exact.accepted < high
    assert not half.explains(replace(exact, drafts=3 * exact.drafts))
    assert not half.explains(replace(exact, per_position=exact.per_position[:2]))


def judgement(world, served, work=None):
    referee = judge.EngineJudge(SimpleNamespace(shape=None))
    referee.work, referee.served = work or world.work(), served
    session = SimpleNamespace(
        request=Request("draft", "target"), network=world.network, target=world.target
    )
    found = referee(session, None)
    return found, {item.code: item.message for item in found.findings}


def test_an_engine_that_drafts_nothing(world):
    served = replace(world.served(world.answers()), drafts=0, accepted=0, per_position=(0,) * 4)
    found, said = judgement(world, served)
    assert not found.gates[0].passed
    assert "drafted nothing" in said["engine-differs"]
    one = [output[:1] for output in served.outputs]
    assert not judgement(world, replace(served, outputs=tuple(one)))[0].gates[0].passed


def test_an_engine_that_drafts_fewer_tokens(world):
    served = world.served(world.answers(Shape.chain(1)), world.work(shape=Shape.chain(1)))
    assert "it drafts 1 tokens a step, and 4 were" in judgement(world, served)[1]["engine-differs"]


def test_an_engine_that_writes_another_text(world):
    """Its own text is what is judged; that it is not the target's is said."""
    outputs = tuple(tuple(reversed(output)) for output in world.served(world.answers()).outputs)
    served = replace(world.served(world.answers()), outputs=outputs)
    found, said = judgement(world, served)
    assert found.engine["not_the_targets_choice"] > 20
    assert "its text is not what this target generates" in said["engine-differs"]
    assert "not the reference target's own greedy choice" in said["engine-text"]


def test_what_an_engine_was_told_for_its_cpu_stands_in_the_report(world):
    served = replace(world.served(world.answers()), told=("--attention-backend=CPU_MLA",))
    _, said = judgement(world, served)
    assert "--attention-backend=CPU_MLA" in said["engine-on-a-cpu"]
    assert "engine-on-a-cpu" not in judgement(world, world.served(world.answers()))[1]


def test_a_text_that_ended_early_is_judged_at_its_length(world):
    short = [replace(text, scored=9) for text in world.texts]
    counted = measure(world.network, world.target, short, [CHAIN])[CHAIN]
    served = replace(
        world.served(world.answers()),
        outputs=tuple(text.completion[:9] for text in short),
        prompts=counted.prompts,
        **prediction.figures(counted) | {"per_position": counted.per_position},
    )
    assert judgement(world, served, world.work(stop_ids=(2,)))[0].gates[0].passed


def test_the_targets_end_of_sequence():
    declared = json.loads((TARGET / "generation_config.json").read_text())["eos_token_id"]
    found = judge.stops_of(str(TARGET), Request("draft", "target"))
    assert found == ((declared,) if isinstance(declared, int) else tuple(declared))


def test_sglang_that_names_its_counters_otherwise(world):
    answers = world.answers()
    del answers[0]["meta_info"]["spec_num_correct_drafts"]
    with pytest.raises(Unavailable, match="does not report spec_num_correct_drafts"):
        world.served(answers)


def test_an_answer_without_tokens(world):
    served = Served("vllm", "1", "started", ((1,), ()), 1, 0, (0,))
    with pytest.raises(Unavailable, match="answered 2 of 3 prompts"):
        served.checked(world.work())
    with pytest.raises(Unavailable, match="no token for prompt 1"):
        replace(served, outputs=((1,), (), (2,))).checked(world.work())


# A server that runs.


class FakeServer:
    """vLLM or SGLang, as far as they are asked."""

    def __init__(self, engine, world, answers=None, **faults):
        self.engine, self.world, self.faults = engine, world, faults
        self.answers = answers or world.answers()
        self.finished = self.written = self.drafts = self.accepted = 3
        self.positions = [1] * faults.get("steps", 4)
        self.keys, self.lock = set(), threading.Lock()

    def get(self, path):
        if path == "/server_info" and self.engine == "sglang":
            info = {"version": "0.5.23", "model_path": "target", "dtype": "float32"}
            chain = {"speculative_num_steps": 4, "speculative_eagle_topk": 1}
            return {**info, "speculative_algorithm": self.faults.get("algorithm", "EAGLE3"), **chain,
                    "speculative_num_draft_tokens": 5}  # fmt: skip
        if path == "/version" and self.engine == "vllm":
            return {"version": self.faults.get("version", "0.33.0")}
        if path == "/v1/models":
            return {"data": [{"id": self.faults.get("model", "served")}]}
        return self.metrics() if path == "/metrics" else None

    def metrics(self):
        label = '{engine="0",model_name="a, b"}'
        positions = "".join(
            f'vllm:spec_decode_num_accepted_tokens_per_pos_total{{engine="0",position="{i}"}} {x}.0\n'
            for i, x in enumerate(self.positions)
        )
        return (
            "# HELP some text\n"
            f"vllm:num_requests_running{label} {self.faults.get('busy', 0)}.0\n"
            f"vllm:num_requests_waiting{label} 0.0\n"
            f'vllm:request_success_total{{finished_reason="length"}} {self.finished}.0\n'
            f'vllm:request_success_total{{finished_reason="stop"}} 2.0\n'
            f"vllm:generation_tokens_total{label} {self.written}.0\n"
            f"vllm:spec_decode_num_drafts_total{label} {self.drafts}.0\n"
            f"vllm:spec_decode_num_accepted_tokens_total{label} {self.accepted}.0\n{positions}"
        )

    def post(self, path, body):
        if "fail" in self.faults:
            return None
        ids = body["input_ids" if self.engine == "sglang" else "prompt"]
        answer = self.answers[self.world.prompts.index(ids)]
        if self.engine == "sglang":
            assert body["sampling_params"]["ignore_eos"] is True
            n = body["sampling_params"]["max_new_tokens"]
            answer = {**answer, "output_ids": answer["output_ids"][:n]}
            return answer if path == "/generate" else None
        assert body["model"] == self.faults.get("model", "served")
        answer = {**answer, "output_ids": answer["output_ids"][: body["max_tokens"]]}
        self.count(answer)
        if self.faults.get("traffic"):
            self.count(answer)
        ids = None if self.faults.get("no_ids") else answer["output_ids"]
        return {"choices": [{"text": "", "token_ids": ids}]}

    def count(self, answer):
        info = answer["meta_info"]
        histogram = info["spec_correct_drafts_histogram"]
        with self.lock:
            self.finished += 1
            self.written += len(answer["output_ids"])
            self.drafts += info["spec_verify_ct"]
            self.accepted += info["spec_num_correct_drafts"]
            for i in range(len(self.positions)):
                self.positions[i] += sum(histogram[i + 1 :])


@contextmanager
def serving(server):
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            self.reply(server.get(self.path))

        def do_POST(self):
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            self.reply(server.post(self.path, body))

        def reply(self, answer):
            server.keys.add(self.headers.get("Authorization"))
            if server.faults.get("redirect"):
                self.send_response(302)
                self.send_header("Location", "http://localhost:9/elsewhere")
            elif "fail" in server.faults and self.command == "POST":
                self.send_response(server.faults["fail"], "Sorry")
            elif self.path == "/fails":
                self.send_response(500, "Sorry")
            else:
                self.send_response(404 if answer is None else 200)
            content = (answer if isinstance(answer, str) else json.dumps(answer)).encode()
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            with suppress(BrokenPipeError):
                self.wfile.write(content)

        def log_message(self, *_):
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as found:
        thread = threading.Thread(target=found.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        try:
            yield f"http://127.0.0.1:{found.server_port}"
        finally:
            found.shutdown()
            thread.join()


@pytest.mark.parametrize("engine", ["vllm", "sglang"])
def test_a_server_that_runs_the_draft(engine, prompts, world):
    with serving(FakeServer(engine, world)) as url:
        report = report_of(validate(prompts, "--server", f"{url}/v1/"), 0)
    found = report["engine"]
    assert (found["engine"], found["how"]) == (engine, "server")
    assert found["got"] == found["expected"]
    assert report["acceptance"]["num_draft_tokens"] == found["num_draft_tokens"] == 4
    assert gate_of(report)["passed"]


@pytest.mark.parametrize(
    ("version", "checkpoint", "codes"),
    [
        ("0.33.0", PLAIN, set()),
        ("99.0", PLAIN, {"release-unknown"}),
        ("0.1.dev7+gabc", PLAIN, {"release-unknown"}),
        ("0.24.0", PLAIN.with_name("library_defaults"), {"release-differs"}),
    ],
)
def test_a_servers_version_says_by_which_rules_it_is_judged(
    version, checkpoint, codes, prompts, world
):
    with serving(FakeServer("vllm", world, version=version)) as url:
        result = validate(prompts, "--server", url, checkpoint=checkpoint)
    found = {item["code"] for item in json.loads(result.stdout)["findings"]}
    assert found & {"release-unknown", "release-differs"} == codes


def test_a_server_older_than_all_that_is_known_is_refused(prompts, world):
    with serving(FakeServer("vllm", world, version="0.9.2")) as url:
        result = validate(prompts, "--server", url)
    assert report_of(result, 3)["findings"][0]["code"] == "release-too-old"


def test_a_server_that_drafts_otherwise_than_asked(prompts, world):
    with serving(FakeServer("vllm", world, steps=2)) as url:
        result = validate(prompts, "--server", url, "--num-draft-tokens", 4)
    assert result.exit_code == 2
    assert "drafts 2 tokens a step, not 4 tokens" in result.stderr


@pytest.mark.parametrize(
    ("engine", "faults", "words"),
    [
        ("vllm", {"traffic": True}, "other traffic moved the counters .* 6 requests"),
        ("vllm", {"busy": 1}, "1 requests were under way before"),
        ("vllm", {"no_ids": True}, "does not return token ids"),
        ("vllm", {"fail": 503}, "503 Sorry"),
        ("vllm", {"steps": 0}, "started without a draft"),
        ("sglang", {"algorithm": None}, "started without a draft"),
        ("sglang", {"fail": 404}, "not there"),
        ("other", {}, "neither as vLLM nor as SGLang"),
        ("vllm", {"redirect": True}, "302"),
    ],
)
def test_servers_that_fail(world, engine, faults, words):
    server = FakeServer(engine, world, **faults)
    with serving(server) as url, pytest.raises(Unavailable, match=words):
        RunningServer.found(url).generate(world.work())


def test_a_server_that_is_not_there():
    with pytest.raises(Unavailable, match="refused"):
        RunningServer.found("http://127.0.0.1:9")


def test_a_server_that_is_silent(world, monkeypatch):
    monkeypatch.setattr(running, "GENERATE_S", 0.2)
    server = FakeServer("sglang", world)
    server.post = lambda *_: time.sleep(0.6)
    with serving(server) as url, pytest.raises(Unavailable, match=r"no answer within 0\.2 s"):
        RunningServer.found(url).generate(world.work())


def test_the_key_is_sent_and_never_shown(world, monkeypatch):
    monkeypatch.setenv("EAGLE3_SERVER_KEY", "s3cret")
    server = FakeServer("vllm", world, fail=401)
    with serving(server) as url, pytest.raises(Unavailable) as caught:
        RunningServer.found(url).generate(world.work())
    assert server.keys == {"Bearer s3cret"}
    assert "s3cret" not in str(caught.value)


def test_bases_of_servers():
    assert checked_url("http://localhost:8000/v1/") == "http://localhost:8000"
    assert checked_url("https://host/prefix") == "https://host/prefix"
    with pytest.raises(Usage):
        checked_url("localhost:8000")


def test_metrics_are_summed_over_engines():
    text = "".join(
        f'vllm:spec_decode_num_drafts_total{{engine="{i}"}} 1.2e+01\n'
        f'vllm:spec_decode_num_accepted_tokens_per_pos_total{{position="1",engine="{i}"}} 2.0\n'
        f'vllm:spec_decode_num_accepted_tokens_per_pos_total{{position="0",engine="{i}"}} 3.0\n'
        f'vllm:num_requests_running{{engine="{i}"}} NaN\n'
        for i in range(2)
    )
    found = parse_metrics(text)
    assert (found.drafts, found.per_position, found.busy) == (24, (6, 4), 0)
    assert parse_metrics("<html> no such page </html>\nvllm: x y") == parse_metrics("")


def test_a_server_that_was_started_anew(world):
    server = FakeServer("vllm", world)
    with serving(server) as url:
        found = RunningServer.found(url)
        server.finished = 20
        server.count = lambda _: setattr(server, "finished", 1)
        with pytest.raises(Unavailable, match="started anew"):
            found.generate(world.work())
