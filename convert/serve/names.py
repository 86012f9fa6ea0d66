"""What a launch command names: flags that the engine must have, and the two models that were meant."""

import difflib
from collections.abc import Iterable, Iterator

from eagle3_interop.convert.read.folders import local_folder
from eagle3_interop.convert.serve.parse import Launch, named, same_place
from eagle3_interop.schemas.engines.releases import newest
from eagle3_interop.schemas.findings import Finding, finding
from eagle3_interop.schemas.hub import is_hub_id


def judge_flags(launch: Launch) -> Iterator[Finding]:
    """Flags that the engine's own parser does not take; argparse reads an unmistakable beginning as the whole."""
    who = f"{newest(launch.engine).title} {launch.known.release}"
    for written in dict.fromkeys(launch.parsed[0]):
        name = _normal(written)
        meant = launch.known.meant(name)
        if len(meant) == 1 or _runs_together(launch, name):
            continue
        if meant:
            message = f"it may be {', '.join(meant[:3])}: {who} does not start."
            yield finding("serve-unknown-flag", written, message, fix="Write the flag out.")
        else:
            message = f"{who} has no such flag, and does not start."
            yield finding(
                "serve-unknown-flag", written, message, fix=_nearest(name, launch.known.values)
            )


def _normal(written: str) -> str:
    """The flag as the parser has it; of a key of a JSON flag, that flag."""
    if written.startswith("--"):
        written = written.replace("_", "-")
    return written.partition(".")[0]


def _runs_together(launch: Launch, name: str) -> bool:
    """``-O3``, and a short flag with its value behind it: ``-q8``."""
    if name.startswith("--"):
        return False
    joined = newest(launch.engine).joined_flags
    return name.startswith(joined) or name[:2] in launch.known.values


def judge_settings(launch: Launch, keys: Iterable[str]) -> Iterator[Finding]:
    """Keys that vLLM's speculative config does not have; ``config/utils.py`` forbids any other."""
    for key in dict.fromkeys(key.partition(".")[0].removesuffix("+") for key in keys):
        if key not in launch.known.settings:
            message = f"vLLM {launch.known.release} has no such key, and does not start."
            where = f"--speculative-config: {key}"
            fix = _nearest(key, launch.known.settings)
            yield finding("serve-unknown-setting", where, message, fix=fix)


def _nearest(name: str, known: Iterable[str]) -> str:
    near = difflib.get_close_matches(name, known, n=1)
    return f"Did you mean {near[0]}?" if near else "Leave it out."


def judge_models(
    launch: Launch,
    draft: str | None,
    draft_revision: str | None,
    target: str | None,
    target_revision: str | None,
) -> Iterator[Finding]:
    """Whether the command names the draft, and the target, that were given to be judged.

    Args:
        launch: the command.
        draft: the draft that it names.
        draft_revision: its revision on the Hub.
        target: the target that it names.
        target_revision: its revision on the Hub.
    """
    pairs = (
        ("draft", launch.checkpoint, draft, draft_revision),
        ("target", launch.target_name, target, target_revision),
    )
    for which, given, there, revision in pairs:
        if given is None or there is None or _linked(launch, given, there):
            continue
        if wrong := _another(given, there, revision):
            message = f"the command names {wrong[1]}, and the {which} given is {wrong[0]}."
            yield finding(f"serve-other-{which}", which, message)


def _another(given: str, there: str, its_revision: str | None) -> tuple[str, str] | None:
    """What was given and what is named, where the two differ."""
    (model, revision), (other, pinned) = named(given), named(there)
    if model != other and not same_place(model, other):
        return given, there
    its_revision = its_revision or pinned or "main"
    if is_hub_id(model) and local_folder(model) is None and its_revision != (revision or "main"):
        return f"{model}@{revision or 'main'}", f"{other}@{its_revision}"
    return None


def _linked(launch: Launch, given: str, there: str) -> bool:
    """Whether the line first gives the model this other name: by a link, a copy or a download."""
    words = launch.words
    before = words[: len(words) - len(launch.own)] if launch.own != words else []
    return there in before and named(given)[0] in before
