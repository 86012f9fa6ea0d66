"""A trainer: the signs by which its folders are known, and what its own forward computes of them."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from eagle3_interop.schemas.dialects.base import Reading, Source, TargetFacts
from eagle3_interop.schemas.draft import Draft

Certainty = Literal["certain", "likely", "told"]
"""How sure it is who trained a draft; ``told`` is the user's word."""


@dataclass(frozen=True)
class Signature:
    """By what a trainer was recognised.

    Attributes:
        certainty: nobody else writes this (``certain``), or others might (``likely``).
        sign: it, for people.
    """

    certainty: Certainty
    sign: str


@dataclass(frozen=True)
class Deviation:
    """One thing that a trainer's forward computes otherwise than servers do from its folder.

    Attributes:
        code: names it in reports, kebab-case.
        path: dotted path of the description.
        trained: from the folder and the draft as served, the value that was trained; the served one where
            this folder does not deviate.
    """

    code: str
    path: str
    trained: Callable[[Source, Draft], Any]


@dataclass(frozen=True)
class Uncarried:
    """One thing that a trainer's forward computes, and no engine does: no folder can say it.

    Attributes:
        code: of its finding; an error is accepted by ``--allow CODE``.
        path: names it in reports.
        trained: what was trained.
        served: what every engine computes.
        message: it, for people.
        holds: whether a folder, read as served, was trained so.
    """

    code: str
    path: str
    trained: str
    served: str
    message: str
    holds: Callable[[Source, Draft], bool]


@dataclass(frozen=True)
class Doubt:
    """One thing that a trainer computes by what it ran with, and its folder does not tell.

    Attributes:
        code: of its finding, a warning.
        path: dotted path of the description, by which the user says what was trained.
        message: it, for people.
        holds: whether it is open for a folder, read as served.
    """

    code: str
    path: str
    message: str
    holds: Callable[[Source, Draft], bool]


@dataclass(frozen=True)
class Trainer:
    """One trainer.

    Attributes:
        name: in commands and reports.
        title: for people.
        signs: from a folder, the strongest sign of it.
        deviations: what it may compute otherwise, in the order in which they are put in.
        drops: config keys that are its signs, dotted: what is written as trained does not carry them.
        uncarried: what it may compute and no engine does.
        doubts: what it may compute, and its folder does not tell.
        settles: what asks of a reading and its forward answers: paths that it computes as the folder says, whatever
            an engine does, and config keys that it never reads.
        ids_option: the run option in which layer ids may have stood that its exports do not carry.
        reads: the folder as its own class takes it, where engines read past tensors that it uses; None where
            engines take the same tensors.
    """

    name: str
    title: str
    signs: Callable[[Source], Signature | None]
    deviations: tuple[Deviation, ...]
    drops: tuple[str, ...] = ()
    uncarried: tuple[Uncarried, ...] = ()
    doubts: tuple[Doubt, ...] = ()
    settles: tuple[str, ...] = ()
    ids_option: str = ""
    reads: Callable[[Source, TargetFacts | None], Reading | None] = lambda _source, _target: None
