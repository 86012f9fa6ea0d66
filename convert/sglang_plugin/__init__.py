"""EAGLE-3 drafts that SGLang's own class cannot compute, run by SGLang all the same.

``SGLANG_EXTERNAL_MODEL_PACKAGE=eagle3_interop.sglang_plugin`` makes SGLang import this package and
register the classes of `drafts`. Beside the SGLang that imports it, it needs pydantic, which SGLang brings,
and three files of ours, ``schemas/{draft,parameters,quantisation}.py``. See ``docs/sglang-plugin.md``.

All that could be missing is imported here: SGLang turns a failing module of an external package into a
warning, and only a failing package stops it.
"""

try:
    from eagle3_interop.schemas import draft, parameters
except ImportError as error:
    raise ImportError(
        "eagle3_interop.sglang_plugin needs eagle3_interop.schemas and pydantic: install eagle3-interop, or "
        "copy the folder schemas beside sglang_plugin, as docs/sglang-plugin.md shows"
    ) from error
from eagle3_interop.sglang_plugin.versions import refuse_untested_sglang

__all__ = ["draft", "parameters"]

refuse_untested_sglang()
