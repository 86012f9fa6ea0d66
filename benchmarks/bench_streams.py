"""Validate on recordings at the real sizes of Kimi-K2's draft: peak memory, and seconds a thousand tokens.

    python benchmarks/bench_streams.py [--dtype bfloat16|float32] [--texts N] [--threads N] [--json FILE]

Hidden size 7168, a vocabulary of 163840 for target and draft, one layer, three taps; weights and hidden states are
random, bfloat16 on the disk. Of the target the folder holds its config, tables and final norm. A random draft is
hardly ever right; the teacher-forced accuracy runs every step at every position all the same, which is what a good
draft costs, too. About 10 GB are written into a temporary folder.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch
from safetensors.torch import save_file

from eagle3_interop.schemas.streams import RecordedBy
from eagle3_interop.validators.record.store import Plan, Store
from eagle3_interop.validators.target.tables import TargetTables

H, V, WIDTH, HEADS, KV, DIM, LAYERS = 7168, 163840, 18432, 64, 8, 128, 61
TAPS, PROMPT, NEW, AHEAD, K = (2, 30, 58), 48, 64, 16, 3

MEASURE = """
import json, resource, sys, time, torch
from eagle3_interop.validators.accept.shape import Shape
from eagle3_interop.validators.prove.request import Request
from eagle3_interop.validators.prove.validate import validate
draft, target, streams, dtype, threads, k = sys.argv[1:]
torch.set_num_threads(int(threads))
began = time.monotonic()
report, _ = validate(Request(draft, target, streams=streams, dtype=dtype, device="cpu", shape=Shape.chain(int(k))))
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
print(json.dumps({"seconds": time.monotonic() - began, "cpu": time.process_time(), "peak_kb": peak,
                  "positions": report.streams.starts}))
"""


def drawn(*shape: int, scale: float = 0.02) -> torch.Tensor:
    """Random values in bfloat16."""
    return (torch.randn(*shape, dtype=torch.bfloat16)) * scale


def target_folder(folder: Path) -> Path:
    """Config, tables and final norm."""
    folder.mkdir()
    config = {
        "architectures": ["DeepseekV3ForCausalLM"], "model_type": "deepseek_v3", "hidden_size": H,
        "vocab_size": V, "num_hidden_layers": LAYERS, "rms_norm_eps": 1e-5, "tie_word_embeddings": False,
        "max_position_embeddings": 131072, "num_attention_heads": HEADS, "torch_dtype": "bfloat16",
    }  # fmt: skip
    (folder / "config.json").write_text(json.dumps(config))
    tensors = {
        "model.embed_tokens.weight": drawn(V, H),
        "lm_head.weight": drawn(V, H),
        "model.norm.weight": torch.ones(H, dtype=torch.bfloat16),
    }
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def draft_folder(folder: Path) -> Path:
    """A draft of one layer, as vLLM and SGLang have it."""
    folder.mkdir()
    config = {
        "architectures": ["LlamaForCausalLMEagle3"], "model_type": "llama", "hidden_size": H,
        "intermediate_size": WIDTH, "num_attention_heads": HEADS, "num_key_value_heads": KV, "head_dim": DIM,
        "num_hidden_layers": 1, "vocab_size": V, "draft_vocab_size": V, "rms_norm_eps": 1e-5,
        "max_position_embeddings": 131072, "rope_theta": 50000.0, "tie_word_embeddings": False,
        "hidden_act": "silu", "torch_dtype": "bfloat16",
        "eagle_config": {"eagle_aux_hidden_state_layer_ids": [t - 1 for t in TAPS]},
        "eagle_aux_hidden_state_layer_ids": list(TAPS),
    }  # fmt: skip
    (folder / "config.json").write_text(json.dumps(config))
    layer = "midlayer."
    shapes = {
        "fc.weight": (H, 3 * H),
        f"{layer}self_attn.q_proj.weight": (HEADS * DIM, 2 * H),
        f"{layer}self_attn.k_proj.weight": (KV * DIM, 2 * H),
        f"{layer}self_attn.v_proj.weight": (KV * DIM, 2 * H),
        f"{layer}self_attn.o_proj.weight": (H, HEADS * DIM),
        f"{layer}mlp.gate_proj.weight": (WIDTH, H),
        f"{layer}mlp.up_proj.weight": (WIDTH, H),
        f"{layer}mlp.down_proj.weight": (H, WIDTH),
        "lm_head.weight": (V, H),
    }
    tensors = {name: drawn(*shape) for name, shape in shapes.items()}
    norms = ("input_layernorm", "hidden_norm", "post_attention_layernorm")
    tensors |= {f"{layer}{name}.weight": torch.ones(H, dtype=torch.bfloat16) for name in norms}
    tensors["norm.weight"] = torch.ones(H, dtype=torch.bfloat16)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def recording(folder: Path, target: Path, texts: int) -> Path:
    """Random hidden states, in the form that is recorded."""
    prompts = tuple(tuple(torch.randint(V, (PROMPT,)).tolist()) for _ in range(texts))
    plan = Plan(
        target=TargetTables.open(str(target)).described(),
        by=RecordedBy(engine="sglang", version="0", how="library"),
        dtype="bfloat16",
        taps=TAPS,
        last="post-norm",
        basis="last-state",
        new_tokens=NEW,
        lookahead=AHEAD,
        prompts=prompts,
        source="random",
    )
    store = Store(folder, plan)
    for prompt in prompts:
        tokens = [*prompt, *torch.randint(V, (NEW + AHEAD,)).tolist()]
        states = drawn(len(tokens), len(TAPS) + 1, H, scale=1.0)
        store.add(tokens, {"hidden_states": states})
    store.finish()
    return folder


def main() -> None:
    """Print one line, or write it as JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--dtype", choices=("bfloat16", "float32"), action="append")
    parser.add_argument("--texts", type=int, default=8)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    torch.manual_seed(0)
    results = []
    with tempfile.TemporaryDirectory(prefix="eagle3-bench-") as scratch:
        place = Path(scratch)
        target, draft = target_folder(place / "target"), draft_folder(place / "draft")
        streams = recording(place / "streams", target, options.texts)
        held = sum(x.stat().st_size for x in streams.iterdir())
        tokens = options.texts * (PROMPT + NEW + AHEAD)
        for dtype in options.dtype or ["bfloat16", "float32"]:
            words = [str(draft), str(target), str(streams), dtype, str(options.threads), str(K)]
            began = time.monotonic()
            done = subprocess.run(
                [sys.executable, "-c", MEASURE, *words],
                capture_output=True,
                text=True,
                check=False,
                env={**os.environ, "OMP_NUM_THREADS": str(options.threads)},
            )
            if done.returncode:
                sys.exit(done.stderr)
            found = json.loads(done.stdout.splitlines()[-1])
            found |= {
                "dtype": dtype,
                "tokens": tokens,
                "streams_mb": held / 1e6,
                "whole_s": time.monotonic() - began,
                "s_per_1000_tokens": 1000 * found["seconds"] / tokens,
                "peak_gb": found["peak_kb"] * 1024 / 1e9,
            }
            results.append(found)
            print(
                f"{dtype}: {tokens} tokens, {found['positions']} start positions x {K} steps, "
                f"{held / 1e6:.0f} MB of hidden states: {found['seconds']:.0f} s "
                f"({found['s_per_1000_tokens']:.0f} s a thousand tokens, {found['cpu']:.0f} s of CPU), peak "
                f"{found['peak_gb']:.1f} GB, mapped files included"
            )
    if options.json:
        options.json.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
