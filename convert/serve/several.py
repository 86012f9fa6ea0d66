"""One launch command for several releases of an engine: right in all of them, or refused with the first that it fails."""

from collections.abc import Sequence
from dataclasses import dataclass

from eagle3_interop.convert.serve.command import command, judge
from eagle3_interop.convert.serve.launch import Command, Serving
from eagle3_interop.schemas.engines.releases import Named, newest
from eagle3_interop.schemas.findings import Finding, refusal


@dataclass(frozen=True)
class ServedBy:
    """A draft that is to be served by one release.

    Attributes:
        serving: with what that release reads of it.
        target: the target as the user named it.
        release: as the user named it; None for the newest.
    """

    serving: Serving
    target: str | None
    release: Named | None = None

    def judged(self, line: str) -> list[Finding]:
        """What goes wrong with a command in this release."""
        wanted = self.serving
        return judge(
            line,
            wanted.engine,
            wanted.config,
            wanted.checkpoint,
            wanted.target_config,
            self.target,
            wanted.version,
        )

    @property
    def name(self) -> str:
        """The release, for messages."""
        return self.release.name if self.release else newest(self.serving.engine).name


def judged_by_all(line: str, served: Sequence[ServedBy]) -> list[Finding]:
    """What goes wrong with a command in any of the releases, each thing once."""
    return list(dict.fromkeys(item for one in served for item in one.judged(line)))


def command_for(served: Sequence[ServedBy]) -> Command:
    """The command that serves a draft in all of these releases.

    Raises:
        Refused: there is none; it names the first release that does not take the first one's.
        Usage: K or top-k out of range, or a tree for vLLM.
    """
    own = [command(one.serving) for one in served]
    wrong = [one.judged(made.line) for one, made in zip(served, own, strict=True)]
    for made in dict.fromkeys(own):
        if all(one.judged(made.line) == said for one, said in zip(served, wrong, strict=True)):
            return made
    first, said = next(
        (one, new[0])
        for one, old in zip(served, wrong, strict=True)
        if (new := [item for item in one.judged(own[0].line) if item not in old])
    )
    message = (
        f"no command is right in all of {', '.join(one.name for one in served)}: with that of {served[0].name}, "
        f"{first.name} fails first. {said.where}: {said.message}"
    )
    raise refusal("serve-releases", f"--for {served[0].serving.engine}", message)
