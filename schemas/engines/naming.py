"""Under which names engines ask a ``quantization_config`` for their modules, and what it answers them.

A name that a list misses is no error anywhere: the module is built for other tensors than the file holds, and
runs on what was in memory. Each engine's own matchers are held against these rules in ``tests/engines``.

Drafts have no packed modules in either engine's config: a list that names ``q_proj``, ``k_proj`` and ``v_proj``
is never asked for ``qkv_proj``.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase

from eagle3_interop.schemas.dialects.base import Reading, Source, TargetFacts
from eagle3_interop.schemas.dialects.quantised import (
    FUSED,
    Listed,
    Unknown,
    linear_modules,
    listed,
    matches,
    stated,
)
from eagle3_interop.schemas.draft import Draft
from eagle3_interop.schemas.findings import Finding, finding
from eagle3_interop.schemas.quantisation import Method, Scheme

_NUMBERED = re.compile(r"layers\\?\.\d")

KINDS: Mapping[str, str] = {
    "qkv_proj": "QKVParallelLinear",
    "gate_up_proj": "MergedColumnParallelLinear",
    "fused_qkv_a_proj": "DeepSeekV2FusedQkvAProjLinear",
    "fused_qkv_a_proj_with_mqa": "ReplicatedLinear",
    "q_proj": "ColumnParallelLinear",
    "q_b_proj": "ColumnParallelLinear",
    "kv_b_proj": "ColumnParallelLinear",
    "o_proj": "RowParallelLinear",
    "down_proj": "RowParallelLinear",
    "fc": "ReplicatedLinear",
    "lm_head": "ParallelLMHead",
}
"""The class that both engines build, by the last part of the name."""

NOWHERE = 10**6
"""A layer's number that no list has."""


@dataclass(frozen=True)
class Asked:
    """A module of an engine.

    Attributes:
        name: by which it asks.
        kind: its class.
        holds: the modules of the network that are put into it.
        plain: why it is never quantised; empty where it may be.
    """

    name: str
    kind: str
    holds: tuple[str, ...]
    plain: str = ""


class Fails(Exception):  # noqa: N818 - what the engine does
    """The engine raises an error at this module."""


@dataclass(frozen=True)
class Naming:
    """How an engine asks.

    Attributes:
        title: the engine, for messages.
        asks: from a network and the number of its first layer, every module that the engine asks for.
        chosen: what compressed-tensors' config answers: the number of a group, or None for a plain module.
        ignored: whether ModelOpt's list leaves a module out.
        methods: the quantisations that it knows.
        numbers: it gives the layers numbers that follow the target's.
    """

    title: str
    asks: Callable[[Draft, int], Iterator[Asked]]
    chosen: Callable[[Asked, Listed], int | None]
    ignored: Callable[[str, tuple[str, ...]], bool]
    methods: frozenset[Method] = frozenset({"compressed-tensors", "modelopt"})
    numbers: bool = False

    def answer(self, asked: Asked, said: Listed) -> Scheme | None:
        """The scheme that the engine takes a module to be stored by.

        Raises:
            Fails: it raises an error.
        """
        if asked.plain:
            return None
        if said.method == "modelopt":
            return None if self.ignored(asked.name, said.ignore) else said.groups[0][1]
        group = self.chosen(asked, said)
        return None if group is None else said.groups[group][1]

    def misreads(self, draft: Draft, said: Listed, depth: int | None) -> Iterator[tuple[str, str]]:
        """The modules that the engine does not take for what they are, by its name for them, and why.

        Args:
            draft: the network.
            said: the config.
            depth: layers of the target, where known.
        """
        if said.method not in self.methods:
            yield "all", f"{self.title} does not know {said.method}"
            return
        schemes = draft.quantisation.modules if draft.quantisation is not None else {}
        for asked in self.asks(draft, NOWHERE if depth is None else depth):
            wanted = {str(schemes.get(module)): schemes.get(module) for module in asked.holds}
            if len(wanted) > 1:
                yield asked.name, f"its parts {', '.join(asked.holds)} have several schemes"
                continue
            (scheme,) = wanted.values()
            try:
                found = self.answer(asked, said)
            except Fails as error:
                yield asked.name, f"{self.title} fails: {error}"
                continue
            if found == scheme:
                continue
            if asked.plain:
                yield asked.name, f"quantised in the file; {asked.plain}"
            elif scheme is None:
                yield asked.name, "plain in the file, quantised by the lists"
            elif found is None:
                yield asked.name, "quantised in the file, plain by the lists"
            else:
                yield asked.name, "of another group by the lists"

    def remarks(
        self, source: Source, reading: Reading, target: TargetFacts | None
    ) -> Iterator[Finding]:
        """What there is to say of a folder's lists."""
        raw, where = stated(source.config)
        if raw is None or reading.draft.quantisation is None:
            return
        try:
            said = listed(raw)
        except Unknown:
            return
        depth = target.layers if target else None
        entries = [*said.ignore, *(entry for targets, _ in said.groups for entry in targets)]
        if depth is None and self.numbers and any(map(_NUMBERED.search, entries)):
            message = f"its lists number layers, and {self.title} gives the draft's layers the numbers after the target's."
            yield finding("quantised-names-unsure", where, message)
            return
        if wrong := list(self.misreads(reading.draft, said, depth)):
            yield finding("quantised-names", where, told(self.title, wrong))


