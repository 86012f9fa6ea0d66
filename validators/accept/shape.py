"""What is drafted a step: a chain, or a tree in SGLang's three numbers. Free of torch: options are checked first."""

from typing import NamedTuple

from eagle3_interop.schemas.draft import MOST_DRAFTED
from eagle3_interop.schemas.findings import Usage


class Shape(NamedTuple):
    """What is drafted a step: `tokens` nodes, the root included, as SGLang's three flags say it."""

    steps: int
    topk: int
    tokens: int

    @classmethod
    def chain(cls, draft_tokens: int) -> "Shape":
        """K proposed tokens in a row: vLLM's ``num_speculative_tokens``."""
        return cls(draft_tokens, 1, draft_tokens + 1)

    @property
    def is_chain(self) -> bool:
        """One proposal a step."""
        return self.topk == 1

    @property
    def nodes(self) -> int:
        """Nodes that the steps make, before the best are kept."""
        return self.topk + (self.steps - 1) * self.topk**2

    def checked(self) -> "Shape":
        """Itself, if SGLang would run it.

        Raises:
            Usage: a number is not positive, absurdly large, or more nodes are kept than made.
        """
        if min(self) < 1:
            raise Usage(f"tree {self.steps},{self.topk},{self.tokens}: all three count from 1")
        if max(self) > MOST_DRAFTED + 1:
            name, number = "--tree", f"{self.steps},{self.topk},{self.tokens}"
            if self.is_chain:
                name, number = "--num-draft-tokens", f"{self.steps}"
            raise Usage(
                f"{name} {number[:40]}: no engine drafts more than {MOST_DRAFTED} tokens a step."
            )
        if not 1 <= self.tokens - 1 <= self.nodes:
            raise Usage(
                f"tree {self.steps},{self.topk},{self.tokens}: these steps make {self.nodes} nodes, "
                f"so TOKENS (the root included) must be 2 to {self.nodes + 1}"
            )
        if self.is_chain and self.tokens != self.steps + 1:
            raise Usage(f"with top-k 1 TOKENS is STEPS + 1 = {self.steps + 1}, not {self.tokens}")
        return self

    def fits(self, vocabulary: int) -> "Shape":
        """Itself, if a draft with so many tokens can branch like this.

        Raises:
            Usage: a node is to have more children than there are tokens.
        """
        if self.topk > vocabulary:
            raise Usage(
                f"--tree {self.steps},{self.topk},{self.tokens}: TOPK {self.topk} is more than the "
                f"{vocabulary} tokens that the draft can propose."
            )
        return self
