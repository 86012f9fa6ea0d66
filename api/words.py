"""What the caller names: folders, Hub ids and dtypes, as the commands take them."""

from pathlib import Path
from typing import Literal, get_args, overload

from eagle3_interop.convert.console import Dtype as AnyDtype
from eagle3_interop.convert.console import dtype_named
from eagle3_interop.convert.read.folders import hub_id
from eagle3_interop.schemas.findings import Usage

Name = str | Path
"""A folder, or a Hub id ``ORG/NAME[@REVISION]``."""

Dtype = Literal["bfloat16", "float16", "float32"]


@overload
def model(name: Name) -> str: ...
@overload
def model(name: Name | None) -> str | None: ...
def model(name: Name | None) -> str | None:
    """A model as the commands name it."""
    return None if name is None else hub_id(str(name))


def path(name: Name | None) -> Path | None:
    """A path, if one was given."""
    return None if name is None else Path(name)


def text(name: Name | None) -> str | None:
    """The same as a text."""
    return None if name is None else str(name)


def dtype(name: str) -> str:
    """A dtype by its full name.

    Raises:
        Usage: there is no such one.
    """
    if name not in get_args(AnyDtype):
        raise Usage(f"dtype {name!r}: give bfloat16, float16 or float32.")
    return dtype_named(name)
