"""Time `eagle3-validate` on a real chat model, beside the vLLM that generates the same texts with the draft.

    python benchmarks/bench_validate.py FOLDER [--prompts N] [--json FILE]

FOLDER is what ``make smollm`` makes: ``target`` and ``drafts/plain``. The package's 40 prompts, 128 new tokens,
three draft tokens a step, float32. Whole processes, imports and loading included: first with nothing given, then
with the texts given, which are only checked and continued. vLLM is told apart into its generation and its start.
The counters of all three have to be equal.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch

from eagle3_interop.validators.target.prompts import bundled_prompts
from eagle3_interop.validators.target.running import Target
from eagle3_interop.validators.target.texts import encode, load_tokenizer
from eagle3_interop.validators.target.writing import write_texts

RIG = Path(__file__).parents[1] / "tests" / "engines" / "run_engine.py"
COMMAND = "import sys; from eagle3_interop.validators.validate_cli import main; main()"
NEW_TOKENS, DEPTH = 128, 3
COUNTERS = ("drafts", "accepted", "per_position")


def timed(command: list[str], threads: int, given: Path | None = None) -> tuple[float, float]:
    """Wall seconds and peak bytes of a process, which reads this file."""
    environment = os.environ | {"OMP_NUM_THREADS": str(threads)}
    started = time.perf_counter()
    stdin = subprocess.DEVNULL if given is None else given.open()
    process = subprocess.Popen(command, env=environment, stdin=stdin, stdout=sys.stderr)
    _, status, usage = os.wait4(process.pid, 0)
    if status:
        raise SystemExit(f"{command[0]} ended with status {status}")
    return time.perf_counter() - started, usage.ru_maxrss * 1024


def validate(folder: Path, prompts: Path, place: Path, threads: int) -> dict[str, Any]:
    """One validation, as a user runs it."""
    report = place / "report.json"
    command = [
        sys.executable, "-c", COMMAND, str(folder / "drafts" / "plain"), "--target", str(folder / "target"),
        "--prompts", str(prompts), "--max-new-tokens", str(NEW_TOKENS), "--num-draft-tokens", str(DEPTH),
        "--device", "cpu", "--json", str(report), "--quiet",
    ]  # fmt: skip
    seconds, peak = timed(command, threads)
    acceptance = json.loads(report.read_text())["acceptance"]
    counted = {key: acceptance[key] for key in COUNTERS}
    return {"wall_s": seconds, "peak_mb": peak / 1e6, **counted}


def vllm(folder: Path, prompts: list[list[int]], place: Path, threads: int) -> dict[str, Any]:
    """What the real vLLM takes for the same texts."""
    request, answer = place / "request.json", place / "vllm.json"
    asked = {
        "target": str(folder / "target"),
        "draft": str(folder / "drafts" / "plain"),
        "prompts": prompts,
        "max_new_tokens": NEW_TOKENS,
        "num_draft_tokens": DEPTH,
    }
    request.write_text(json.dumps(asked))
    command = [sys.executable, str(RIG), "vllm", "--output", str(answer)]
    seconds, _ = timed(command, threads, request)
    found = json.loads(answer.read_text())
    counted = {key: found[key] for key in COUNTERS}
    return {"wall_s": seconds, "generation_s": found["wall_s"], **counted}


def texts_of(folder: Path, count: int, place: Path) -> tuple[Path, Path, list[list[int]]]:
    """The prompts as a file, the same with the target's texts beside, and the prompts' ids."""
    target = Target.load(folder / "target")
    encoded = encode(
        bundled_prompts()[:count], load_tokenizer(folder / "target"), target.vocabulary_size
    )
    made = write_texts(target, encoded, NEW_TOKENS, 0).texts
    bare, given = place / "prompts.jsonl", place / "given.jsonl"
    rows = [{"token_ids": list(text.prompt)} for text in made]
    bare.write_text("".join(json.dumps(row) + "\n" for row in rows))
    for row, text in zip(rows, made, strict=True):
        row["completion_token_ids"] = list(text.completion)
    given.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return bare, given, [list(text.prompt) for text in made]


def main() -> None:
    """Measure the three one after the other."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--prompts", type=int, default=40)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as room:
        place = Path(room)
        bare, given, prompts = texts_of(options.folder, options.prompts, place)
        rows = {
            "nothing given": validate(options.folder, bare, place, options.threads),
            "texts given": validate(options.folder, given, place, options.threads),
            "vLLM": vllm(options.folder, prompts, place, options.threads),
        }
    counted = {json.dumps([row[key] for key in COUNTERS]) for row in rows.values()}
    if len(counted) > 1:
        raise SystemExit(f"the counters differ: {sorted(counted)}")
    generation = rows["vLLM"]["generation_s"]
    for name, row in rows.items():
        ratio = (generation if name == "vLLM" else row["wall_s"]) / generation
        peak = f"  {row['peak_mb']:5.0f} MB" if "peak_mb" in row else ""
        print(f"{name:14} {row['wall_s']:6.1f} s  {ratio:5.2f} of vLLM's generation{peak}")
    print(f"{rows['vLLM']['drafts']} steps, {rows['vLLM']['accepted']} accepted, in all three")
    if options.json:
        options.json.write_text(json.dumps(rows, indent=2) + "\n")


if __name__ == "__main__":
    main()
