"""Trainers whose rotation is built without its base: 10000, whatever the config says."""

from collections.abc import Callable

from eagle3_interop.schemas.dialects.base import Source
from eagle3_interop.schemas.draft import Draft
from eagle3_interop.schemas.trainers.base import Deviation

DEFAULT = 10000.0
"""What their rotation classes take where no base is handed over."""


def unread_base(unread: Callable[[Source, Draft], bool]) -> Deviation:
    """The base of the rotation is the default one wherever it is not handed over."""
    return Deviation(
        "rope-base",
        "rope.theta",
        lambda source, draft: DEFAULT if unread(source, draft) else draft.rope.theta,
    )
