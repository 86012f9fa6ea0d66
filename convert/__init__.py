"""Moving a draft between layouts: headers to plan, plan to bytes, and the commands.

The package's own function of that name, `eagle3_interop.convert(SOURCE, OUTPUT, DESTINATION)`, has to be this module:
a subpackage takes its parent's attribute as soon as it is imported.
"""

import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from inspect import Signature


class _Called(ModuleType):
    """This module, which converts when it is called."""

    def __call__(self, *arguments: Any, **options: Any) -> dict[str, Any]:  # noqa: ANN401 - of `drafts.convert`
        """Convert a draft; see `eagle3_interop.drafts.convert`."""
        from eagle3_interop.drafts import convert

        return convert(*arguments, **options)

    @property
    def __signature__(self) -> "Signature":
        """For `inspect.signature`, and the editors that ask it."""
        from inspect import signature

        from eagle3_interop.drafts import convert

        return signature(convert)


sys.modules[__name__].__class__ = _Called
