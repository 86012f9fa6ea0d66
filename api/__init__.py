"""eagle3-interop as a library: each function is a command, and returns what that prints as JSON.

    import eagle3_interop

    eagle3_interop.describe("some-draft")["engines"]["vllm"]["as_is"]

Nothing else is imported before it is asked for: a server that loads the SGLang plugin imports this package too.
`docs/api.md` has every function with an example.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from eagle3_interop.convert.decide.loaded import Loaded
    from eagle3_interop.drafts import compare, convert, describe, load, serve
    from eagle3_interop.measures import diagnose, record, report, validate
    from eagle3_interop.schemas.comparison import Comparison
    from eagle3_interop.schemas.findings import Error, Finding, Refused, Unavailable, Usage
    from eagle3_interop.schemas.report import Report
    from eagle3_interop.schemas.streams import StreamsManifest

    __version__: str

_HOMES = {
    "drafts": ("compare", "describe", "load", "serve"),
    "measures": ("diagnose", "record", "report", "validate"),
    "convert.decide.loaded": ("Loaded",),
    "schemas.comparison": ("Comparison",),
    "schemas.findings": ("Error", "Finding", "Refused", "Unavailable", "Usage"),
    "schemas.report": ("Report",),
    "schemas.streams": ("StreamsManifest",),
}
"""Where each name is at home. `convert` is a subpackage as well, and calls the function of `drafts` itself."""

_MODULES = {name: module for module, names in _HOMES.items() for name in names}

__all__ = [
    "Comparison",
    "Error",
    "Finding",
    "Loaded",
    "Refused",
    "Report",
    "StreamsManifest",
    "Unavailable",
    "Usage",
    "__version__",
    "compare",
    "convert",
    "describe",
    "diagnose",
    "load",
    "record",
    "report",
    "serve",
    "validate",
]


def __getattr__(name: str) -> Any:  # noqa: ANN401 - whatever has that name
    if name == "__version__":
        from importlib.metadata import version

        return version("eagle3-interop")
    if name == "convert":
        return import_module("eagle3_interop.convert")
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
