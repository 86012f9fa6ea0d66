"""Every trainer that is known. A new one is one file and its row here."""

from eagle3_interop.schemas.trainers.base import Trainer
from eagle3_interop.schemas.trainers.specforge import SPECFORGE

TRAINERS: dict[str, Trainer] = {trainer.name: trainer for trainer in (SPECFORGE,)}
