"""What a recording is asked. Free of torch: wrong usage is said before it is imported."""

from dataclasses import dataclass
from pathlib import Path

from eagle3_interop.convert.read.folders import hub_named, local_path
from eagle3_interop.schemas.findings import Usage
from eagle3_interop.schemas.streams import MANIFEST, PARTIAL
from eagle3_interop.validators.prove.request import MOST_NEW_TOKENS
from eagle3_interop.validators.target.device import device_parts


@dataclass(frozen=True)
class Wish:
    """What the user asks.

    Attributes:
        target: folder or Hub id.
        out: the folder to fill.
        prompts: a file; the package's own without one.
        new_tokens: N, tokens of each text that count.
        lookahead: M, tokens after those.
        taps: to record; None for the usual ones.
        device: of a target that transformers runs.
        dtype: of the target, and of what is written.
        seed: greedy texts do not depend on it.
        trust_remote_code: run Python files that come with the target.
    """

    target: str
    out: Path
    prompts: Path | None = None
    new_tokens: int = 128
    lookahead: int = 16
    taps: tuple[int, ...] | None = None
    device: str = "auto"
    dtype: str = "float32"
    seed: int = 0
    trust_remote_code: bool = False

    def check(self) -> None:
        """Refuse what can never be recorded.

        Raises:
            Usage: a number out of range, or a place that is taken.
        """
        hub_named(self.target)
        device_parts(self.device)
        if self.new_tokens < 2:
            raise Usage(
                "--max-new-tokens: at least 2; the prefill gives the first without a draft."
            )
        if self.lookahead < 1:
            raise Usage("--lookahead: at least 1; the longest draft that can be judged.")
        if max(self.new_tokens, self.lookahead) > MOST_NEW_TOKENS:
            raise Usage(f"at most {MOST_NEW_TOKENS} tokens; no target reaches further.")
        check_place(self.out)


def check_place(folder: Path) -> None:
    """Refuse a place that holds something else, before any work.

    Raises:
        Usage: with what stands in the way.
    """
    local_path(folder)
    if not folder.exists():
        return
    if not folder.is_dir():
        raise Usage(f"--out {folder} is a file; give a folder.")
    if (folder / MANIFEST).exists():
        raise Usage(f"--out {folder} holds a finished recording; give another place.")
    if not (folder / PARTIAL).exists() and any(folder.iterdir()):
        raise Usage(f"--out {folder} holds other files; give an empty or a new folder.")
