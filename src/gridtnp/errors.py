"""Errors that many parts raise: unknown names, wrong settings, packages that are not installed."""

from __future__ import annotations

import difflib
import functools
import importlib
import re
import reprlib
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from pydantic import ValidationError

T = TypeVar("T")


def require_known(name: str, known: Iterable[str], what: str, whose: str = "") -> None:
    """Raise unless `name` is known: "Unknown <what> 'name' <whose>; did you mean …?"."""
    choices = sorted(known)
    if name not in choices:
        raise ValueError(_unknown(name, choices, what, f" {whose}" if whose else ""))


def _unknown(name: Any, choices: list[str], what: str, whose: str = "") -> str:
    close = difflib.get_close_matches(str(name), choices, n=1, cutoff=0.4)
    hint = f"did you mean {close[0]!r}?" if close else f"choose one of {choices}."
    return f"Unknown {what} {name!r}{whose}; {hint}"


def in_sentences(of: type[T]) -> type[T]:
    """Decorate a pydantic class: what it refuses is a `ValueError` of one sentence."""
    construct = of.__init__

    @functools.wraps(construct)
    def __init__(self: T, *given: Any, **settings: Any) -> None:
        from pydantic import ValidationError  # slow to import

        try:
            construct(self, *given, **settings)
        except ValidationError as error:
            raise ValueError(explain(error)) from None

    of.__init__ = __init__
    return of


def explain(error: ValidationError, file: str = "", section: str = "") -> str:
    """The first of pydantic's errors as one sentence, about a setting or a key of a file."""
    first = error.errors(include_url=False)[0]
    names = [part for part in first["loc"] if isinstance(part, str)]
    key, given, text = section + ".".join(names) or error.title, first["input"], first["msg"]
    match first["type"]:
        case "missing":
            return f"{file or error.title} has no key {key!r}; add it."
        case "value_error":  # raised by a validator of the library
            text = text.removeprefix("Value error, ")
        case "literal_error":
            choices = re.findall(r"'([^']*)'", first.get("ctx", {})["expected"])
            text = _unknown(given, sorted(choices), names[-1])
        case "extra_forbidden":
            text = f"Unknown setting {names[-1]!r} of {error.title}; leave it out."
        case _:
            rule = text.replace("Input should", "must", 1)
            found = f"{key} in {file} is " if file else f"{key}="
            return f"{found}{reprlib.repr(given)}: {rule}."
    return f"{key} in {file}: {text}" if file else text


def require_installed(module: str, extra: str, what: str) -> Any:
    """Import a module, or raise with the command that installs it."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise ImportError(
            f"{what} needs {module}, which is not installed: pip install 'gridtnp[{extra}]'."
        ) from error


def reason(error: Exception) -> str:
    """The first line of an error, without its full stop, or else the name of its type."""
    return (str(error).strip() or type(error).__name__).splitlines()[0].rstrip(".")
