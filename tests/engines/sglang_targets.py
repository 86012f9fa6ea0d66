"""Which of SGLang's registered classes can hand over hidden states to an EAGLE-3 draft (run by SGLang's Python).

No model is built: SGLang asks the class for a method, and does not start without one
(``model_runner_components/attention_backend_setup.py``). A module that does not load here is listed apart.
"""

import importlib
import pkgutil

import rig
import sglang
import sglang.srt.models
from sglang_capture_rules import DRAFTS, METHOD


def main() -> None:
    """Answer with all of them."""
    _, output = rig.read_arguments()
    captures, lacks, unread = set(), set(), set()
    for module in pkgutil.iter_modules(sglang.srt.models.__path__, "sglang.srt.models."):
        try:
            entry = getattr(importlib.import_module(module.name), "EntryClass", [])
        except Exception:
            unread.add(module.name.rpartition(".")[2])
            continue
        for kind in entry if isinstance(entry, list | tuple) else [entry]:
            if not kind.__name__.endswith(DRAFTS):
                (captures if hasattr(kind, METHOD) else lacks).add(kind.__name__)
    found = {"captures": sorted(captures), "lacks": sorted(lacks), "unread": sorted(unread)}
    rig.write_result(output, {"engine": "sglang", "release": sglang.__version__, **found})


if __name__ == "__main__":
    main()
