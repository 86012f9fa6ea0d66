"""Recording through transformers, which runs the target as validating does."""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
import transformers
from torch import Tensor

from eagle3_interop.schemas.findings import Refused
from eagle3_interop.schemas.streams import Last, RecordedBy
from eagle3_interop.validators.record.record import Offer, Written, sound
from eagle3_interop.validators.record.store import Plan
from eagle3_interop.validators.record.wish import Wish
from eagle3_interop.validators.report import provenance
from eagle3_interop.validators.target.running import DTYPES, Progress, Target, pack
from eagle3_interop.validators.target.tables import TargetTables
from eagle3_interop.validators.target.writing import write_texts

TOKEN_BUDGET = 4096
"""Tokens of the texts that are under way at a time."""

PROBE = 16
"""Tokens of the pass that finds out what the final norm is, and what layer 0 receives."""

SAME = {torch.float32: 1e-5, torch.bfloat16: 2e-2, torch.float16: 2e-3}
"""Differences, relative to the largest value, that are rounding."""


@dataclass
class Library:
    """transformers.

    Attributes:
        wish: the user's.
        target: once it is loaded.
    """

    wish: Wish
    target: Target | None = None

    def offer(self, taps: tuple[int, ...], held: TargetTables) -> Offer:
        """All taps; the last state before its norm, where that norm is known here to give the model's own output.

        Tap L is that state, and tap 0 the table's rows, unless the model scales them.
        """
        target = self._loaded(held)
        tokens = torch.arange(PROBE)[None] % held.vocabulary_size
        found = target.features(tokens, (0, held.depth))
        known = self._known(found.taps[held.depth], found.final, held)
        last: Last = "pre-norm" if known else "post-norm"
        plain = not held.scales_embeddings and _same(found.taps[0], held.embedded(tokens))
        free = ({held.depth} if last == "pre-norm" else set()) | ({0} if plain else set())
        by = RecordedBy(engine="transformers", version=transformers.__version__, how="library")
        return Offer(by, tuple(tap for tap in taps if tap not in free), last, "last-state")

    def _known(self, stream: Tensor, final: Tensor, held: TargetTables) -> bool:
        try:
            norm, _ = held.final_norm
        except Refused:
            return False
        with torch.no_grad():
            return _same(norm(stream.to(held.device)), final)

    def texts(
        self, plan: Plan, skip: int, held: TargetTables, progress: Progress | None
    ) -> Iterator[Written]:
        """The target's own continuations, and one teacher-forced pass over each."""
        target = self._loaded(held)
        new = plan.new_tokens + plan.lookahead
        order = list(range(skip, len(plan.prompts)))
        for group in pack([len(plan.prompts[i]) + new for i in order], TOKEN_BUDGET):
            prompts = [plan.prompts[order[i]] for i in group]
            made = write_texts(target, prompts, new, 0, progress=progress).texts
            rows = [[*text.prompt, *text.completion] for text in made]
            longest = max(map(len, rows))
            tokens = torch.tensor([[*row, *[0] * (longest - len(row))] for row in rows])
            taps = {*plan.taps, *([held.depth] if plan.last == "pre-norm" else [])}
            features = target.features(tokens, sorted(taps), final=plan.last == "post-norm")
            end = features.final if plan.last == "post-norm" else features.taps[held.depth]
            for row, text in enumerate(rows):
                kept = [features.taps[tap][row, : len(text)] for tap in plan.taps]
                states = torch.stack([*kept, end[row, : len(text)]], dim=1).to(
                    "cpu", DTYPES[plan.dtype]
                )
                sound(order[group[row]], [states])
                yield text, {"hidden_states": states}

    def _loaded(self, held: TargetTables) -> Target:
        if self.target is None:
            self.target = Target.load(
                provenance.target_folder(self.wish.target),
                device=held.device,
                dtype=held.dtype,
                trust_remote_code=self.wish.trust_remote_code,
            )
        return self.target


def _same(one: Tensor, other: Tensor) -> bool:
    limit = SAME[other.dtype] * float(other.abs().max())
    return float((one.to(other.device) - other).abs().max()) <= limit
