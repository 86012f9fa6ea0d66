"""Which SGLang the classes were run with: they subclass its internals, and no other version is promised."""

import os
from importlib.metadata import PackageNotFoundError, version

TESTED = ("0.5.23", "0.5.22", "0.5.21")
"""SGLang versions that the plugin was run with.

The first: counters equal to vLLM's in whole engines, for every feature. The others: counters in a whole
engine for the normed residual, and for each feature the draft class's logits, bit for bit the first's.
"""

OVERRIDE = "EAGLE3_SGLANG_ANY_VERSION"


class UntestedSGLangError(RuntimeError):
    """The installed SGLang is none that the plugin was run with."""


def refuse_untested_sglang() -> None:
    """Stop SGLang where nobody has compared what it computes, unless the user insists.

    Raises:
        UntestedSGLangError: SGLang is another version and ``EAGLE3_SGLANG_ANY_VERSION=1`` is not set.
    """
    try:
        installed = version("sglang")
    except PackageNotFoundError:
        return  # imported somewhere else than in a server: nothing to refuse
    if installed.partition("+")[0] in TESTED or os.environ.get(OVERRIDE) == "1":
        return
    raise UntestedSGLangError(
        f"eagle3_interop.sglang_plugin was run with SGLang {', '.join(TESTED)}, and this is {installed}. "
        f"Its classes subclass SGLang's own, so another version may compute another network. Install a "
        f"tested version, or set {OVERRIDE}=1 and compare the accept length with eagle3-validate."
    )
