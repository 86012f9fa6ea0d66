"""Every trainer that is known. A new one is one file and its row here."""

from eagle3_interop.schemas.trainers.angelslim import ANGELSLIM
from eagle3_interop.schemas.trainers.automodel import AUTOMODEL
from eagle3_interop.schemas.trainers.base import Trainer
from eagle3_interop.schemas.trainers.eagle import EAGLE
from eagle3_interop.schemas.trainers.modelopt import MODELOPT
from eagle3_interop.schemas.trainers.specforge import SPECFORGE
from eagle3_interop.schemas.trainers.speculators import SPECULATORS
from eagle3_interop.schemas.trainers.torchspec import TORCHSPEC

TRAINERS: dict[str, Trainer] = {
    trainer.name: trainer
    for trainer in (SPECFORGE, MODELOPT, AUTOMODEL, EAGLE, ANGELSLIM, TORCHSPEC, SPECULATORS)
}
