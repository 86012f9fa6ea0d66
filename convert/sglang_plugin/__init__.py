"""EAGLE-3 drafts that SGLang's own class cannot compute, run by SGLang all the same.

``SGLANG_EXTERNAL_MODEL_PACKAGE=eagle3_interop.sglang_plugin`` makes SGLang import this package and
register the classes of `drafts`. It needs nothing but the standard library and the SGLang that imports
it; the rest of eagle3-interop is not touched. See ``docs/sglang-plugin.md``.
"""

from eagle3_interop.sglang_plugin.versions import refuse_untested_sglang

# Here and not beside the classes: SGLang turns a failing module of an external package into a
# warning, and only a failing package stops it.
refuse_untested_sglang()
