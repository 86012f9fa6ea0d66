"""Versions as engines number them: in order, and by prefix."""

import re

Numbers = tuple[int, ...]


def numbers(version: str) -> Numbers:
    """The numbers of a version, one after another; what follows a plus sign is a build's and left out.

    Args:
        version: such as ``0.21``, ``0.5.6.post2`` or ``0.33.0+cu129``.
    """
    return tuple(map(int, re.findall(r"\d+", version.partition("+")[0])))


def is_version(word: str) -> bool:
    """Whether this can be the version of an engine."""
    return re.fullmatch(r"\d+(\.\d+)*((\.post|\.dev|rc|a|b)\d+)*(\+[\w.]+)?", word) is not None


def begins(version: str, prefix: str) -> bool:
    """Whether a version is this one, or one of its patches and post releases."""
    wanted = numbers(prefix)
    return numbers(version)[: len(wanted)] == wanted


def at_least(version: str, wanted: str) -> bool:
    """Whether a version is this one or a later one, patches of it included."""
    return numbers(version) >= numbers(wanted)


def covers(since: str, until: str, version: str) -> bool:
    """Whether a range of releases holds a version, or the newest patch of it.

    Args:
        since: the first of the range.
        until: the last; its patches are in the range.
        version: what is looked for; a prefix stands for all that begin with it.
    """
    starts = at_least(version, since) or begins(since, version)
    return starts and (numbers(version) <= numbers(until) or begins(version, until))


def before(version: str) -> str:
    """The version whose last number is one less."""
    *front, last = numbers(version)
    return ".".join(map(str, (*front, last - 1)))
