"""What a validation measures on: texts with the target's features, written now or recorded before."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from eagle3_interop.validators.accept.drafting import Batch, batches, written_batches
from eagle3_interop.validators.target.running import Progress, Target
from eagle3_interop.validators.target.source import Source
from eagle3_interop.validators.target.texts import Text
from eagle3_interop.validators.target.writing import Order, Texts, write


class Material(Protocol):
    """Texts, and batches of them."""

    @property
    def title(self) -> str:
        """What happens while it is read."""

    @property
    def tokens(self) -> int:
        """How many tokens progress tells of."""

    @property
    def texts(self) -> tuple[Text, ...]:
        """All of them, once all batches were read."""

    def batches(
        self, taps: Sequence[int], *, final: bool, progress: Progress | None
    ) -> Iterator[Batch]:
        """Every text once, with the target's streams at these taps (and its final output)."""


@dataclass
class Writing:
    """Texts that a running target writes: what it reads on the way is what drafts are fed.

    Attributes:
        target: writes.
        order: what.
        made: the texts so far.
        reach: positions after the last start that features cover.
    """

    target: Target
    order: Order
    made: Texts = field(default_factory=Texts)
    reach: int = 0
    title: str = "the target writes, the draft is measured"

    @property
    def tokens(self) -> int:
        """Tokens of all completions."""
        return len(self.order.prompts) * (self.order.new_tokens + self.order.extra)

    @property
    def texts(self) -> tuple[Text, ...]:
        """What was written."""
        return self.made.texts

    def batches(
        self, taps: Sequence[int], *, final: bool, progress: Progress | None
    ) -> Iterator[Batch]:
        """Write group by group; a group's features are gone when the next one begins."""
        groups = write(self.target, self.order, taps, final=final, progress=progress)
        for group in self.made.through(groups):
            yield from written_batches(group, reach=self.reach)


@dataclass
class Known:
    """Texts that are there already, of a target that may be a recording.

    Attributes:
        target: whose features are fed.
        texts: all of them.
    """

    target: Source
    texts: tuple[Text, ...]
    title: str = "measuring"

    @property
    def tokens(self) -> int:
        """Positions that are read."""
        return sum(text.starts[-1] + 1 for text in self.texts if text.starts)

    def batches(
        self, taps: Sequence[int], *, final: bool, progress: Progress | None
    ) -> Iterator[Batch]:
        """Read them, a budget of tokens at a time."""
        return batches(self.target, self.texts, taps, final=final, progress=progress)
