"""A launch command in a container: what surrounds it, as a value, and the files that say so."""

import re
import shlex
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import version
from math import prod
from pathlib import Path
from typing import Any, Literal

import yaml

from eagle3_interop.convert.read.folders import local_folder
from eagle3_interop.convert.serve.launch import Command, Serving
from eagle3_interop.convert.serve.parse import Launch, named
from eagle3_interop.schemas.engines.containers import CONTAINERS, image_of
from eagle3_interop.schemas.findings import Usage
from eagle3_interop.schemas.hub import is_hub_id

Format = Literal["shell", "docker", "compose", "k8s"]

CACHE = "/root/.cache/huggingface"
"""Where the engines' images keep what they download from the Hub."""

_HERE = "${HF_HOME:-$HOME/.cache/huggingface}"
_TOKEN = "HF_TOKEN"  # noqa: S105 - a variable's name
_RUN = 'exec "$0" "$@"'
_PLUGIN = "eagle3-interop"
_FLAG = re.compile(r"--?[A-Za-z]")


def inside(name: str) -> str:
    """A model as a container shall find it: a local folder by its own whole path, where it is mounted too."""
    model, revision = named(name)
    folder = None if revision else local_folder(model)
    return name if folder is None else str(Path(model).resolve())


def target_inside(name: str | None, form: Format) -> str:
    """`inside` of the target that the draft's own folder names.

    Raises:
        Usage: it names none that is here or on the Hub.
    """
    if name is None:
        raise Usage(f"--format {form}: the draft does not name its target: give --target.")
    if local_folder(name) is None and not is_hub_id(name):
        raise Usage(
            f"--format {form}: {name}, the target that the draft names, is neither a folder here nor a Hub id: "
            "give --target."
        )
    return inside(name)


@dataclass(frozen=True)
class Contained:
    """A launch command and what its container needs.

    Attributes:
        command: what runs in it.
        image: of the engine.
        port: on which it listens.
        gpus: how many it takes.
        mounts: folders of this machine, each at its own path.
        hub: it downloads from the Hub, too.
        name: of the container.
    """

    command: Command
    image: str
    port: int
    gpus: int
    mounts: tuple[str, ...]
    hub: bool
    name: str

    @property
    def words(self) -> tuple[str, ...]:
        """What the container runs: the command itself, or a shell that prepares it first."""
        before = []
        if self.command.env:
            before.append(shlex.join(["pip", "install", f"{_PLUGIN}=={version(_PLUGIN)}"]))
        if self.command.before:
            before.append(shlex.join(self.command.before))
        words = self.command.words
        return ("sh", "-c", " && ".join([*before, _RUN]), *words) if before else words


def contained(serving: Serving, command: Command, releases: tuple[str, ...] = ()) -> Contained:
    """What a container needs to run this command.

    Args:
        serving: what is served; local folders by their whole paths (`inside`).
        command: that serves it.
        releases: versions of the engine that were named; the last one's image is taken.

    Raises:
        Usage: a flag that counts GPUs, or the port, is no number.
    """
    engine = serving.engine
    around = CONTAINERS[engine]
    launch = Launch(engine, command.line, serving.config, serving.checkpoint, None)
    if around.outside is not None and launch.absent(around.outside[0].removeprefix("--")):
        command = command.with_flags(around.outside)
    apart = around.devices[:-1] if not launch.absent(*around.shared) else around.devices
    models = [named(name)[0] for name in (serving.target, serving.checkpoint)]
    local = [local_folder(model) is not None for model in models]
    roots = (
        root
        for model, is_local in zip(models, local, strict=True)
        if is_local
        for root in _roots(model)
    )
    return Contained(
        command,
        image_of(engine, releases[-1] if releases else None),
        launch.number("port") or around.port,
        prod(launch.number(*names) or 1 for names in apart),
        tuple(dict.fromkeys(roots)),
        not all(local),
        f"{engine}-eagle3",
    )


def _roots(model: str) -> list[str]:
    """The folder itself, and those that its links lead into."""
    folder = Path(model).resolve()
    linked = {path.resolve().parent for path in folder.rglob("*") if path.is_symlink()}
    outside = sorted(place for place in linked if not place.is_relative_to(folder))
    return [str(place) for place in (folder, *outside)]


def as_docker(made: Contained) -> str:
    """``docker run``, as a shell takes it."""
    first, *rest = made.words
    options = [
        ["docker", "run", "--rm", "--name", made.name],
        ["--gpus", "all", "--ipc=host"],
        ["-p", f"{made.port}:{made.port}"],
        *(["--mount", _mounted(root)] for root in made.mounts),
        *(["-e", f"{name}={value}"] for name, value in made.command.env),
        *([["-e", _TOKEN]] if made.hub else []),
        ["--entrypoint", first, made.image],
    ]
    lines = [shlex.join(line) for line in options]
    if made.hub:
        lines.insert(3, f'-v "{_HERE}:{CACHE}"')
    return " \\\n    ".join([*lines, shlex.join(rest)])


def _mounted(root: str) -> str:
    """A bind mount; the value is CSV, in which a comma or a quote is quoted."""
    fields = ["type=bind", f"source={root}", f"target={root}", "readonly"]
    return ",".join(
        '"' + field.replace('"', '""') + '"' if set(field) & set(',"') else field
        for field in fields
    )


