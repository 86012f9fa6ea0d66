"""What the caller names: folders, Hub ids and dtypes, as the commands take them."""

from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Literal, ParamSpec, TypeVar, get_args, overload

from pydantic import ValidationError, validate_call

from eagle3_interop.convert.console import Dtype as AnyDtype
from eagle3_interop.convert.console import dtype_named
from eagle3_interop.convert.read.folders import hub_id
from eagle3_interop.schemas.findings import Usage

Name = str | Path
"""A folder, or a Hub id ``ORG/NAME[@REVISION]``."""

Dtype = Literal["bfloat16", "float16", "float32"]

_Given = ParamSpec("_Given")
_Returned = TypeVar("_Returned")


def checked(function: Callable[_Given, _Returned]) -> Callable[_Given, _Returned]:
    """The function, which says of an argument that is none of its kind what is wrong with it.

    Raises:
        Usage: by the function, for such an argument.
    """
    called = validate_call(function)

    @wraps(function)
    def checking(*arguments: _Given.args, **options: _Given.kwargs) -> _Returned:
        try:
            return called(*arguments, **options)
        except ValidationError as error:
            if error.title != function.__name__:  # of what is done, not of the call
                raise
            first = error.errors(include_url=False)[0]
            name = ".".join(map(str, first["loc"]))
            raise Usage(f"{function.__name__}: {name}: {first['msg']}.") from None

    return checking


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
