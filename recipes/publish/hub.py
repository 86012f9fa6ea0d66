"""The Hub's side of a push: look, commit once, read back. Failures become one line each."""

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, cast

from eagle3_interop.convert.read.checkpoint import (
    BIN_INDEX,
    SAFETENSORS_INDEX,
    Checkpoint,
    open_checkpoint,
)
from eagle3_interop.recipes.publish.sealed import Changed, Sealed, git_blob
from eagle3_interop.schemas.findings import Refused, Unavailable, Usage, refusal

if TYPE_CHECKING:
    from huggingface_hub import HfApi

CARD = "README.md"

Content = Sealed | bytes
"""What is sent of a file: as it was hashed, or bytes that were made here."""


class NotWhatWasSent(Unavailable):
    """The commit holds something else than what was validated."""


@dataclass(frozen=True)
class Remote:
    """A repository as it is before the push.

    Attributes:
        commit: head of the branch.
        private: it is not public.
        names: its files.
    """

    commit: str
    private: bool
    names: frozenset[str]


@dataclass(frozen=True)
class Place:
    """Where a push goes.

    Attributes:
        repo_id: ORG/NAME.
        revision: the branch; None is the default one.
        create_pr: propose a pull request instead of committing.
        private: make a new repository private.
    """

    repo_id: str
    revision: str | None = None
    create_pr: bool = False
    private: bool = False


@dataclass(frozen=True)
class Pushed:
    """What came of it.

    Attributes:
        commit: the commit that holds the files.
        url: its page, or the pull request's.
        pull_request: the pull request's page.
    """

    commit: str
    url: str
    pull_request: str | None = None


def api() -> "HfApi":
    """A client with the token of the environment or the login.

    Raises:
        Unavailable: there is no token.
    """
    from importlib.metadata import version

    from huggingface_hub import HfApi, get_token

    if get_token() is None:
        raise Unavailable("no token for the Hub: run `hf auth login`, or set HF_TOKEN.")
    return HfApi(library_name="eagle3-interop", library_version=version("eagle3-interop"))


@contextmanager
def failures(place: str) -> Iterator[None]:
    """Turn whatever the client raises into one line.

    Raises:
        Unavailable: with what went wrong, and what to do.
    """
    try:
        yield
    except Exception as error:  # the errors of requests, httpx and the client have no common base
        raise Unavailable(f"{place}: {_reason(error)}") from error


def _reason(error: BaseException) -> str:
    status = _status(error)
    if status is not None and status in _STATUS:
        return f"{_STATUS[status]} ({status})"
    if status is not None and status >= 500:
        return f"the Hub failed ({status}), after the client's own retries: run this again later"
    cause = _root(error)
    text = str(cause).strip().partition("\n")[0] or type(cause).__name__
    if status is None and _is_network(cause):
        return f"the Hub cannot be reached: {_without_token(text)}"
    return _without_token(text)


_RETRY = "run this again; files that are up are not sent twice"
_STATUS = {
    401: "the Hub does not accept the token: run `hf auth login`, or set HF_TOKEN",
    403: "the token may not write there; --create-pr proposes the change instead",
    404: "there is no such repository or revision, or the token may not see it",
    409: f"the repository was changed meanwhile: {_RETRY}",
    412: f"the repository was changed meanwhile: {_RETRY}",
    429: f"the Hub's rate limit is reached: wait, then {_RETRY}",
}


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__


def _status(error: BaseException) -> int | None:
    for one in _chain(error):
        status = getattr(getattr(one, "response", None), "status_code", None)
        if isinstance(status, int):
            return status
    return None


def _root(error: BaseException) -> BaseException:
    """The first error of the client itself, below whatever it was wrapped in."""
    return next((one for one in _chain(error) if not isinstance(one, RuntimeError)), error)


def _is_network(error: BaseException) -> bool:
    names = {kind.__name__ for kind in type(error).__mro__}
    return bool(names & {"TransportError", "ConnectionError", "OfflineModeIsEnabled", "Timeout"})


def _without_token(text: str) -> str:
    from huggingface_hub import get_token

    token = get_token()
    return text.replace(token, "***") if token else text


def look(client: "HfApi", repo_id: str, revision: str | None) -> Remote | None:
    """A repository, or None where there is no such repository or branch.

    Raises:
        Unavailable: the Hub failed.
    """
    from huggingface_hub.errors import RepositoryNotFoundError, RevisionNotFoundError

    with failures(repo_id):
        try:
            info = client.model_info(repo_id, revision=revision)
        except (RepositoryNotFoundError, RevisionNotFoundError):
            return None
        names = frozenset(file.rfilename for file in info.siblings or ())
        return Remote(str(info.sha), bool(info.private), names)


def prepare(client: "HfApi", place: Place, own: Sequence[str]) -> Remote:
    """The repository and branch to push to, made where they are missing.

    Args:
        client: of `api`.
        place: where the push goes.
        own: names of the weight and index files that will be pushed.

    Raises:
        Usage: ``--private`` for a repository that is public.
        Refused: it holds weights that would stand beside these (code ``other-weights``).
        Unavailable: the Hub failed, or a pull request has nothing to be based on.
    """
    default = look(client, place.repo_id, None)
    if default is None:
        default = _create(client, place)
    elif place.private and not default.private:
        raise Usage(
            f"--private: {place.repo_id} exists and is public; make it private on the Hub first."
        )
    remote = default if place.revision is None else look(client, place.repo_id, place.revision)
    if remote is None:
        remote = _branch(client, place, default)
    _check_weights(remote, place, own)
    return remote


