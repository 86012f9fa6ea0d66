"""Let the tests here import the rigs (``import run_engine``): they are scripts, no package."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
