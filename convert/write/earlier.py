"""Whether a folder is an output of this tool, still as written: the only folder that may be replaced."""

import hashlib
import os
import stat
from pathlib import Path
from typing import Any

from eagle3_interop.convert.read.strict_json import MAX_JSON_BYTES, parse_object
from eagle3_interop.schemas.findings import Refused

PROVENANCE = "eagle3_interop.json"
TOOL = "eagle3-interop"

_DIGESTS: dict[tuple[int, ...], str] = {}
"""By what an inode says of itself: a run looks three times, and reads once."""


def why_not_ours(folder: Path) -> str:
    """What keeps a folder from being an output of this tool, as written; empty if nothing does.

    ``eagle3_interop.json`` lists every other file with its size, and its sha256 where that was recorded: of
    weights with ``--digest``, of the rest always (0.1.0: with ``--digest``).

    Args:
        folder: that would be replaced.

    Raises:
        OSError: the disk failed.
    """
    if folder.is_symlink():
        return "is a link"
    if not folder.is_dir():
        return "is not a folder"
    found = {entry.name: entry.stat(follow_symlinks=False) for entry in os.scandir(folder)}
    if PROVENANCE not in found or not stat.S_ISREG(found[PROVENANCE].st_mode):
        return f"holds no {PROVENANCE}, so it is no output of this tool"
    listed = _listed(folder / PROVENANCE)
    if listed is None:
        return f"holds a {PROVENANCE} that this tool did not write"
    if more := sorted(found.keys() - listed.keys() - {PROVENANCE}):
        return f"holds {more[0]}, which this tool did not write there"
    if less := sorted(listed.keys() - found.keys()):
        return f"does not hold {less[0]} any more, which this tool wrote there"
    for name, facts in listed.items():
        if _changed(folder / name, found[name], facts):
            return f"holds a {name} that was changed since this tool wrote it"
    return ""


def _listed(provenance: Path) -> dict[str, Any] | None:
    with provenance.open("rb") as file:
        raw = file.read(MAX_JSON_BYTES + 1)
    try:
        said = parse_object(raw, "broken-file", provenance)
    except Refused:
        return None
    tool, files = said.get("tool"), said.get("files")
    named = isinstance(tool, dict) and tool.get("name") == TOOL
    if not named or not isinstance(files, dict) or not files:
        return None
    return files if all(isinstance(facts, dict) for facts in files.values()) else None


def _changed(path: Path, now: os.stat_result, facts: dict[str, Any]) -> bool:
    if not stat.S_ISREG(now.st_mode) or now.st_size != facts.get("bytes"):
        return True
    wanted = facts.get("sha256")
    times = (now.st_dev, now.st_ino, now.st_size, now.st_mtime_ns, now.st_ctime_ns)
    if wanted is not None and times not in _DIGESTS:
        with path.open("rb", buffering=0) as file:
            _DIGESTS[times] = hashlib.file_digest(file, "sha256").hexdigest()
    return wanted is not None and _DIGESTS[times] != wanted
