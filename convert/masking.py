"""What may leave this machine in a text: no path of it, and no secret."""

import re
from collections.abc import Iterable

# Two components at least: a lone "/word" may be a token or a route.
_MACHINE_PATH = re.compile(
    r"(?:/[\w.+@ -]+){2,}/?|/(?:home|root|mnt|data|tmp|srv|opt|workspace)\b.*"
    r"|~[/\\].*|\.{1,2}[/\\].*|file:.*|[A-Za-z]:[\\/].*|\\\\.*"
)
_PATH_IN_TEXT = re.compile(r"(?<![\w/.:<~])(?:~|[A-Za-z]:|\.{1,2})?(?:[\\/][^\s\\/'\"`,;()<>]+)+")

_NAMED = r"(?:api[-_]?key|access[-_]?key|token|secret|password|passwd|pwd)"
"""How what may not be seen is called."""

_SECRETS = (
    # Credentials in a URL.
    (re.compile(r"(?<=://)[^\s/@'\"]+@"), "***@"),
    # Headers and parameters that carry one.
    (re.compile(r"(?i)\b(bearer|authorization\W{1,4}\w+)\s+[\w.~+/=-]{6,}"), r"\1 ***"),
    (re.compile(rf"(?i)({_NAMED}[\"']?\s*[=:]\s*)(?:\[[^\]]*\]|\([^)]*\))"), r"\1***"),
    (re.compile(rf"(?i)({_NAMED}[\"']?\s*[=:]\s*[\"']?)[^\s\"'&,;]+"), r"\1***"),
    # Flags with their value behind them, in a line and in a list.
    (re.compile(rf"(?i)(--?[\w-]*{_NAMED}[\"']?,?\s+[\"']?)[^\s\"'&,;-][^\s\"'&,;]*"), r"\1***"),
    # Keys by their usual prefixes.
    (re.compile(r"\b(?:hf|api_org)_[A-Za-z0-9]{16,}"), "***"),
    (re.compile(r"\b(?:gh[opsur]_[A-Za-z0-9]{16,}|github_pat_\w{16,})"), "***"),
    (re.compile(r"\b(?:sk|pk|rk)-[\w-]{20,}"), "***"),
    (re.compile(r"\b(?:glpat|nvapi|pypi|xox[abprs])-[\w-]{16,}"), "***"),
    (re.compile(r"\bA(?:KIA|SIA)[0-9A-Z]{16}\b"), "***"),
    (re.compile(r"\bAIza[\w-]{30,}"), "***"),
    (re.compile(r"\beyJ[\w-]{8,}\.[\w-]{8,}\.[\w-]+"), "***"),
)


def is_local(text: str) -> bool:
    """Whether a text is a path of this machine."""
    return "\n" not in text and _MACHINE_PATH.fullmatch(text) is not None


def shortened(text: str) -> str:
    """A text with every path of this machine in it reduced to its last component."""
    if is_local(text):
        return _last(text)
    return _PATH_IN_TEXT.sub(lambda match: _last(match[0]), text)


def masked(text: str) -> str:
    """A text without what looks like a secret: tokens, passwords, credentials of URLs."""
    for pattern, instead in _SECRETS:
        text = pattern.sub(instead, text)
    return text


def public_words(words: Iterable[str]) -> list[str]:
    """The words of a command line, without paths of this machine and without secrets.

    The value of an option that is called for a secret (``--token X``) goes as well.
    """
    found: list[str] = []
    for word in words:
        secret = bool(found) and re.fullmatch(r"--?[\w-]*(token|key|password|secret)", found[-1])
        if secret:
            found.append("***")
            continue
        name, equals, value = word.partition("=")
        if equals and name.startswith("-"):
            found.append(f"{name}={masked(shortened(value))}" if value else word)
        else:
            found.append(shortened(masked(word)))
    return [masked(word) for word in found]


def _last(path: str) -> str:
    return re.split(r"[\\/]", path.rstrip("\\/"))[-1]
