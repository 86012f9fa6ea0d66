"""Conversion against ``cp`` plus ``sync`` of the same files: time and peak memory, in paired runs.

    python benchmarks/bench_convert.py [--pairs N] [--folder DIR] [--modes ..] [--command ..]

The third column is the speculators library's own converter on the same draft, where
EAGLE3_SPECULATORS_PYTHON names its interpreter (``make bench`` does) and where it reads the draft at all.

Each pair times ``cp`` and a conversion of the same draft, in turns, process start and flush
included; the ratio of a mode is the median over its pairs, so that what else the disk does weighs
little. The drafts are synthetic: true sizes, names, configs and vocabulary maps, random weights.
"""

import argparse
import json
import os
import shlex
import shutil
import statistics
import struct
import subprocess
import sys
import time
from array import array
from dataclasses import dataclass
from math import prod
from pathlib import Path

# Beside this interpreter, so that the project's own environment is measured.
CONVERT = shlex.quote(str(Path(sys.executable).with_name("eagle3-convert")))

PEER = """
import sys
from speculators.convert.entrypoints import convert_model
convert_model(model=sys.argv[1], verifier=sys.argv[2], algorithm="eagle3", output_path=sys.argv[3])
"""


@dataclass(frozen=True)
class Mode:
    """What is asked of the converter, and what it may cost.

    Attributes:
        conversion: the subcommand.
        options: what it is given after SOURCE and OUTPUT.
        ratio: most times the duration of cp + sync.
        seconds: most seconds.
        megabytes: most resident memory at any time.
    """

    conversion: str = "sglang-to-vllm"
    options: tuple[str, ...] = ()
    ratio: float = float("inf")
    seconds: float = float("inf")
    megabytes: float = 100


MODES = {
    "copy": Mode(ratio=1.25),
    "rename": Mode("sglang-to-speculators", ("--target-name", "org/target"), ratio=1.25),
    "permute": Mode(options=("--taps", "30,2,16"), ratio=1.6),
    "link": Mode(options=("--link",), seconds=0.5),
}


@dataclass(frozen=True)
class Size:
    """A synthetic bfloat16 draft: widths, vocabularies, number of weight files."""

    name: str
    hidden: int
    width: int
    kv_width: int
    shards: int
    vocabulary: int = 128256
    draft_vocabulary: int = 32000


SIZES = (Size("8B-class", 4096, 14336, 1024, 1), Size("70B-class", 8192, 28672, 1024, 2))


@dataclass(frozen=True)
class Run:
    """One process: wall time in seconds, peak resident memory in MB."""

    seconds: float
    megabytes: float


def shapes(size: Size) -> dict[str, tuple[str, tuple[int, ...]]]:
    """Dtype and shape of every tensor, as SGLang names them."""
    h, i, kv = size.hidden, size.width, size.kv_width
    layer = {
        "hidden_norm.weight": (h,),
        "input_layernorm.weight": (h,),
        "mlp.down_proj.weight": (h, i),
        "mlp.gate_proj.weight": (i, h),
        "mlp.up_proj.weight": (i, h),
        "post_attention_layernorm.weight": (h,),
        "self_attn.k_proj.weight": (kv, 2 * h),
        "self_attn.o_proj.weight": (h, h),
        "self_attn.q_proj.weight": (h, 2 * h),
        "self_attn.v_proj.weight": (kv, 2 * h),
    }
    weights = {
        "embed_tokens.weight": (size.vocabulary, h),
        "fc.weight": (h, 3 * h),
        **{f"midlayer.{name}": shape for name, shape in layer.items()},
        "lm_head.weight": (size.draft_vocabulary, h),
        "norm.weight": (h,),
    }
    return {
        "d2t": ("I64", (size.draft_vocabulary,)),
        **{name: ("BF16", shape) for name, shape in weights.items()},
        "t2d": ("BOOL", (size.vocabulary,)),
    }


def make_draft(size: Size, folder: Path) -> None:
    """Write the draft, unless it is there; its values are one random block over and over."""
    if (folder / "config.json").exists():
        return
    folder.mkdir(parents=True, exist_ok=True)
    names = list(shapes(size))
    share = -(-len(names) // size.shards)
    weight_map: dict[str, str] = {}
    for number in range(size.shards):
        of = f"-{number + 1:05}-of-{size.shards:05}" if size.shards > 1 else ""
        part = names[number * share : (number + 1) * share]
        write_shard(size, part, folder / f"model{of}.safetensors")
        weight_map |= dict.fromkeys(part, f"model{of}.safetensors")
    if size.shards > 1:
        index = json.dumps({"metadata": {}, "weight_map": weight_map})
        (folder / "model.safetensors.index.json").write_text(index)
    (folder / "config.json").write_text(json.dumps(config(size)))


def config(size: Size) -> dict[str, object]:
    """config.json as SGLang reads it."""
    return {
        "architectures": ["LlamaForCausalLMEagle3"],
        "model_type": "llama",
        "hidden_size": size.hidden,
        "intermediate_size": size.width,
        "num_hidden_layers": 1,
        "num_attention_heads": size.hidden // 128,
        "num_key_value_heads": size.kv_width // 128,
        "head_dim": 128,
        "hidden_act": "silu",
        "rms_norm_eps": 1e-5,
        "rope_theta": 500000.0,
        "max_position_embeddings": 2048,
        "vocab_size": size.vocabulary,
        "draft_vocab_size": size.draft_vocabulary,
        "tie_word_embeddings": False,
        "torch_dtype": "bfloat16",
        "eagle_config": {
            "eagle_aux_hidden_state_layer_ids": [1, 15, 29],
            "use_aux_hidden_state": True,
        },
    }


def maps(size: Size) -> dict[str, bytes]:
    """A draft vocabulary of every fourth token."""
    seen = bytearray(size.vocabulary)
    seen[: 4 * size.draft_vocabulary : 4] = bytes([1]) * size.draft_vocabulary
    offsets = array("q", (3 * token for token in range(size.draft_vocabulary)))
    return {"d2t": offsets.tobytes(), "t2d": bytes(seen)}


def write_shard(size: Size, names: list[str], path: Path) -> None:
    """One safetensors file."""
    bytes_of = {"BF16": 2, "I64": 8, "BOOL": 1}
    header, position = {}, 0
    for name in names:
        dtype, shape = shapes(size)[name]
        stop = position + bytes_of[dtype] * prod(shape)
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [position, stop]}
        position = stop
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    block = os.urandom(1 << 24)
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for name in names:
            dtype, shape = shapes(size)[name]
            rest = bytes_of[dtype] * prod(shape)
            while rest:
                rest -= file.write(maps(size).get(name, block)[:rest])


