"""Time the acceptance measurement, texts given, and what it keeps in memory.

    python benchmarks/bench_acceptance.py [--vllm] [--json FILE] [--threads N]

Two pairs: the trained tiny one that the repository carries, and a random one of middle size (8 layers, hidden
512, 32000 tokens). 24 prompts, 96 new tokens, chains of 4 draft tokens; then four times as many texts, which
must not need more memory. ``cpu_s`` is what a machine without other work would take on one thread. ``--vllm`` has
the real engine generate the same texts with the draft, loading excluded, on as many threads.
"""

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch
from safetensors.torch import save_file
from transformers import LlamaConfig, LlamaForCausalLM

from eagle3_interop.convert.read.checkpoint import open_checkpoint
from eagle3_interop.schemas.dialects.base import Wishes
from eagle3_interop.schemas.draft import Draft, Fc, Gqa, Layers, Mlp, Vocabulary
from eagle3_interop.schemas.draft import Target as TargetPart
from eagle3_interop.schemas.engines.releases import newest
from eagle3_interop.schemas.registry import DESTINATIONS
from eagle3_interop.validators.accept.acceptance import measure
from eagle3_interop.validators.accept.shape import Shape
from eagle3_interop.validators.network.reference import Network
from eagle3_interop.validators.network.weights import Weights
from eagle3_interop.validators.target.prompts import read_prompts
from eagle3_interop.validators.target.running import Target
from eagle3_interop.validators.target.texts import Text, encode
from eagle3_interop.validators.target.writing import write_texts

DATA = Path(__file__).parents[1] / "tests" / "data"
RIG = Path(__file__).parents[1] / "tests" / "engines" / "run_engine.py"
PROMPTS, NEW_TOKENS, DEPTH = 24, 96, 4
REPEAT = 4
MIDDLE = LlamaConfig(
    hidden_size=512, intermediate_size=1376, num_hidden_layers=8, num_attention_heads=8,
    num_key_value_heads=4, vocab_size=32000,
)  # fmt: skip


def tiny_pair() -> tuple[Target, Network, list[list[int]]]:
    """The trained pair and its prompts."""
    target = Target.load(DATA / "target")
    source = open_checkpoint(str(DATA / "drafts" / "plain"))
    reading = newest("speculators").read(source, None)
    prompts = encode(read_prompts(DATA / "prompts.jsonl"), None, target.vocabulary_size)
    return target, Network(reading.draft, Weights.read(reading, source)), list(map(list, prompts))


def middle_parts() -> tuple[LlamaForCausalLM, Draft, dict[str, torch.Tensor], list[list[int]]]:
    """A random pair: its drafts are hardly ever right, which costs an engine most."""
    torch.manual_seed(0)
    target = LlamaForCausalLM(MIDDLE)
    width, size = MIDDLE.hidden_size, MIDDLE.vocab_size
    draft = Draft(
        hidden_size=width,
        target=TargetPart(hidden_size=width, layers=8),
        taps=(2, 4, 5),
        fc=Fc(blocks=3),
        layers=Layers(
            count=1,
            attention=Gqa(heads=8, kv_heads=4, head_dim=64),
            mlp=Mlp(width=1376),
            norm_eps=1e-5,
            windows=(None,),
        ),
        vocabulary=Vocabulary(
            target_size=size, draft_size=size, mapped=False, head="target", embeddings="target"
        ),
    )
    shapes = {
        "fc.weight": (width, 3 * width),
        **{
            f"layers.0.self_attn.{p}_proj.weight": (n * 64, 2 * width)
            for p, n in zip("qkv", (8, 4, 4), strict=True)
        },
        "layers.0.self_attn.o_proj.weight": (width, 512),
        "layers.0.mlp.gate_proj.weight": (1376, width),
        "layers.0.mlp.up_proj.weight": (1376, width),
        "layers.0.mlp.down_proj.weight": (width, 1376),
    }
    tensors = {name: torch.randn(shape) * shape[-1] ** -0.5 for name, shape in shapes.items()}
    norms = (
        "layers.0.hidden_norm",
        "layers.0.input_layernorm",
        "layers.0.post_attention_layernorm",
    )
    tensors |= {f"{name}.weight": torch.ones(width) for name in (*norms, "norm")}
    return target, draft, tensors, torch.randint(size, (PROMPTS, 48)).tolist()


def middle_pair() -> tuple[Target, Network, list[list[int]]]:
    """The random pair, ready to be measured."""
    model, draft, tensors, prompts = middle_parts()
    target = Target(model)
    return target, Network(draft, Weights.of(draft, tensors, tables=target.tables)), prompts


