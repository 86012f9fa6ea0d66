"""Every trainer that is known. A new one is one file and its row here."""

from eagle3_interop.schemas.trainers.base import Trainer

TRAINERS: dict[str, Trainer] = {}