def _create(client: "HfApi", place: Place) -> Remote:
    if place.create_pr:
        raise Unavailable(f"{place.repo_id}: there is no such repository to propose a change to.")
    with failures(place.repo_id):
        client.create_repo(place.repo_id, private=place.private or None, exist_ok=True)
    remote = look(client, place.repo_id, None)
    if remote is None:
        raise Unavailable(f"{place.repo_id}: the Hub made the repository, and does not show it.")
    return remote


def _branch(client: "HfApi", place: Place, default: Remote) -> Remote:
    revision = str(place.revision)
    if place.create_pr or revision.startswith("refs/"):
        raise Unavailable(f"{place.repo_id}: there is no revision {revision}.")
    with failures(place.repo_id):
        client.create_branch(place.repo_id, branch=revision, exist_ok=True)
    return default


def _check_weights(remote: Remote, place: Place, own: Sequence[str]) -> None:
    """Loaders go by every safetensors file and index that they find: none may be from another set."""
    pickled = not any(name.endswith(".safetensors") for name in own)

    def is_read(name: str) -> bool:
        if name.endswith(".safetensors") or name == SAFETENSORS_INDEX:
            return "/" not in name
        return pickled and name.startswith("pytorch_model") and name.endswith((".bin", BIN_INDEX))

    others = sorted(name for name in remote.names if is_read(name) and name not in own)
    if others:
        message = f"holds {', '.join(others)}, which loaders would take for a part of this draft."
        fix = "Delete them there, or push to another repository or --revision."
        raise refusal("other-weights", place.repo_id, message, fix)


def card_of(client: "HfApi", repo_id: str, remote: Remote) -> str | None:
    """The card that the repository has.

    Raises:
        Unavailable: the Hub failed.
    """
    return read_card(client, repo_id, remote.commit) if CARD in remote.names else None


def read_card(client: "HfApi", repo_id: str, revision: str | None) -> str:
    """README.md of a repository, line ends as they are.

    Raises:
        Unavailable: the Hub failed, or has none.
    """
    with failures(repo_id):
        path = client.hf_hub_download(repo_id, CARD, revision=revision)
        return Path(path).read_bytes().decode("utf-8-sig")


def commit(
    client: "HfApi", place: Place, remote: Remote, contents: Mapping[str, Content], description: str
) -> Pushed:
    """Send everything in one commit; large files go up first, and not if they are up already.

    Raises:
        Unavailable: the Hub failed, somebody else committed meanwhile, or a file is no longer what was hashed.
    """
    from huggingface_hub import CommitOperationAdd

    with failures(place.repo_id):
        operations = [
            CommitOperationAdd(name, cast("bytes | BinaryIO", content))
            for name, content in contents.items()
        ]
        for operation, content in zip(operations, contents.values(), strict=True):
            if operation.upload_info.sha256.hex() != _sha256(content):
                raise Changed(operation.path_in_repo)
        info = client.create_commit(
            place.repo_id,
            operations,
            commit_message="Publish a validated EAGLE-3 draft",
            commit_description=description,
            revision=place.revision,
            create_pr=place.create_pr,
            parent_commit=remote.commit,
        )
    return Pushed(str(info.oid), info.pr_url or str(info.commit_url), info.pr_url)


def read_back(
    client: "HfApi",
    repo_id: str,
    commit: str,
    contents: Mapping[str, Content],
    checkpoint: Checkpoint,
) -> None:
    """Compare what the Hub now has with what was to be sent: every hash, then headers and config.

    Args:
        client: of `api`.
        repo_id: the repository.
        commit: of the push.
        contents: what was sent.
        checkpoint: the folder, opened.

    Raises:
        NotWhatWasSent: something differs.
        Unavailable: the Hub failed.
    """
    with failures(repo_id):
        info = client.model_info(repo_id, revision=commit, files_metadata=True)
        files = {file.rfilename: file for file in info.siblings or ()}
    for name, content in contents.items():
        file = files.get(name)
        if file is None:
            message = f"{repo_id}@{commit}: {name} is not there (does a .gitignore exclude it?)."
            raise NotWhatWasSent(message)
        there = file.lfs.sha256 if file.lfs else file.blob_id
        here = _sha256(content) if file.lfs else _git_sha1(content)
        if there != here:
            raise NotWhatWasSent(f"{repo_id}@{commit}: {name} is not what was sent ({there}).")
    _compare_headers(f"{repo_id}@{commit}", checkpoint)


def _compare_headers(spec: str, here: Checkpoint) -> None:
    """Open the repository as any loader would, by range requests."""
    try:
        there = open_checkpoint(spec, weights=False)
    except Refused as refused:
        raise NotWhatWasSent(f"{spec}: {refused}") from refused
    if there.config != here.config or there.tensors != here.tensors:
        raise NotWhatWasSent(f"{spec}: reads back as another checkpoint than {here.path}.")


def _sha256(content: Content) -> str:
    return hashlib.sha256(content).hexdigest() if isinstance(content, bytes) else content.sha256


def _git_sha1(content: Content) -> str:
    if isinstance(content, Sealed):
        return content.git_sha1
    blob = git_blob(len(content))
    blob.update(content)
    return blob.hexdigest()