def engine_folders(pair: str, folder: Path) -> tuple[Path, Path]:
    """Target and draft as an engine reads them."""
    if pair == "tiny":
        return DATA / "target", DATA / "drafts" / "plain"
    model, draft, tensors, _ = middle_parts()
    model.save_pretrained(folder / "target")
    (folder / "draft").mkdir()
    written = DESTINATIONS["vllm"].write(draft, Wishes()).config
    (folder / "draft" / "config.json").write_text(json.dumps(written))
    save_file(tensors, folder / "draft" / "model.safetensors", metadata={"format": "pt"})
    return folder / "target", folder / "draft"


def vllm_seconds(pair: str, texts: Path, folder: Path, threads: int) -> float:
    """What the real vLLM takes to generate the same texts with the draft, loading excluded."""
    target, draft = engine_folders(pair, folder)
    request = {
        "target": str(target),
        "draft": str(draft),
        "prompts": [prompt for prompt, _ in json.loads(texts.read_text())],
        "max_new_tokens": NEW_TOKENS,
        "num_draft_tokens": DEPTH,
    }
    output = folder / "vllm.json"
    command = [sys.executable, str(RIG), "vllm", "--output", str(output)]
    environment = os.environ | {"OMP_NUM_THREADS": str(threads)}
    subprocess.run(
        command,
        input=json.dumps(request),
        text=True,
        check=True,
        env=environment,
        stdout=sys.stderr,
    )
    return float(json.loads(output.read_text())["wall_s"])


PAIRS = {"tiny": tiny_pair, "middle": middle_pair}


def peak_bytes() -> int:
    """The most memory that this process has held."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def run(pair: str, repeat: int, texts_file: Path) -> dict[str, float]:
    """Measure once on the texts `repeat` times over; the texts are written first if they are not there."""
    target, network, prompts = PAIRS[pair]()
    found: dict[str, float] = {}
    if not texts_file.exists():
        started = time.perf_counter()
        made = write_texts(target, prompts, NEW_TOKENS, DEPTH).texts
        found["generate_s"] = time.perf_counter() - started
        rows = [[list(text.prompt), list(text.completion)] for text in made]
        texts_file.write_text(json.dumps(rows))
    rows = json.loads(texts_file.read_text()) * repeat
    texts = [Text(tuple(prompt), tuple(completion), NEW_TOKENS) for prompt, completion in rows]
    for _ in range(1 if repeat > 1 else 2):
        started, spent = time.perf_counter(), time.process_time()
        result = measure(network, target, texts, [Shape.chain(DEPTH)])[Shape.chain(DEPTH)]
        found["measure_s"] = time.perf_counter() - started
        found["cpu_s"] = time.process_time() - spent
    return found | {
        "drafts": result.drafts, "accept_length": result.accept_length, "peak_mb": peak_bytes() / 1e6,
    }  # fmt: skip


def main() -> None:
    """Run each measurement in a process of its own, so that peaks do not mix."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", type=Path)
    parser.add_argument("--vllm", action="store_true", help="have vLLM generate the texts, too")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument(
        "--one", nargs=3, metavar=("PAIR", "REPEAT", "TEXTS"), help=argparse.SUPPRESS
    )
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    if options.one:
        pair, repeat, texts = options.one
        print(json.dumps(run(pair, int(repeat), Path(texts))))
        return
    results = {}
    with tempfile.TemporaryDirectory() as folder:
        for pair in PAIRS:
            for repeat in (1, 1, REPEAT):
                one = ["--one", pair, str(repeat), str(Path(folder) / f"{pair}.json")]
                command = [sys.executable, __file__, "--threads", str(options.threads), *one]
                done = subprocess.run(command, check=True, capture_output=True, text=True)
                results[f"{pair} x{repeat}"] = results.get(f"{pair} x{repeat}", {}) | json.loads(
                    done.stdout
                )
            if options.vllm:
                texts, room = Path(folder) / f"{pair}.json", Path(folder) / pair
                room.mkdir()
                found = results[f"{pair} x1"]
                found["vllm_s"] = vllm_seconds(pair, texts, room, options.threads)
                found["ours_to_vllm"] = found["measure_s"] / found["vllm_s"]
    for name, found in results.items():
        print(f"{name:12}", "  ".join(f"{key} {value:.2f}" for key, value in found.items()))
    if options.json:
        options.json.write_text(json.dumps(results, indent=2) + "\n")


if __name__ == "__main__":
    main()
