"""JSON from outside: it becomes a value that holds together, or one error that says where it does not."""

from typing import Any, TypeVar

from pydantic import TypeAdapter, ValidationError

from .errors import OrchestratorError

T = TypeVar("T")


def read_json(
    kind: type[T], text: str, raising: type[OrchestratorError], what: str, do: str, name: str = ""
) -> T:
    """`text` as a `kind`. Raises `raising` for anything else, naming the first field that is wrong.

    what: how to call what was expected. do: what to do about it. name: what the text is called, if anything.
    """
    try:
        return TypeAdapter(kind).validate_json(text)
    except ValidationError as error:
        problem = first_problem(error)
        raise raising(f"{problem} of {name}" if name else problem, what, do) from error


def read_data(kind: type[T], data: Any, raising: type[OrchestratorError], what: str, do: str) -> T:
    """As `read_json`, for what a JSON parser has made of the text."""
    try:
        return TypeAdapter(kind).validate_python(data)
    except ValidationError as error:
        raise raising(first_problem(error), what, do) from error


def first_problem(error: ValidationError) -> str:
    """The first thing that is wrong, and where."""
    first = error.errors()[0]
    return f"{first['msg']} at {'.'.join(map(str, first['loc'])) or 'the top'}"
