"""What a diagnosis takes, as whole processes: imports, loading, the target's texts, the search, the answer.

    python benchmarks/bench_diagnose.py [build/smollm2]

The tiny pair of the repository, and the real chat model that `make smollm` makes, on the package's own prompts. Wall
and CPU seconds and the peak of the memory, one process after the other; quote them of an idle machine only.
"""

import argparse
import os
import sys
import sysconfig
import time
from pathlib import Path

DATA = Path(__file__).resolve().parents[1] / "tests" / "data"


def measured(draft: Path, target: Path) -> tuple[float, float, float, int]:
    """Wall seconds, CPU seconds, the peak in MB, and the exit code."""
    command = Path(sysconfig.get_path("scripts")) / "eagle3-diagnose"
    words = [str(command), str(draft), "--target", str(target), "--quiet"]
    began = time.monotonic()
    process = os.posix_spawn(words[0], words, os.environ)
    _, status, used = os.wait4(process, 0)
    wall = time.monotonic() - began
    code = os.waitstatus_to_exitcode(status)
    return wall, used.ru_utime + used.ru_stime, used.ru_maxrss / 1000, code


def main() -> None:
    """Run them, and print a line for each."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("smollm2", type=Path, nargs="?", help="folder of `make smollm`")
    folder = parser.parse_args().smollm2
    pairs = {"tiny pair": (DATA / "drafts" / "plain", DATA / "target")}
    if folder is not None:
        pairs["SmolLM2-135M"] = (folder / "drafts" / "plain", folder / "target")
    print(f"{os.environ.get('OMP_NUM_THREADS', 'all')} threads", file=sys.stderr)
    for name, pair in pairs.items():
        wall, cpu, peak, code = measured(*pair)
        print(f"{name:14} {wall:6.1f} s  {cpu:6.1f} s of CPU  {peak:6.0f} MB  exit code {code}")


if __name__ == "__main__":
    main()
