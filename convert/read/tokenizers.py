"""The tokenizer beside a draft against the target's: whether a text has the same token ids in both."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from eagle3_interop.convert.read.folders import Folder, LocalFolder
from eagle3_interop.convert.read.strict_json import MAX_JSON_BYTES, loads
from eagle3_interop.schemas.findings import Finding, Unavailable, finding

FILE = "tokenizer.json"


@dataclass(frozen=True)
class Tokenizer:
    """What decides ids, of a ``tokenizer.json``; how it is laid out, pads or truncates does not.

    Attributes:
        kind: BPE, Unigram, WordPiece, WordLevel.
        vocabulary: ids of the model's tokens.
        added: ids of the tokens that are matched whole, before the model.
        order: merges of BPE in their order, scores of Unigram.
    """

    kind: str
    vocabulary: Mapping[str, int]
    added: Mapping[str, int]
    order: tuple[Any, ...]

    @classmethod
    def parse(cls, raw: bytes) -> "Tokenizer":
        """Read a file.

        Raises:
            ValueError: it is not laid out as the tokenizers library does.
        """
        told = loads(raw.decode("utf-8"))
        try:
            model = told["model"]
            vocabulary = model["vocab"]
            order: tuple[Any, ...] = ()
            if isinstance(vocabulary, list):  # Unigram's pairs
                order = tuple(float(score) for _, score in vocabulary)
                vocabulary = {str(token): number for number, (token, _) in enumerate(vocabulary)}
            if model.get("merges"):
                # Written as "a b" by older versions, as ["a", "b"] by newer ones.
                order = tuple(
                    one if isinstance(one, str) else " ".join(one) for one in model["merges"]
                )
            added = {str(one["content"]): int(one["id"]) for one in told.get("added_tokens") or ()}
            return cls(str(model.get("type") or ""), dict(vocabulary), added, order)
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError(
                f"it has no {error}" if isinstance(error, KeyError) else str(error)
            ) from error

    @property
    def ids(self) -> dict[str, int]:
        """All tokens."""
        return {**self.vocabulary, **self.added}


def compared(draft: Folder, target: Folder, *, fetch: bool) -> Iterator[Finding]:
    """What a draft's tokenizer and its target's do differently.

    Args:
        draft: its folder.
        target: its folder.
        fetch: download the files; else only what lies here, or has a digest, is compared.

    Raises:
        Unavailable: the disk or the Hub failed.
    """
    if not all(0 < folder.sizes.get(FILE, 0) <= MAX_JSON_BYTES for folder in (draft, target)):
        return
    digests = [folder.sha256(FILE) for folder in (draft, target)]
    if digests[0] is not None and digests[0] == digests[1]:
        return
    if not fetch and not all(isinstance(folder, LocalFolder) for folder in (draft, target)):
        return
    try:
        raws = [folder.path(FILE).read_bytes() for folder in (draft, target)]
    except OSError as error:
        raise Unavailable(f"{error.filename or FILE}: {error.strerror or error}") from error
    if raws[0] == raws[1]:
        return
    read = []
    for folder, raw in zip((draft, target), raws, strict=True):
        try:
            read.append(Tokenizer.parse(raw))
        except ValueError as error:
            message = f"it cannot be compared: {error}."
            yield finding("tokenizer-unread", f"{folder.label}/{FILE}", message)
            return
    if told := _other_ids(*read):
        yield finding("other-tokenizer", FILE, f"{told}.")
    elif told := _added(*read):
        yield finding("tokenizer-added", FILE, f"{told}.")


def _other_ids(draft: Tokenizer, target: Tokenizer) -> str:
    """What gives texts other ids, in words; nothing where only added tokens come on top."""
    if draft.kind and target.kind and draft.kind != target.kind:
        return f"the draft's is {draft.kind}, the target's {target.kind}"
    ours, theirs = draft.ids, target.ids
    moved = [token for token in ours if token in theirs and ours[token] != theirs[token]]
    if moved:
        one = moved[0]
        return (
            f"{len(moved)} tokens have other ids: {one!r} is {ours[one]} in the draft's folder, and "
            f"{theirs[one]} in the target's"
        )
    alone = [token for token in draft.vocabulary if token not in theirs]
    alone += [token for token in target.vocabulary if token not in ours]
    if alone:
        return f"{len(alone)} tokens of the vocabulary are in one of the two alone: {alone[0]!r}"
    if draft.order != target.order:
        what = "scores" if draft.kind == "Unigram" else "merges"
        places = zip(draft.order, target.order, strict=False)
        shorter = min(len(draft.order), len(target.order))
        first = next((n for n, (a, b) in enumerate(places) if a != b), shorter)
        return (
            f"the {what} differ from number {first} on ({len(draft.order)} in the draft's folder, "
            f"{len(target.order)} in the target's)"
        )
    return ""


def _added(draft: Tokenizer, target: Tokenizer) -> str:
    sides = {"draft's folder": (draft, target), "target's": (target, draft)}
    told = []
    for name, (one, other) in sides.items():
        if more := [token for token in one.added if token not in other.added]:
            told.append(f"{len(more)} added tokens are in the {name} alone: {more[0]!r}")
    return "; ".join(told)