def as_compose(made: Contained) -> str:
    """A ``compose.yaml``."""
    volumes: list[Any] = [
        {"type": "bind", "source": _dollars(root), "target": _dollars(root), "read_only": True}
        for root in made.mounts
    ]
    if made.hub:
        cache = "${HF_HOME:-${HOME}/.cache/huggingface}"
        volumes.append({"type": "bind", "source": cache, "target": CACHE})
    environment: dict[str, str | None] = dict(made.command.env)
    if made.hub:
        environment[_TOKEN] = None
    devices = [{"driver": "nvidia", "count": made.gpus, "capabilities": ["gpu"]}]
    service = {
        "image": made.image,
        "entrypoint": [_dollars(made.words[0])],
        "command": [_dollars(word) for word in made.words[1:]],
        "ports": [f"{made.port}:{made.port}"],
        "ipc": "host",
        **({"environment": environment} if environment else {}),
        **({"volumes": volumes} if volumes else {}),
        "deploy": {"resources": {"reservations": {"devices": devices}}},
    }
    return _yaml({"services": {made.name: service}})


def _dollars(word: str) -> str:
    """Compose puts variables in for single dollars."""
    return word.replace("$", "$$")


def as_k8s(made: Contained) -> str:
    """A Deployment and its Service."""

    def labels() -> dict[str, str]:
        return {"app": made.name}

    volumes: list[dict[str, Any]] = [{"name": "shm", "emptyDir": {"medium": "Memory"}}]
    mounts: list[dict[str, Any]] = [{"name": "shm", "mountPath": "/dev/shm"}]  # noqa: S108 - of a container
    for i, root in enumerate(made.mounts):
        volumes.append({"name": f"model-{i}", "hostPath": {"path": root, "type": "Directory"}})
        mounts.append({"name": f"model-{i}", "mountPath": root, "readOnly": True})
    environment: list[dict[str, Any]] = [
        {"name": name, "value": _references(value)} for name, value in made.command.env
    ]
    if made.hub:
        volumes.append({"name": "hub", "emptyDir": {}})
        mounts.append({"name": "hub", "mountPath": CACHE})
        secret = {"name": "hf-token", "key": "token", "optional": True}
        environment.append({"name": _TOKEN, "valueFrom": {"secretKeyRef": secret}})
    container = {
        "name": made.name,
        "image": made.image,
        "command": [_references(made.words[0])],
        "args": [_references(word) for word in made.words[1:]],
        "ports": [{"containerPort": made.port}],
        **({"env": environment} if environment else {}),
        "resources": {"limits": {"nvidia.com/gpu": made.gpus}},
        "volumeMounts": mounts,
        "readinessProbe": {"httpGet": {"path": "/health", "port": made.port}, "periodSeconds": 10},
    }
    deployment = {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": made.name, "labels": labels()},
        "spec": {
            "replicas": 1,
            "selector": {"matchLabels": labels()},
            "template": {
                "metadata": {"labels": labels()},
                "spec": {"containers": [container], "volumes": volumes},
            },
        },
    }
    service = {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": made.name},
        "spec": {"selector": labels(), "ports": [{"port": made.port, "targetPort": made.port}]},
    }
    remarks = []
    if made.mounts:
        remarks.append(
            "# The node must hold the folders of hostPath; else mount a PersistentVolumeClaim at these paths.\n"
        )
    if made.hub:
        remarks.append(
            "# What is downloaded lives as long as the pod. The token: kubectl create secret generic hf-token --from-literal=token=...\n"
        )
    return "".join(remarks) + _yaml(deployment) + "---\n" + _yaml(service)


def _references(word: str) -> str:
    """Kubernetes puts variables in for ``$(NAME)``; two dollars are one."""
    return word.replace("$(", "$$(")


def _yaml(value: dict[str, Any]) -> str:
    text: str = yaml.safe_dump(value, sort_keys=False, allow_unicode=True, width=2**20)
    return text


FORMATS: dict[Format, Callable[[Contained], str]] = {
    "docker": as_docker,
    "compose": as_compose,
    "k8s": as_k8s,
}


def checked_extra(words: tuple[str, ...], serving: Serving, command: Command) -> Command:
    """The command with the engine's own flags of the user behind it.

    Raises:
        Usage: no flag stands first, or one that the command has already.
    """
    if not words:
        return command
    if not _FLAG.match(words[0]):
        example = {"sglang": "--tp 8", "vllm": "--tensor-parallel-size 8"}[serving.engine]
        raise Usage(
            f"{words[0]!r} is no flag: the engine's own flags stand behind --, such as -- {example}."
        )
    extra = Launch(serving.engine, shlex.join(words), serving.config, serving.checkpoint, None)
    printed = {f"--{name}" for name in extra.flags} & {flag for flag, _ in command.flags}
    if printed:
        raise Usage(
            f"{', '.join(sorted(printed))} is in the command already, and an engine heeds the last one only: "
            "leave it out, use this command's own options, or judge a command of yours with --check."
        )
    port = extra.number("port")
    if port is not None and not 0 < port < 2**16:
        raise Usage(f"--port {port}: give a number from 1 to 65535.")
    return command.with_words(words)
