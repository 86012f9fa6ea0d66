"""What a command can name: the dialects that folders come in, and the destinations that they go to.

A new dialect is one file and its row in `DIALECTS`. A new release of an engine is one value and its place in
`releases.RELEASES`.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from eagle3_interop.schemas.dialects import recognition
from eagle3_interop.schemas.dialects.base import Reading, Source, TargetFacts, Wishes, Writing
from eagle3_interop.schemas.dialects.keys import architecture
from eagle3_interop.schemas.dialects.recognition import Sign, is_latent
from eagle3_interop.schemas.draft import Draft, Mla
from eagle3_interop.schemas.engines import sglang, speculators, universal, vllm
from eagle3_interop.schemas.engines.loaders import Loader
from eagle3_interop.schemas.engines.releases import newest
from eagle3_interop.schemas.powers import Powers


@dataclass(frozen=True)
class Dialect:
    """One way of writing a draft down.

    Attributes:
        name: in commands and reports.
        recognise: from config.json, the sign of it.
        engine: whose newest release reads such a folder as it is served.
        possessive: whose layout it is, for people.
    """

    name: str
    recognise: Callable[[Mapping[str, Any]], Sign | None]
    engine: str
    possessive: str

    def read(self, source: Source, target: TargetFacts | None) -> Reading:
        """Read a folder as its engine's newest release does.

        Raises:
            Refused: the config cannot be understood at all.
        """
        return newest(self.engine).read(source, target)


DIALECTS: dict[str, Dialect] = {
    "speculators": Dialect("speculators", recognition.speculators, "speculators", "speculators'"),
    "sglang": Dialect("sglang", recognition.sglang, "sglang", "SGLang's"),
    "vllm": Dialect("vllm", recognition.vllm, "vllm", "vLLM's"),
}
"""Dialects that a command can name as its source."""


@dataclass(frozen=True)
class Destination:
    """What a conversion can write.

    Attributes:
        name: in commands and reports.
        engines: those that load the folder, the first of which reads it back.
        draft_class: what the class computes that a written folder selects.
        write: writes a network so that they load it.
        loader: what their loaders do with a folder.
        library: under which the Hub lists such a folder.
        read: reads it back, as all of them do.
        latent_loader: the same as `loader`, of a folder with latent attention, where others load that.
    """

    name: str
    engines: tuple[str, ...]
    draft_class: Callable[[Draft, Wishes], Powers]
    write: Callable[[Draft, Wishes], Writing]
    loader: Loader
    library: str
    read: Callable[[Source, TargetFacts | None], Reading]
    latent_loader: Loader | None = None

    def loader_of(self, draft: Draft) -> Loader:
        """What their loaders do with a folder of this draft."""
        latent = isinstance(draft.layers.attention, Mla)
        return self.latent_loader if latent and self.latent_loader else self.loader


def _one(
    engine: str,
    draft_class: Callable[[Draft, Wishes], Powers],
    write: Callable[[Draft, Wishes], Writing],
) -> Destination:
    def read(source: Source, target: TargetFacts | None) -> Reading:
        return newest(engine).read(source, target)

    loader = newest(engine).loader
    return Destination(engine, (engine,), draft_class, write, loader, engine, read)


DESTINATIONS: dict[str, Destination] = {
    "speculators": _one("speculators", speculators.draft_class, speculators.write),
    "sglang": _one("sglang", sglang.draft_class, sglang.write),
    "vllm": _one("vllm", vllm.draft_class, vllm.write),
    "universal": Destination(
        "universal",
        universal.ENGINES,
        universal.draft_class,
        universal.write,
        universal.LOADER,
        "speculators",
        universal.read,
        universal.LATENT_LOADER,
    ),
}
"""Destinations that a command can name."""


def readable(name: str) -> Dialect | Destination:
    """What reads a folder that is called this; all of its readers, where it is made for several."""
    return DIALECTS[name] if name in DIALECTS else DESTINATIONS[name]


def recognise(config: Mapping[str, Any]) -> tuple[str, Sign] | None:
    """The dialect that a folder is written in, and the sign by which it was recognised: the strongest counts."""
    signs = ((name, dialect.recognise(config)) for name, dialect in DIALECTS.items())
    found = [(name, sign) for name, sign in signs if sign is not None]
    return max(found, key=lambda one: one[1].strength, default=None)


def serving(name: str) -> tuple[str, ...]:
    """The engines that serve a folder of this dialect or destination as it is, by its form alone."""
    if name in DESTINATIONS:
        listed = DESTINATIONS[name].engines
        named = [engine for engine in listed if newest(engine).serves]
        # vLLM reads speculators' own form too.
        return tuple(named) or ("vllm",)
    return (DIALECTS[name].engine,) if name in DIALECTS else ()


def library(name: str, config: Mapping[str, Any]) -> str:
    """The library under which the Hub lists a folder of this dialect or destination."""
    if is_latent(architecture(config), config.get("kv_lora_rank")):
        return serving(name)[0]  # speculators has no form for it
    if name in DESTINATIONS:
        return DESTINATIONS[name].library
    return DIALECTS[name].engine if name in DIALECTS else "vllm"
