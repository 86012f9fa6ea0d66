"""A launch command as a value: what is wanted of an engine, and the command that says it, rendered last."""

import shlex
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

from eagle3_interop.schemas.draft import MOST_DRAFTED
from eagle3_interop.schemas.engines.releases import newest
from eagle3_interop.schemas.findings import Usage

Engine = Literal["vllm", "sglang"]

_PROGRAMS: dict[Engine, tuple[str, ...]] = {
    "vllm": ("vllm", "serve"),
    "sglang": ("python", "-m", "sglang.launch_server", "--model-path"),
}
"""What starts each engine; the model stands behind it."""


@dataclass(frozen=True)
class Serving:
    """A draft that is to be served with its target.

    Attributes:
        engine: by which engine.
        config: the draft's config.json.
        checkpoint: the draft, as the engine shall find it.
        target: the target, likewise.
        num_draft_tokens: proposed tokens a step, K; of a tree, its steps.
        topk: branches a draft step (SGLang's trees; 1 is a chain).
        draft_tokens: nodes of SGLang's tree, its root included; as many as its steps may make, unless given.
        target_config: the target's config.json (a multimodal one's text part), where it is at hand:
            SGLang runs the draft in the target's dtype only if it is told to.
        version: of the engine, where that was said.
    """

    engine: Engine
    config: Mapping[str, Any]
    checkpoint: str
    target: str
    num_draft_tokens: int
    topk: int = 1
    draft_tokens: int | None = None
    target_config: Mapping[str, Any] | None = None
    version: str | None = None

    def checked(self) -> "Serving":
        """Itself, if an engine can do it.

        Raises:
            Usage: K or top-k out of range, or a tree for vLLM.
        """
        counts = (self.num_draft_tokens, self.topk)
        if not all(1 <= count <= MOST_DRAFTED for count in counts):
            raise Usage(f"--num-draft-tokens and --topk count from 1 to {MOST_DRAFTED}.")
        release = newest(self.engine)
        if not release.trees and (self.topk > 1 or self.draft_tokens is not None):
            raise Usage(f"{release.title} drafts chains only: leave --topk at 1.")
        return self


@dataclass(frozen=True)
class Command:
    """A launch command.

    Attributes:
        engine: which it starts.
        model: the target, as the engine shall find it.
        flags: names with their dashes, and values, in their order.
        env: variables that stand before it.
        before: words of the command that has to be run first, if one has to.
        more: words of the user's that stand behind all.
    """

    engine: Engine
    model: str
    flags: tuple[tuple[str, str], ...]
    env: tuple[tuple[str, str], ...] = ()
    before: tuple[str, ...] = ()
    more: tuple[str, ...] = ()

    @property
    def words(self) -> tuple[str, ...]:
        """The command without what stands before it."""
        flags = (word for flag in self.flags for word in flag)
        return (*_PROGRAMS[self.engine], self.model, *flags, *self.more)

    @property
    def line(self) -> str:
        """The command as a shell takes it."""
        first = f"{shlex.join(self.before)} && " if self.before else ""
        variables = "".join(f"{name}={shlex.quote(value)} " for name, value in self.env)
        return first + variables + shlex.join(self.words)

    def with_flags(self, *flags: tuple[str, str]) -> "Command":
        """With more flags of ours."""
        return replace(self, flags=(*self.flags, *flags))

    def with_words(self, words: tuple[str, ...]) -> "Command":
        """With words of the user's."""
        return replace(self, more=words)
