"""Drafts by name: load, describe, compare, convert, serve. Free of torch."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from eagle3_interop import words
from eagle3_interop.convert import api, commands
from eagle3_interop.convert.decide.loaded import Loaded
from eagle3_interop.convert.decide.overrides import checked_sets, parse_size
from eagle3_interop.convert.serve.container import Format
from eagle3_interop.schemas.options import SHARD_BYTES, Options
from eagle3_interop.words import Dtype, Name

Layout = Literal["speculators", "sglang", "vllm", "auto"]
Destination = Literal["speculators", "sglang", "vllm", "universal"]


@words.checked
def load(
    source: Name,
    *,
    layout: Layout = "auto",
    target: Name | None = None,
    taps: Sequence[int] | None = None,
    sets: Mapping[str, Any] | None = None,
    trainer: str | None = None,
    allow: Sequence[str] = (),
    weights: bool = True,
) -> Loaded:
    """Read a draft by its own framework's rules.

    Args:
        source: folder or Hub id.
        layout: to read it as; recognised by its own signs, unless said.
        target: folder or Hub id of the target.
        taps: order in which the trainer concatenated fc's features (``--taps``).
        sets: dotted path of the description to value (``--set``).
        trainer: whose network it is (``--trainer``).
        allow: codes of what may be lost (``--allow``).
        weights: False reads headers only.

    Returns:
        The draft: ``draft`` describes its network, ``findings`` holds what was said of the folder.

    Raises:
        Refused: it is no draft, another layout, or holds what cannot be understood exactly.
        Usage: an option that does not fit.
        Unavailable: the disk or the Hub failed.
    """
    options = Options(
        target=words.model(target),
        taps=None if taps is None else tuple(taps),
        sets=checked_sets(sets or {}),
        trainer=trainer,
        allow=tuple(allow),
    )
    return api.load(words.model(source), layout, options, weights=weights)


@words.checked
def describe(
    source: Name,
    *,
    target: Name | None = None,
    trainer: str | None = None,
    allow: Sequence[str] = (),
    releases: Sequence[str] = (),
) -> dict[str, Any]:
    """What a draft is, and which engine runs it: ``eagle3-convert inspect``.

    Args:
        source: folder or Hub id.
        target: folder or Hub id of the target.
        trainer: whose network it is (``--trainer``).
        allow: codes of what may be lost (``--allow``).
        releases: of engines, each as ``ENGINE==VERSION`` (``--for``).

    Returns:
        The JSON of ``inspect``. Its ``status`` is ``refused`` where the folder has errors: they stand beside
        the description.

    Raises:
        Refused: it cannot be read at all.
        Usage: an option that does not fit.
        Unavailable: the disk or the Hub failed.
    """
    options = Options(
        target=words.model(target), trainer=trainer, allow=tuple(allow), releases=tuple(releases)
    )
    return commands.inspect(words.model(source), options).report()


@words.checked
def compare(one: Name, other: Name, *, target: Name | None = None) -> dict[str, Any]:
    """Whether two drafts are the same network: ``eagle3-convert diff``.

    Args:
        one: folder or Hub id.
        other: likewise, in any layout.
        target: folder or Hub id of their target.

    Returns:
        The JSON of ``diff``; its ``status`` is ``same`` or ``different``.

    Raises:
        Refused: one of them cannot be understood exactly.
        Unavailable: the disk or the Hub failed.
    """
    names = (words.model(one), words.model(other))
    return commands.compare(*names, Options(target=words.model(target))).report()


@words.checked
def convert(
    source: Name,
    output: str | Path,
    destination: Destination,
    *,
    layout: Layout = "auto",
    target: Name | None = None,
    target_name: str | None = None,
    stock: bool = False,
    taps: Sequence[int] | None = None,
    sets: Mapping[str, Any] | None = None,
    trainer: str | None = None,
    allow: Sequence[str] = (),
    releases: Sequence[str] = (),
    dtype: Dtype | None = None,
    dequantize: bool = False,
    max_shard_size: str | int = SHARD_BYTES,
    canonical_names: bool = False,
    link: bool = False,
    digest: bool = False,
    overwrite: bool = False,
    dry_run: bool = False,
) -> dict[str, Any]:
    """Write a draft in another layout: ``eagle3-convert LAYOUT-to-DESTINATION``.

    Args:
        source: folder or Hub id.
        output: the folder to write.
        destination: the layout to write; ``universal`` for every engine that can run the network.
        layout: to read the source as; recognised by its own signs, unless said.
        target: folder or Hub id of the target.
        target_name: Hub id of the target, to be written into the output (``--target-name``).
        stock: refuse what needs the SGLang plugin (``--stock``).
        taps: order in which the trainer concatenated fc's features (``--taps``).
        sets: dotted path of the description to value (``--set``).
        trainer: whose network it is (``--trainer``).
        allow: codes of what may be lost (``--allow``).
        releases: of engines that have to run the output, each as ``ENGINE==VERSION`` (``--for``).
        dtype: cast the weights; as stored, unless given.
        dequantize: write quantised weights as the plain ones that they stand for.
        max_shard_size: of a weight file that has to be rewritten: bytes, or a text such as ``5GB``.
        canonical_names: rename all tensors to the destination's usual names.
        link: hard-link files that do not change.
        digest: record the sha256 of weight files in ``eagle3_interop.json``.
        overwrite: replace an earlier output of this tool.
        dry_run: decide everything and write nothing.

    Returns:
        The JSON of a conversion.

    Raises:
        Refused: it is no draft, or the destination cannot express its network exactly; nothing was written.
        Usage: options that do not fit, or a place that is taken.
        Unavailable: the disk or the Hub failed.
    """
    options = Options(
        target=words.model(target),
        target_name=target_name,
        stock=stock,
        taps=None if taps is None else tuple(taps),
        sets=checked_sets(sets or {}),
        trainer=trainer,
        allow=tuple(allow),
        releases=tuple(releases),
        dtype=None if dtype is None else words.dtype(dtype),
        dequantize=dequantize,
        max_shard_bytes=parse_size(str(max_shard_size)),
        canonical_names=canonical_names,
    )
    return commands.convert(
        words.model(source),
        output,
        destination,
        layout=layout,
        options=options,
        link=link,
        digest=digest,
        overwrite=overwrite,
        dry_run=dry_run,
    ).report()


@words.checked
def serve(
    source: Name,
    engine: Literal["vllm", "sglang"],
    *,
    target: Name | None = None,
    num_draft_tokens: int | None = None,
    topk: int = 1,
    check: str | None = None,
    releases: Sequence[str] = (),
    form: Format = "shell",
    extra: Sequence[str] = (),
) -> dict[str, Any]:
    """The launch command of a draft, or a judgement of yours: ``eagle3-convert serve``.

    Args:
        source: folder or Hub id.
        engine: that serves it.
        target: folder or Hub id of the target.
        num_draft_tokens: K, proposed a step; what the checkpoint recommends, else 3, unless given.
        topk: branches of SGLang's trees; 1 drafts a chain.
        check: a command of yours, to be judged.
        releases: of the engine, each as ``ENGINE==VERSION`` (``--for``).
        form: the command for a shell, or what runs it in a container (``--format``).
        extra: flags of the engine's own, which stand behind ``--`` on the command line.

    Returns:
        The JSON of ``serve``; its ``status`` is ``wrong`` where the command is.

    Raises:
        Refused: the engine does not run this folder right.
        Usage: what the engine has no such command for.
        Unavailable: the disk or the Hub failed.
    """
    return commands.serve(
        words.model(source),
        engine,
        target=words.model(target),
        num_draft_tokens=num_draft_tokens,
        topk=topk,
        check=check,
        releases=releases,
        form=form,
        extra=extra,
    ).report()
