"""Publishing a draft: gate, card, one commit, and the look whether it arrived."""

import shlex
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from eagle3_interop.recipes.publish import card, gate, hub
from eagle3_interop.recipes.publish.bundle import (
    Bundle,
    collect,
    public_bytes,
    public_provenance,
)
from eagle3_interop.recipes.publish.hub import Content, Place, Pushed, Remote
from eagle3_interop.recipes.publish.markdown import plain
from eagle3_interop.recipes.publish.sealed import Sealed
from eagle3_interop.recipes.publish.section import PLOT, Facts
from eagle3_interop.schemas.findings import Refused, Unavailable
from eagle3_interop.schemas.hub import is_hub_id
from eagle3_interop.schemas.registry import recognise
from eagle3_interop.schemas.report import Report

if TYPE_CHECKING:
    from huggingface_hub import CardData, HfApi


@dataclass(frozen=True)
class Outcome:
    """What a push did, or would do.

    Attributes:
        files: name to sha256 of every file of the checkpoint that is sent, as validated.
        left: what lies in the folder and stays there.
        card: the model card.
        notes: what somebody may want to know.
        pushed: where it went; None for a dry run.
    """

    files: dict[str, str]
    left: tuple[str, ...]
    card: str
    notes: tuple[str, ...] = ()
    pushed: Pushed | None = None


class Failed(Exception):  # noqa: N818 - what happened, not a malfunction
    """The gate did not open (exit code 1). Nothing was sent."""

    def __init__(self, reasons: Sequence[str]) -> None:
        """Keep every reason."""
        self.reasons = tuple(reasons)
        super().__init__("; ".join(reasons))


def push(
    checkpoint: Path,
    place: Place,
    report: Path,
    *,
    min_accept_length: float | None = None,
    allow: Collection[str] = (),
    dry_run: bool = False,
) -> Outcome:
    """Publish a checkpoint, if its report lets it through.

    Args:
        checkpoint: the local folder.
        place: the repository and branch, and how to commit there.
        report: what ``eagle3-validate --json`` wrote about this folder.
        min_accept_length: what the measured accept length must reach.
        allow: codes of warnings in the report that are accepted.
        dry_run: decide and write the card, without asking the Hub anything.

    Raises:
        Failed: the gate, with every reason.
        Usage: the report or an option makes no sense.
        Refused: the folder, the repository or a card cannot be published as it is.
        Unavailable: the disk or the Hub failed.
    """
    gate.check_allowed(allow)
    read = gate.read_report(report)
    bundle = collect(checkpoint)
    with bundle.sealed() as sealed:
        return _push(bundle, sealed, place, read, min_accept_length, allow, dry_run=dry_run)


def _push(
    bundle: Bundle,
    sealed: Mapping[str, Sealed],
    place: Place,
    read: Report,
    min_accept_length: float | None,
    allow: Collection[str],
    *,
    dry_run: bool,
) -> Outcome:
    digests = {name: file.sha256 for name, file in sealed.items()}
    reasons = gate.failures(read, digests, allow, min_accept_length, bundle.left)
    if reasons:
        raise Failed(reasons)
    plot = card.draw(read.acceptance) if read.acceptance else None
    # Whatever cannot be published is found before the Hub hears of it.
    text, notes, _ = _contents(bundle, sealed, place, read, allow, plot)
    if dry_run:
        return Outcome(digests, bundle.left, text, notes)
    client = hub.api()
    remote = hub.prepare(client, place, [name for name in digests if _is_weight(name)])
    text, notes, contents = _contents(bundle, sealed, place, read, allow, plot, client, remote)
    pushed = hub.commit(client, place, remote, contents, _description(read))
    try:
        hub.read_back(client, place.repo_id, pushed.commit, contents, bundle.checkpoint)
    except hub.NotWhatWasSent as error:
        raise Unavailable(f"{error} {_taking_back(place, pushed)}") from error
    except Unavailable as error:
        again = "It is not known whether it arrived whole: run this again, which compares it."
        raise Unavailable(f"{error}. The commit {pushed.url} was made. {again}") from error
    if place.create_pr and pushed.pull_request is None:
        notes = (*notes, "nothing differs from what is there: no pull request was opened.")
    return Outcome(digests, bundle.left, text, notes, pushed)


def _is_weight(name: str) -> bool:
    return name.endswith((".safetensors", ".bin", ".index.json"))


