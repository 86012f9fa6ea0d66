"""A source that was read: the folder, the network in it, and its target."""

from dataclasses import dataclass

from eagle3_interop.convert.decide.training import Trained
from eagle3_interop.convert.read.checkpoint import Checkpoint
from eagle3_interop.convert.read.stored import Stored
from eagle3_interop.convert.read.target_tables import TargetCheckpoint
from eagle3_interop.schemas.dialects.base import Reading, TargetFacts
from eagle3_interop.schemas.draft import Draft
from eagle3_interop.schemas.findings import Finding


@dataclass(frozen=True)
class Loaded:
    """A source read by its own framework's rules, the user's word put in.

    Attributes:
        checkpoint: the folder.
        layout: which layout it was read as.
        reading: the network and where its tensors lie.
        target: the target, where it was given.
        facts: what the target's config says.
        own_embeddings: True, the stored table differs from the target's; False, it is the target's
            (or there is none); None, nobody knows.
        trainer: who trained it, and what became of that, where its folder tells.
        exchanged: the two halves of what layer 0 takes stand in the file in the other order than every
            framework feeds them (`eagle3-diagnose --write` finds out).
    """

    checkpoint: Checkpoint
    layout: str
    reading: Reading
    target: TargetCheckpoint | None = None
    facts: TargetFacts | None = None
    own_embeddings: bool | None = None
    trainer: Trained | None = None
    exchanged: bool = False

    @property
    def draft(self) -> Draft:
        """What is known of it: the network, and what is told about it."""
        return self.reading.draft

    @property
    def findings(self) -> tuple[Finding, ...]:
        """What was said of its folder."""
        return tuple(self.reading.findings)

    def stored(self, canonical: str) -> Stored:
        """Where a tensor lies."""
        return self.checkpoint.stored[self.reading.names[canonical]]
