#!/usr/bin/env python3
"""Ask the engines which of their registered classes can feed an EAGLE-3 draft, and keep the answers.

    python tests/engines/record_targets.py

Writes ``schemas/engines/data/ENGINE-RELEASE-targets.json``; `schemas/engines/capturing.py` names the releases.
"""

import json
from pathlib import Path
from typing import Any

import run_engine

DATA = Path(__file__).resolve().parents[2] / "schemas" / "engines" / "data"


def ask(engine: str) -> dict[str, Any]:
    """What an engine's registry says."""
    return run_engine.run_engine(f"{engine}-targets", {}, timeout_s=900)


def main() -> None:
    """Ask both, and write."""
    for engine in ("vllm", "sglang"):
        found = ask(engine)
        text = json.dumps(found, indent=1, sort_keys=True) + "\n"
        name = f"{engine}-{found['release']}-targets.json"
        (DATA / name).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
