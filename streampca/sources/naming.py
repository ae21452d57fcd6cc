"""Names of rows and features in errors: accumulators know numbers, the labels of a table say what they stand for."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Concatenate, ParamSpec, TypeVar

from streampca.errors import DataError
from streampca.sources.base import Source

P = ParamSpec("P")
R = TypeVar("R")
_PLACE = re.compile(r"\b(row|column|feature) (\d+)\b(?! \[)")


@contextmanager
def places_named(source: Source) -> Iterator[None]:
    """Add the names that `source` has for rows and features to the data errors of this block.

    ``row 5, column 7`` becomes ``row 5 [time=1990-06-01], column 7 [sst(lat=10.5, lon=20)]``.
    """
    try:
        yield
    except DataError as error:
        if len(error.args) == 1 and isinstance(error.args[0], str):
            error.args = (with_names(error.args[0], source),)
        raise


def naming_places(function: Callable[Concatenate[Source, P], R]) -> Callable[Concatenate[Source, P], R]:
    """Return `function`, whose first argument is a source, with the names of rows and features added to its data errors."""

    @wraps(function)
    def named(source: Source, /, *args: P.args, **options: P.kwargs) -> R:
        with places_named(source):
            return function(source, *args, **options)

    return named


def with_names(message: str, source: Source) -> str:
    """Return a message with the names that `source` has for the numbers of rows, columns and features in it."""

    def name_of(match: re.Match[str]) -> str:
        number = int(match[2])
        name = _row(source, number) if match[1] == "row" else _column(source, number)
        return match[0] if name is None else f"{match[0]} [{name}]"

    return _PLACE.sub(name_of, message)


def with_rows_shifted(message: str, n: int) -> str:
    """Return a message in which the numbers of rows are larger by `n`."""
    return re.sub(r"\b(rows?) (\d+)\b", lambda match: f"{match[1]} {int(match[2]) + n}", message)


def _row(source: Source, number: int) -> str | None:
    if source.labels is None or number >= source.shape[0]:
        return None
    return source.labels.sample_name(number)


def _column(source: Source, number: int) -> str | None:
    if number >= source.shape[1]:
        return None
    if source.labels is not None and (name := source.labels.known_name(number)) is not None:
        return name
    return None if source.feature_names is None else source.feature_names[number]
