#!/usr/bin/env python3
"""Ask the engines' own parsers what they take, and keep the answers where ``serve --check`` reads them.

    python tests/engines/record_flags.py

Writes ``schemas/engines/data/ENGINE-RELEASE.json``; `schemas/engines/flags.py` names the releases.
"""

import json
from pathlib import Path
from typing import Any

import run_engine

DATA = Path(__file__).resolve().parents[2] / "schemas" / "engines" / "data"


def ask(engine: str) -> dict[str, Any]:
    """What an engine's parser takes."""
    return run_engine.run_engine(f"{engine}-flags", {})


def main() -> None:
    """Ask both, and write."""
    for engine in ("vllm", "sglang"):
        found = ask(engine)
        text = json.dumps(found, indent=1, sort_keys=True) + "\n"
        (DATA / f"{engine}-{found['release']}.json").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