def _taking_back(place: Place, pushed: Pushed) -> str:
    """What a commit that is not what was validated means, and how to undo it."""
    if pushed.pull_request:
        return (
            "The pull request holds files that were not validated. "
            f"Close it: {pushed.pull_request}."
        )
    branch = place.revision or "main"
    return (
        f"The branch {branch} of {place.repo_id} now holds files that were not validated. "
        f"Take the commit back: clone the repository, then git checkout {shlex.quote(branch)} && "
        f"git revert --no-edit {pushed.commit} && git push."
    )


def _contents(
    bundle: Bundle,
    sealed: Mapping[str, Sealed],
    place: Place,
    report: Report,
    allow: Collection[str],
    plot: bytes | None,
    client: "HfApi | None" = None,
    remote: Remote | None = None,
) -> tuple[str, tuple[str, ...], dict[str, Content]]:
    """The card, remarks, and all that is sent: the checkpoint's files, the card and its plot."""
    provenance = bundle.provenance or {}
    source, notes = _source_metadata(provenance, client)
    facts = Facts(
        repo_id=place.repo_id,
        layout=_layout(bundle),
        config=bundle.config,
        report=report,
        provenance=public_provenance(provenance),
        allowed=gate.accepted_warnings(report, allow),
        source=source,
        plot=plot is not None,
        revision=None if place.create_pr else place.revision,
    )
    existing, more = _existing_cards(bundle, place, client, remote)
    made = card.make_card(facts, existing)
    text = str(made)
    contents: dict[str, Content] = {
        name: public_bytes(bundle, name) or file for name, file in sealed.items()
    }
    contents[hub.CARD] = text.encode()
    if plot is not None:
        contents[PLOT] = plot
    return text, (*notes, *more, *_missing(made.data, report, plot)), contents


def _layout(bundle: Bundle) -> str:
    """What was written by a conversion, else what the folder is recognised as."""
    output = (bundle.provenance or {}).get("output")
    if isinstance(output, Mapping) and output.get("layout"):
        return str(output["layout"])
    found = recognise(bundle.config)
    return found[0] if found else "vllm"


def _source_metadata(
    provenance: Mapping[str, Any], client: "HfApi | None"
) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Metadata of the source's card: of a folder here, or of its repository on the Hub."""
    source = provenance.get("source") or {}
    spec = str(source.get("path") or "")
    repo = spec.partition("@")[0]
    try:
        if spec and (local := Path(spec) / hub.CARD).is_file():
            return card.metadata(local.read_bytes().decode("utf-8-sig")), ()
        # A folder has no revision, however much its path looks like an id.
        if client is not None and is_hub_id(repo) and source.get("revision"):
            text = hub.read_card(client, repo, source["revision"])
            return card.metadata(text), ()
    except (Refused, Unavailable, OSError, UnicodeDecodeError) as error:
        return {}, (f"the source's card could not be read: {error}",)
    return {}, ()


def _existing_cards(
    bundle: Bundle, place: Place, client: "HfApi | None", remote: Remote | None
) -> tuple[list[str], tuple[str, ...]]:
    cards = []
    if client is not None and remote is not None:
        there = hub.card_of(client, place.repo_id, remote)
        cards = [there] if there is not None else []
    own = bundle.folder / hub.CARD
    if own.is_file():
        cards.append(own.read_bytes().decode("utf-8-sig"))
    if len(cards) == 2 and cards[0].strip() and cards[0] != cards[1]:
        return cards, ("the card on the Hub is kept, and the folder's README.md only fills in.",)
    return cards, ()


def _missing(data: "CardData", report: Report, plot: bytes | None) -> list[str]:
    notes = []
    if data.get("license") is None:
        notes.append("no license is known: add one to README.md's metadata.")
    if data.get("base_model") is None:
        notes.append(
            "the target's Hub id is not known, and the commands say TARGET: convert with "
            "--target-name ORG/NAME."
        )
    if plot is None and report.acceptance and report.acceptance.rates:
        notes.append("no plot: matplotlib comes with eagle3-interop[validate].")
    return notes


def _description(report: Report) -> str:
    gates = "\n".join(
        f"- {plain(gate.name)}: {plain(gate.got)} (wanted {plain(gate.wanted)})"
        for gate in report.gates
    )
    return f"The files were validated by eagle3-validate. Gates passed:\n\n{gates}"
