"""recipes/benchmark_prompts.py on small files of our own, written as MT-Bench, HumanEval and GSM8K are published."""

import gzip
import importlib.util
import json
from pathlib import Path

import pytest
from typer import Typer
from typer.testing import CliRunner

from eagle3_interop.validators.target.prompts import read_prompts

ROOT = Path(__file__).parents[2]
SAMPLES = ROOT / "tests" / "data" / "benchmarks"
MT_BENCH, HUMAN_EVAL, GSM8K = (
    SAMPLES / "question.jsonl", SAMPLES / "HumanEval.jsonl.gz", SAMPLES / "test.jsonl",
)  # fmt: skip


@pytest.fixture(scope="module")
def recipe():
    path = ROOT / "recipes" / "benchmark_prompts.py"
    spec = importlib.util.spec_from_file_location("_benchmark_prompts", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def made(recipe, tmp_path):
    """The prompts of these files, as eagle3-validate reads them."""
    app = Typer()
    app.command()(recipe.convert)

    def make(*words):
        out = tmp_path / "prompts.jsonl"
        done = CliRunner().invoke(app, [*map(str, words), "--out", str(out)])
        assert done.exit_code == 0, done.output
        return read_prompts(out)

    return make


def test_of_mt_bench_the_first_turn_is_a_message_with_its_category(made):
    found = made(MT_BENCH)
    assert [one.category for one in found] == ["writing", "writing", "math", "math"]
    said = {"role": "user", "content": "Describe a lighthouse in two sentences."}
    assert found[0].messages == (said,)


def test_of_human_eval_the_prompt_is_unchanged(made):
    with gzip.open(HUMAN_EVAL, "rt") as file:
        tasks = [json.loads(line) for line in file]
    found = made(HUMAN_EVAL)
    assert [one.messages[0]["content"] for one in found] == [task["prompt"] for task in tasks]
    assert {one.category for one in found} == {"humaneval"}


def test_it_need_not_be_compressed(made, tmp_path):
    plain = tmp_path / "HumanEval.jsonl"
    plain.write_bytes(gzip.decompress(HUMAN_EVAL.read_bytes()))
    assert [one.messages for one in made(plain)] == [one.messages for one in made(HUMAN_EVAL)]


def test_of_gsm8k_the_question_is_asked_and_the_answer_kept_back(made):
    found = made(GSM8K)
    assert found[0].messages[0]["content"].startswith("Tom has 3 boxes")
    assert "\u2019" in found[1].messages[0]["content"]
    assert not any("####" in one.messages[0]["content"] for one in found)


def test_all_three_in_one_file(made):
    found = made(MT_BENCH, HUMAN_EVAL, GSM8K)
    assert list(dict.fromkeys(one.category for one in found)) == [
        "writing", "math", "humaneval", "gsm8k",
    ]  # fmt: skip


def test_a_limit_takes_from_all_over_each_file(made):
    found = made(MT_BENCH, GSM8K, "--limit", 2)
    assert [one.category for one in found] == ["writing", "math", "gsm8k", "gsm8k"]


def test_plain_text_for_a_target_without_a_chat_template(made):
    assert made(GSM8K, "--text")[0].text.startswith("Tom has")


@pytest.mark.parametrize(
    "line",
    ['{"question": "a"}', "[1]", "{", '{"question_id": 1, "category": "a", "turns": []}', ""],
)
def test_what_is_none_of_them_is_refused_by_its_line(recipe, tmp_path, line):
    app = Typer()
    app.command()(recipe.convert)
    wrong = tmp_path / "wrong.jsonl"
    wrong.write_text(line and '{"question": "a", "answer": "b"}\n' + line)
    done = CliRunner().invoke(app, [str(wrong), "--out", str(tmp_path / "o.jsonl")])
    assert done.exit_code == 2
    assert ("wrong.jsonl:2" if line else "nothing in it") in done.output
    assert not (tmp_path / "o.jsonl").exists()
