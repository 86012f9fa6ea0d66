"""Conversion against ``cp`` plus ``sync`` of the same files: time and peak memory, in paired runs.

    python benchmarks/bench_convert.py [--pairs N] [--folder DIR] [--modes ..] [--command ..]

Each pair times ``cp`` and then a conversion of the same draft, process start and flush included;
the ratio of a mode is the median over its pairs, so that what else the disk does weighs little.
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
from dataclasses import dataclass
from math import prod
from pathlib import Path

HERE = Path(__file__).parent
STREAM = f"{shlex.quote(sys.executable)} {shlex.quote(str(HERE / 'drive_stream.py'))}"

# Mode: largest ratio to cp + sync, largest time in seconds, largest peak memory in MB.
TARGETS = {
    "copy": (1.25, None, 100),
    "rename": (1.25, None, 100),
    "permute": (1.6, None, 300),
    "link": (None, 0.5, 100),
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
    """Dtype and shape of every tensor, as speculators names them."""
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
        **{f"layers.0.{name}": shape for name, shape in layer.items()},
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
    (folder / "config.json").write_text("{}")


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
        while position:
            position -= file.write(block[:position])


def measure(command: list[str]) -> Run:
    """Run a command that must succeed."""
    start = time.perf_counter()
    process = subprocess.Popen(command)
    _, status, usage = os.wait4(process.pid, 0)
    seconds = time.perf_counter() - start
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise SystemExit(f"{shlex.join(command)} failed with {process.returncode}")
    return Run(seconds, usage.ru_maxrss / 1024)


def pair(command: str, mode: str, source: Path, output: Path) -> tuple[Run, Run]:
    """``cp`` plus ``sync``, then the conversion, each on a flushed disk without its output."""
    copy = f"cp -r {shlex.quote(str(source))} {shlex.quote(str(output))} && sync"
    runs = []
    for line in (["sh", "-c", copy], [*shlex.split(command), mode, str(source), str(output)]):
        shutil.rmtree(output, ignore_errors=True)
        os.sync()
        runs.append(measure(line))
    shutil.rmtree(output)
    return runs[0], runs[1]


def report(size: Size, mode: str, pairs: list[tuple[Run, Run]]) -> bool:
    """Print one row; say whether the mode's targets hold."""
    ratio = statistics.median(ours.seconds / cp.seconds for cp, ours in pairs)
    cp = statistics.median(cp.seconds for cp, _ in pairs)
    seconds = statistics.median(ours.seconds for _, ours in pairs)
    megabytes = max(ours.megabytes for _, ours in pairs)
    most_ratio, most_seconds, most_megabytes = TARGETS[mode]
    held = (
        (most_ratio is None or ratio <= most_ratio)
        and (most_seconds is None or seconds <= most_seconds)
        and megabytes <= most_megabytes
    )
    verdict = "ok" if held else "MISSED"
    print(f"{size.name:10} {mode:8} {cp:7.2f} s {seconds:8.2f} s {ratio:6.2f} x", end="")
    print(f" {megabytes:6.0f} MB  {verdict}", flush=True)
    return held


def main() -> int:
    """Measure every mode on every size."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--pairs", type=int, default=5, help="paired runs of each mode")
    parser.add_argument("--folder", type=Path, default=Path("build/bench"), help="scratch, 10 GB")
    parser.add_argument("--modes", nargs="+", choices=TARGETS, default=list(TARGETS))
    parser.add_argument("--sizes", nargs="+", choices=[size.name for size in SIZES])
    parser.add_argument("--command", default=STREAM, help="is given MODE SOURCE OUTPUT")
    options = parser.parse_args()
    print(f"{'draft':10} {'mode':8} {'cp + sync':>9} {'convert':>10} {'ratio':>8} {'memory':>9}")
    held = True
    for size in SIZES:
        if options.sizes and size.name not in options.sizes:
            continue
        source, output = options.folder / size.name, options.folder / "output"
        make_draft(size, source)
        for mode in options.modes:
            pairs = [pair(options.command, mode, source, output) for _ in range(options.pairs)]
            held &= report(size, mode, pairs)
    return 0 if held else 1


if __name__ == "__main__":
    sys.exit(main())
