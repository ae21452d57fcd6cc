"""Suggestions in errors for unknown keywords, keys and names."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from difflib import get_close_matches
from functools import wraps
from types import FunctionType
from typing import TYPE_CHECKING, ParamSpec, TypeVar

_P = ParamSpec("_P")
_R = TypeVar("_R")
_Class = TypeVar("_Class", bound=type)
_LIKENESS = 0.5
_PUBLIC = {"open_source": "open"}  # functions that the package has under another name
_OPTIONS_OF_OPEN: set[str] = set()  # often given to other functions


def nearest(name: str, known: Iterable[str], n: int = 1) -> list[str]:
    """Return at most `n` of the `known` names that are like `name`, the nearest first; upper and lower case are the same."""
    by_folded = {each.casefold(): each for each in reversed([*known])}
    return [by_folded[each] for each in get_close_matches(name.casefold(), [*by_folded][::-1], n, _LIKENESS)]


def did_you_mean(name: object, known: Iterable[object]) -> str:
    """Return the end of a sentence that suggests one of the `known` names: ``"; did you mean 'scale'?"``, else ``""``."""
    near = nearest(str(name), map(str, known))
    return f"; did you mean {near[0]!r}?" if near else ""


def require_keywords(function: str, given: Iterable[str], signature: inspect.Signature) -> None:
    """Raise `TypeError`, as Python does, if a keyword of a call is not in the `signature` of the `function`.

    The error suggests the nearest name; where none is near, it lists the names that are accepted.
    """
    by_keyword = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    parameters = signature.parameters
    if any(each.kind is inspect.Parameter.VAR_KEYWORD for each in parameters.values()):
        return
    known = [name for name, each in parameters.items() if each.kind in by_keyword and name != "self"]
    for name in given:
        if name not in known:
            hint = did_you_mean(name, known) or f"; expected some of {', '.join(known)}"
            if name in _OPTIONS_OF_OPEN:
                hint = f"; it is an option of open: give streampca.open(data, {name}=…) in place of the data"
            raise TypeError(f"{function}() got an unexpected keyword argument {name!r}{hint}")


class SuggestsKeywords:
    """A class whose constructor suggests, for a keyword that ``__init__`` does not take, the name that was meant."""

    if not TYPE_CHECKING:  # type checkers and `inspect.signature` have the parameters of `__init__`

        def __new__(cls, *args, **kwargs):
            """Return an instance; `TypeError` for unknown keywords."""
            if kwargs:
                require_keywords(cls.__name__, kwargs, inspect.signature(cls))
            return super().__new__(cls)


def suggests_keywords(function: Callable[_P, _R]) -> Callable[_P, _R]:
    """Decorate a public function so that its errors for unknown keywords suggest the name that was meant."""
    signature = inspect.signature(function)
    known = frozenset(signature.parameters)
    if function.__name__ == "open_source":
        _OPTIONS_OF_OPEN.update(known - {"data"})
    takes_any = any(each.kind is inspect.Parameter.VAR_KEYWORD for each in signature.parameters.values())
    if takes_any or known <= {"self"}:
        return function
    of_class = "self" in known

    @wraps(function)
    def called(*args: _P.args, **kwargs: _P.kwargs) -> _R:
        if not known.issuperset(kwargs):
            owner = f"{type(args[0]).__name__}." if of_class and args else ""
            require_keywords(owner + _PUBLIC.get(function.__name__, function.__name__), kwargs, signature)
        return function(*args, **kwargs)

    return called


def suggests_in_methods(kind: _Class) -> _Class:
    """Decorate the public methods of a class, those of its bases left as they are, with `suggests_keywords`."""
    for name, method in [*vars(kind).items()]:
        if isinstance(method, FunctionType) and not name.startswith("_"):
            setattr(kind, name, suggests_keywords(method))
    return kind