def measure(command: list[str], *, quiet: bool = False) -> Run:
    """Run a command that must succeed."""
    start = time.perf_counter()
    process = subprocess.Popen(command, stderr=subprocess.DEVNULL if quiet else None)
    _, status, usage = os.wait4(process.pid, 0)
    seconds = time.perf_counter() - start
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise SystemExit(f"{shlex.join(command)} failed with {process.returncode}")
    return Run(seconds, usage.ru_maxrss / 1024)


def pair(command: str, mode: Mode, source: Path, output: Path, turn: int) -> tuple[Run, Run]:
    """``cp`` plus ``sync`` and the conversion, each on a flushed disk; every other turn reversed."""
    copy = f"cp -r {shlex.quote(str(source))} {shlex.quote(str(output))} && sync"
    words = [mode.conversion, str(source), str(output), *mode.options, "--quiet"]
    convert = [*shlex.split(command), *words]
    lines = [["sh", "-c", copy], convert]
    runs = {}
    for index in (0, 1) if turn % 2 == 0 else (1, 0):
        shutil.rmtree(output, ignore_errors=True)
        os.sync()
        runs[index] = measure(lines[index])
    shutil.rmtree(output)
    return runs[0], runs[1]


def peer(source: Path, output: Path, folder: Path) -> Run | None:
    """The library's own converter, once; None where it is not at hand or does not read the draft."""
    python = os.environ.get("EAGLE3_SPECULATORS_PYTHON")
    if not python or (source / "model.safetensors.index.json").exists():
        return None
    verifier = folder / "verifier"
    verifier.mkdir(exist_ok=True)
    (verifier / "config.json").write_text(json.dumps({"model_type": "llama"}))
    os.sync()
    script = f"{PEER}\nimport os; os.sync()"
    run = measure([python, "-c", script, str(source), str(verifier), str(output)], quiet=True)
    shutil.rmtree(output)
    return run


def report(size: Size, name: str, pairs: list[tuple[Run, Run]]) -> bool:
    """Print one row; say whether the mode's targets hold."""
    ratio = statistics.median(ours.seconds / cp.seconds for cp, ours in pairs)
    cp = statistics.median(cp.seconds for cp, _ in pairs)
    seconds = statistics.median(ours.seconds for _, ours in pairs)
    megabytes = max(ours.megabytes for _, ours in pairs)
    mode = MODES[name]
    held = ratio <= mode.ratio and seconds <= mode.seconds and megabytes <= mode.megabytes
    verdict = "ok" if held else "MISSED"
    print(f"{size.name:10} {name:8} {cp:7.2f} s {seconds:8.2f} s {ratio:6.2f} x", end="")
    print(f" {megabytes:6.0f} MB  {verdict}", flush=True)
    return held


def main() -> int:
    """Measure every mode on every size."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--pairs", type=int, default=5, help="paired runs of each mode")
    parser.add_argument("--folder", type=Path, default=Path("build/bench"), help="scratch, 10 GB")
    parser.add_argument("--modes", nargs="+", choices=MODES, default=list(MODES))
    parser.add_argument("--sizes", nargs="+", choices=[size.name for size in SIZES])
    parser.add_argument("--command", default=CONVERT, help="given A-to-B SOURCE OUTPUT ...")
    options = parser.parse_args()
    print(f"{'draft':10} {'mode':8} {'cp + sync':>9} {'convert':>10} {'ratio':>8} {'memory':>9}")
    held = True
    for size in SIZES:
        if options.sizes and size.name not in options.sizes:
            continue
        source, output = options.folder / size.name, options.folder / "output"
        make_draft(size, source)
        for name in options.modes:
            pairs = [
                pair(options.command, MODES[name], source, output, turn)
                for turn in range(options.pairs)
            ]
            held &= report(size, name, pairs)
        if (run := peer(source, output, options.folder)) is not None:
            print(f"{size.name:10} {'speculators, its own converter':30}", end="")
            print(f" {run.seconds:6.2f} s {run.megabytes:6.0f} MB", flush=True)
    return 0 if held else 1


if __name__ == "__main__":
    sys.exit(main())
