"""What a real engine is asked, and what it answers: its text and its own counters."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from eagle3_interop.convert.serve.command import Engine
from eagle3_interop.schemas.findings import Unavailable
from eagle3_interop.validators.accept.shape import Shape

TITLES = {"vllm": "vLLM", "sglang": "SGLang"}

SPOKEN = ("spec_verify_ct", "spec_num_correct_drafts", "spec_correct_drafts_histogram")
"""What SGLang says of a prompt whose continuation was drafted: steps, accepted tokens, steps by accepted tokens."""


@dataclass(frozen=True)
class Run:
    """Something to be timed: prompts that are answered together, end-of-sequence ignored.

    Attributes:
        prompts: token ids.
        new_tokens: after each.
    """

    prompts: tuple[tuple[int, ...], ...]
    new_tokens: int


@dataclass(frozen=True)
class Ran:
    """What it took.

    Attributes:
        seconds: by the clock.
        outputs: new tokens of each prompt.
        steps: verification steps of the prompt that had most; None where nothing was drafted or counted.
    """

    seconds: float
    outputs: tuple[tuple[int, ...], ...]
    steps: int | None = None

    @property
    def tokens(self) -> int:
        """New tokens of all prompts."""
        return sum(map(len, self.outputs))


@dataclass(frozen=True)
class Work:
    """What an engine shall generate, greedily.

    Attributes:
        target: folder or Hub id.
        draft: folder.
        plugin: SGLang runs the draft with the plugin only.
        prompts: token ids.
        new_tokens: after each prompt.
        stop_ids: at which a text ends; none to ignore end-of-sequence.
        shape: what is drafted a step.
        dtype: of target and draft.
        trust_remote_code: of the target.
        parallel: all tokens of a step come from one pass of the draft (P-EAGLE).
        latent: which of ``target`` and ``draft`` have latent attention (MLA).
        runs: to be timed afterwards.
    """

    target: str
    draft: str
    plugin: bool
    prompts: tuple[tuple[int, ...], ...]
    new_tokens: int
    stop_ids: tuple[int, ...]
    shape: Shape
    dtype: str
    trust_remote_code: bool = False
    parallel: bool = False
    latent: frozenset[str] = frozenset()
    runs: tuple[Run, ...] = ()


@dataclass(frozen=True)
class Served:
    """What an engine wrote and counted.

    Attributes:
        engine: which one.
        version: of it.
        how: ``started`` for this, or a ``server`` that was running.
        outputs: new tokens of each prompt.
        drafts: verification steps.
        accepted: draft tokens.
        per_position: steps that accepted more than j tokens.
        prompts: (drafts, accepted) of each prompt, where the engine says so.
        aux_layers: whose inputs feed the draft, where the engine says so.
        dtype: of the engine, where it says so.
        seconds: of generating.
        told: settings that it was given for the machine that it found itself on.
        ran: what the runs of the work took.
    """

    engine: Engine
    version: str
    how: str
    outputs: tuple[tuple[int, ...], ...]
    drafts: int
    accepted: int
    per_position: tuple[int, ...]
    prompts: tuple[tuple[int, int], ...] | None = None
    aux_layers: tuple[int, ...] | None = None
    dtype: str | None = None
    seconds: float = 0.0
    told: tuple[str, ...] = ()
    ran: tuple[Ran, ...] = ()

    @property
    def name(self) -> str:
        """The engine and its version."""
        return f"{TITLES[self.engine]} {self.version}"

    @property
    def accept_length(self) -> float:
        """Tokens a step."""
        return 1 + self.accepted / self.drafts if self.drafts else 1.0

    def checked(self, work: Work) -> "Served":
        """Itself, if it answered every prompt.

        Raises:
            Unavailable: an answer is missing or empty.
        """
        if len(self.outputs) != len(work.prompts):
            raise Unavailable(
                f"{self.name} answered {len(self.outputs)} of {len(work.prompts)} prompts"
            )
        for number, output in enumerate(self.outputs):
            if not output:
                raise Unavailable(f"{self.name} gave no token for prompt {number}")
        return self


class Generator(Protocol):
    """An engine that generates."""

    @property
    def engine(self) -> Engine:
        """Which one."""

    @property
    def version(self) -> str | None:
        """Of it, where it is known before it generates."""

    @property
    def shape(self) -> Shape | None:
        """What it drafts a step, where that is not ours to say."""

    def generate(self, work: Work) -> Served:
        """Do the work.

        Raises:
            Unavailable: the engine failed.
        """

    def bare(self, work: Work) -> tuple[Ran, ...] | None:
        """What the same runs take without the draft; None where there is nothing to ask.

        Raises:
            Unavailable: the engine failed.
        """


def from_sglang(
    answers: Sequence[Mapping[str, Any]],
    work: Work,
    version: str,
    how: str,
    **known: Any,  # noqa: ANN401
) -> Served:
    """The answers of ``/generate``, and of the engine's own method of that name.

    Args:
        answers: one a prompt.
        work: that was asked.
        version: of SGLang.
        how: see `Served`.
        known: further attributes.

    Raises:
        Unavailable: this version says its counters otherwise.
    """
    steps = work.shape.steps
    prompts, positions = [], [0] * steps
    for answer in answers:
        info = answer["meta_info"]
        if any(name in info for name in SPOKEN) and any(name not in info for name in SPOKEN):
            missing = ", ".join(name for name in SPOKEN if name not in info)
            raise Unavailable(f"SGLang {version} does not report {missing}; 0.5.23 does")
        histogram = info.get(SPOKEN[2]) or []
        prompts.append((int(info.get(SPOKEN[0], 0)), int(info.get(SPOKEN[1], 0))))
        if len(histogram) > steps + 1 and any(histogram[steps + 1 :]):
            positions += [0] * (len(histogram) - 1 - len(positions))
        for position in range(len(positions)):
            positions[position] += sum(histogram[position + 1 :])
    return Served(
        engine="sglang",
        version=version,
        how=how,
        outputs=tuple(tuple(answer["output_ids"]) for answer in answers),
        drafts=sum(drafts for drafts, _ in prompts),
        accepted=sum(accepted for _, accepted in prompts),
        per_position=tuple(positions),
        prompts=tuple(prompts),
        **known,
    ).checked(work)


def since(began: float) -> float:
    """Seconds."""
    return round(time.monotonic() - began, 1)
