"""Recording from vLLM, which writes hidden states through a KV connector of its own.

Its layer ids are taps, and tap L is the last hidden state before the norm. The connector copies on CUDA streams,
so this needs a GPU. One text is under way at a time.
"""

import json
import shutil
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from typing import Any

from safetensors.torch import load_file

from eagle3_interop.schemas.engines.recording import VLLM_SINCE, vllm_settings
from eagle3_interop.schemas.findings import Usage
from eagle3_interop.schemas.streams import RecordedBy
from eagle3_interop.validators.engines.started import StartedEngine
from eagle3_interop.validators.record.answers import composed
from eagle3_interop.validators.record.record import Offer, Written
from eagle3_interop.validators.record.started import check_arguments, files_of, version_of
from eagle3_interop.validators.record.store import Plan
from eagle3_interop.validators.record.wish import Wish
from eagle3_interop.validators.report import provenance
from eagle3_interop.validators.target.running import Progress
from eagle3_interop.validators.target.tables import TargetTables

PARTS = ".parts"
"""Folder, inside the recording, in which vLLM's files appear."""


@dataclass
class VLLMStarted:
    """A vLLM that is started for recording.

    Attributes:
        wish: the user's.
        engine: its Python and flags.
    """

    wish: Wish
    engine: StartedEngine

    def offer(self, taps: tuple[int, ...], held: TargetTables) -> Offer:
        """The taps between the ends, and the end as the last hidden state."""
        check_arguments(self.engine.arguments)
        if getattr(held.config, "kv_lora_rank", None):
            raise Usage(
                "--engine vllm: vLLM does not hand out hidden states of a target with latent attention (MLA); "
                "record it with --engine sglang."
            )
        if self.wish.taps is not None and 0 in taps and held.scales_embeddings:
            raise Usage(
                "--taps 0: this target scales its embeddings, which vLLM does not hand out; record through "
                "transformers."
            )
        version = version_of(self.engine, "vllm", VLLM_SINCE)
        by = RecordedBy(engine="vllm", version=version, how="started")
        kept = tuple(tap for tap in sorted(taps) if 0 < tap < held.depth)
        return Offer(by, kept, "pre-norm", "last-state")

    def texts(
        self, plan: Plan, skip: int, held: TargetTables, progress: Progress | None
    ) -> Iterator[Written]:
        """The texts as vLLM writes them."""
        parts = self.wish.out / PARTS
        shutil.rmtree(parts, ignore_errors=True)
        (parts / "vllm").mkdir(parents=True)
        new = plan.new_tokens + plan.lookahead
        numbers = list(range(skip, len(plan.prompts)))
        request = {
            "argv": self._flags(plan, held, str((parts / "vllm").absolute())),
            "jobs": [
                {"number": n, "input_ids": plan.prompts[n], "max_new_tokens": new + 1}
                for n in numbers
            ],
        }
        with closing(files_of(self.engine, "record_vllm.py", request, parts, numbers)) as coming:
            for number, path in zip(numbers, coming, strict=False):
                found: dict[str, Any] = load_file(path)
                width = plan.target.hidden_size
                states = found["states"]
                found |= {"states": states[:, :-width], "last": states[:, -width:]}
                if progress is not None:
                    progress(new)
                yield composed(plan, number, found, held)
                path.unlink()
        shutil.rmtree(parts, ignore_errors=True)

    def _flags(self, plan: Plan, held: TargetTables, folder: str) -> list[str]:
        remote = ["--trust-remote-code"] if self.wish.trust_remote_code else []
        settings = vllm_settings([*plan.taps, held.depth], folder)
        return [
            f"--model={provenance.target_folder(self.wish.target)}",
            f"--dtype={plan.dtype}",
            "--skip-tokenizer-init",
            "--no-enable-prefix-caching",
            *(
                f"--{name.replace('_', '-')}={json.dumps(value)}"
                for name, value in settings.items()
            ),
            *remote,
            *self.engine.arguments,
        ]


def started(wish: Wish, engine: StartedEngine, *, last_state: bool) -> VLLMStarted:
    """The recorder that the command asks for.

    Raises:
        Usage: without the last state, which costs vLLM no second start.
    """
    if not last_state:
        raise Usage("--no-last-state spares the second start of --engine sglang; leave it out.")
    return VLLMStarted(wish, engine)
