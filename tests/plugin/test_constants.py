"""What the plugin repeats, because it imports nothing of ours, is what we mean."""

import ast
from pathlib import Path

from eagle3_interop.schemas.dialects.hf import UNBOUNDED

DRAFTS = Path(__file__).resolve().parents[2] / "convert" / "sglang_plugin" / "drafts.py"


def test_a_window_that_no_context_reaches_is_the_same_number():
    values = {
        node.targets[0].id: node.value
        for node in ast.parse(DRAFTS.read_text()).body
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name)
    }
    assert eval(ast.unparse(values["_UNBOUNDED"])) == UNBOUNDED  # noqa: S307
