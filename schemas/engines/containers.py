"""How each engine is run in a container: its own image, port, and what its server needs there.

From the engines' own pages: vLLM `docs/deployment/docker.md` and `k8s.md`; SGLang `docs/get-started/install` and
`docker/compose.yaml`. Images are tagged by the release, ``v0.32.0``.
"""

from dataclasses import dataclass

from eagle3_interop.schemas.engines.releases import RELEASES, newest
from eagle3_interop.schemas.engines.versions import begins, numbers


@dataclass(frozen=True)
class Containing:
    """One engine in a container.

    Attributes:
        image: its name, without the tag.
        port: on which its server listens, unless told otherwise.
        outside: the flag and its value that let the server be reached from outside; none where it always can.
        devices: flags that multiply the number of GPUs, each with its aliases.
        shared: flags under which the last of `devices` shares the others' GPUs.
    """

    image: str
    port: int
    outside: tuple[str, str] | None
    devices: tuple[tuple[str, ...], ...]
    shared: tuple[str, ...] = ()


CONTAINERS = {
    "vllm": Containing(
        "vllm/vllm-openai",
        8000,
        None,
        (
            ("tensor-parallel-size", "tp"),
            ("pipeline-parallel-size", "pp"),
            ("data-parallel-size", "dp"),
        ),
    ),
    "sglang": Containing(
        "lmsysorg/sglang",
        30000,
        ("--host", "0.0.0.0"),  # noqa: S104 - of a container
        (
            ("tensor-parallel-size", "tp-size", "tp"),
            ("pipeline-parallel-size", "pp-size", "pp"),
            ("data-parallel-size", "dp-size", "dp"),
        ),
        ("enable-dp-attention",),
    ),
}


def image_of(engine: str, version: str | None = None) -> str:
    """The image of a release.

    Args:
        engine: its name.
        version: as it was named: the start of a version stands for its newest patch that is known; None for
            the newest release.
    """
    wanted = version or newest(engine).until
    known = [end for one in RELEASES[engine] for end in (one.since, one.until)]
    fitting = [full for full in known if begins(full, wanted)]
    whole = max(fitting, key=numbers, default=wanted).partition("+")[0]
    missing = 3 - whole.count(".") - 1
    return f"{CONTAINERS[engine].image}:v{whole}{'.0' * max(0, missing)}"