def told(title: str, wrong: list[tuple[str, str]]) -> str:
    """Modules that an engine misreads, for people."""
    few = "; ".join(f"{name}: {why}" for name, why in wrong[:3])
    more = f"; and {len(wrong) - 3} more" if len(wrong) > 3 else ""
    return f"{title} asks by names of its own, and takes {len(wrong)} for what they are not. {few}{more}."


def by_group(asked: Asked, said: Listed, *, suffixes: bool, must_match: bool) -> int | None:
    """What compressed-tensors' config answers both engines.

    Args:
        asked: the module.
        said: the config.
        suffixes: an entry without a pattern also means every name that ends with it.
        must_match: a module that is in no list is an error, but for the head.
    """

    def ends(entry: str) -> bool:
        return suffixes and not entry.startswith("re:") and asked.name.endswith("." + entry)

    if any(matches(asked.name, entry) or ends(entry) for entry in said.ignore):
        return None
    # Engines keep one scheme for each target: of two groups with the same, the last counts.
    targets = {target: index for index, (names, _) in enumerate(said.groups) for target in names}
    is_head = asked.kind == "ParallelLMHead"
    for target, index in targets.items():
        if matches(asked.name, target) or (is_head and ends(target)):
            return index
    for target, index in targets.items() if not (is_head and must_match) else ():
        named = (
            matches(asked.kind, target)
            if target.startswith("re:")
            else target.lower() in asked.kind.lower()
        )
        if named:
            return index
    if must_match and not is_head:
        raise Fails(f"none of the targets is {asked.name}")
    return None


def modules_of(
    draft: Draft,
    name: Callable[[str], tuple[str, str]],
    fused: Mapping[str, tuple[str, ...]],
) -> Iterator[Asked]:
    """The modules of a network, those that an engine puts into one together.

    Args:
        draft: the network.
        name: from the canonical name, parts replaced by what they are put into, to the engine's and its class.
        fused: what is put into one.
    """
    into = {part: whole for whole, parts in fused.items() for part in parts}
    grouped: dict[str, list[str]] = {}
    for module in linear_modules(draft):
        path, dot, leaf = module.rpartition(".")
        grouped.setdefault(f"{path}{dot}{into.get(leaf, leaf)}", []).append(module)
    for whole, holds in grouped.items():
        asked, kind = name(whole)
        yield Asked(asked, kind, tuple(holds))


def only(fused: Iterable[str]) -> dict[str, tuple[str, ...]]:
    """Those of the fused matrices that an engine has."""
    return {whole: FUSED[whole] for whole in fused}


def wildcards(name: str, entries: tuple[str, ...]) -> bool:
    """ModelOpt's entries as vLLM matches them: exactly, as a piece of the name, or with wildcards."""
    return any(entry == name or entry in name or fnmatchcase(name, entry) for entry in entries)


def wildcards_by_part(name: str, entries: tuple[str, ...]) -> bool:
    """ModelOpt's entries as SGLang matches them: a path within the name, or with wildcards the name or one of its parts.

    Raises:
        Fails: some, and not all, of what is put into one are listed.
    """
    leaf = name.rpartition(".")[2]
    shards = {whole: FUSED[whole] for whole in ("qkv_proj", "gate_up_proj")}.get(leaf)
    paths = [name.replace(leaf, shard) for shard in shards] if shards else [name]
    listed_paths = [
        any(f".{entry.rstrip('.')}." in f".{path}." for entry in entries) for path in paths
    ]
    if any(listed_paths) and not all(listed_paths):
        raise Fails(f"the list has some parts of {name} and not all")
    if all(listed_paths):
        return True
    for entry in entries:
        pattern = re.compile(entry.replace(".", r"\.").replace("*", ".*"))
        if any(pattern.fullmatch(part) for part in (name, *name.split("."))):
            return True
        tail = entry.rpartition(".")[2]
        if tail in ("q_a_proj", "q_b_proj", "kv_a_proj_with_mqa", "kv_b_proj") and tail in leaf:
            return True
    return False
