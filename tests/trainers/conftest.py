"""Let the tests here import what builds environments (``import build_env``): a script, no package."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "engines"))
