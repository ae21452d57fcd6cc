"""The statement of one parameter with the domain of its values, and the check of all parameters of an estimator."""

from __future__ import annotations

import inspect
import math
import textwrap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from numbers import Integral, Real
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, TypeVar

from streampca.errors import ParameterError

if TYPE_CHECKING:
    from streampca.typing import Json


class Domain(Protocol):
    """The values that a parameter may have."""

    @property
    def type(self) -> str:
        """The type as docstrings and the reference write it."""

    @property
    def allowed(self) -> str:
        """What a configuration file may hold, in words."""

    @property
    def expected(self) -> str:
        """What Python code may give, in words that follow "expected"."""
        ...

    def plain(self, value: object) -> object:
        """Return `value` as a plain Python object; raise `ValueError` if it is outside the domain."""

    def schema(self) -> Json:
        """Return the JSON Schema of the values in a configuration file."""


@dataclass(frozen=True)
class Choice:
    """One of some names."""

    names: tuple[str, ...]
    """The names, in the order in which they are listed."""
    optional: bool = False
    """Whether None is accepted, too."""

    @property
    def type(self) -> str:
        """The names in braces, as numpydoc writes them, with None where it is accepted."""
        return "{" + ", ".join([f'"{name}"' for name in self.names] + ["None"] * self.optional) + "}"

    @property
    def allowed(self) -> str:
        """The names."""
        return ", ".join(self.names) + (", or null" if self.optional else "")

    @property
    def expected(self) -> str:
        """The names."""
        return f"one of {', '.join(self.names)}" + (", or None" if self.optional else "")

    def plain(self, value: object) -> str | None:
        """Return the name, or None."""
        if value is None and self.optional:
            return None
        if not isinstance(value, str) or value not in self.names:
            raise ValueError
        return str(value)

    def schema(self) -> Json:
        """Return an enumeration."""
        names: Json = {"type": "string", "enum": list(self.names)}
        return {"anyOf": [names, {"type": "null"}]} if self.optional else names


@dataclass(frozen=True)
class Flag:
    """True or False."""

    type: str = "bool"
    """As the protocol."""
    allowed: str = "true or false"
    """As the protocol."""
    expected: str = "True or False"
    """As the protocol."""

    def plain(self, value: object) -> bool:
        """Return a Python bool, also for one of numpy."""
        if not isinstance(value, bool) and type(value).__name__ not in ("bool", "bool_"):  # of numpy 2 and 1
            raise ValueError
        return bool(value)

    def schema(self) -> Json:
        """Return the type."""
        return {"type": "boolean"}


@dataclass(frozen=True)
class FlagOr:
    """True, False or one of some names."""

    names: tuple[str, ...]
    """The names, in the order in which they are listed."""

    @property
    def type(self) -> str:
        """``bool`` and the names."""
        return "bool or " + Choice(self.names).type.strip("{}")

    @property
    def allowed(self) -> str:
        """Both flags and the names."""
        return f"{Flag().allowed}, or {', '.join(self.names)}"

    @property
    def expected(self) -> str:
        """Both flags and the names."""
        return f"{Flag().expected}, or {self.type.removeprefix('bool or ')}"

    def plain(self, value: object) -> bool | str:
        """Return the name, or a Python bool, also for one of numpy."""
        return str(Choice(self.names).plain(value)) if isinstance(value, str) else Flag().plain(value)

    def schema(self) -> Json:
        """Return the type and an enumeration."""
        return {"anyOf": [Flag().schema(), Choice(self.names).schema()]}


@dataclass(frozen=True)
class Whole:
    """A whole number."""

    least: int | None = None
    """The smallest that is accepted."""
    auto: bool = False
    """Whether the text ``"auto"`` is accepted, too."""
    hint: str = ""
    """Ends the sentence of an error."""

    @property
    def type(self) -> str:
        """``int``, with ``"auto"`` where it is accepted."""
        return 'int or "auto"' if self.auto else "int"

    @property
    def allowed(self) -> str:
        """The bound."""
        words = "a whole number" + ("" if self.least is None else f" of at least {self.least}")
        return f"auto, or {words}" if self.auto else words

    @property
    def expected(self) -> str:
        """The bound."""
        words = "an integer" + ("" if self.least is None else f" of at least {self.least}") + self.hint
        return f'{words}, or "auto"' if self.auto else words

    def plain(self, value: object) -> int | str:
        """Return a Python int, also for one of numpy."""
        if self.auto and isinstance(value, str) and value == "auto":
            return value
        if isinstance(value, bool) or not isinstance(value, Integral):
            raise ValueError
        number = int(value)
        if self.least is not None and number < self.least:
            raise ValueError
        return number

    def schema(self) -> Json:
        """Return the type with its bound."""
        whole: Json = {"type": "integer"} | ({} if self.least is None else {"minimum": self.least})
        return {"anyOf": [{"const": "auto"}, whole]} if self.auto else whole


@dataclass(frozen=True)
class Number:
    """A finite number."""

    above: float | None = None
    """Bound that is not itself accepted."""
    least: float | None = None
    """The smallest that is accepted."""
    most: float | None = None
    """The largest that is accepted."""
    optional: bool = False
    """Whether None is accepted, too."""
    hint: str = ""
    """Ends the sentence of an error."""

    @property
    def type(self) -> str:
        """``float``, with None where it is accepted."""
        return "float or None" if self.optional else "float"

    @property
    def allowed(self) -> str:
        """The bounds."""
        bounds = (("above", self.above), ("of at least", self.least), ("at most", self.most))
        words = " and ".join(f"{word} {bound:g}" for word, bound in bounds if bound is not None)
        return f"a number {words}".rstrip() + (", or null" if self.optional else "")

    @property
    def expected(self) -> str:
        """The bounds."""
        words = self.allowed.removesuffix(", or null").replace("a number", "a finite number")
        if self.above is not None and self.most is not None:
            words = f"a number in ({self.above:g}, {self.most:g}]"
        return words + (", or None" if self.optional else "") + self.hint

    def plain(self, value: object) -> float | None:
        """Return a Python float, also for one of numpy, or None."""
        if value is None and self.optional:
            return None
        if isinstance(value, bool) or not isinstance(value, Real) or not math.isfinite(value):
            raise ValueError
        number = float(value)
        below = (self.above is not None and number <= self.above) or (self.least is not None and number < self.least)
        if below or (self.most is not None and number > self.most):
            raise ValueError
        return number

    def schema(self) -> Json:
        """Return the type with its bounds."""
        bounds = {"exclusiveMinimum": self.above, "minimum": self.least, "maximum": self.most}
        number: Json = {"type": "number"} | {name: bound for name, bound in bounds.items() if bound is not None}
        return {"anyOf": [number, {"type": "null"}]} if self.optional else number


@dataclass(frozen=True)
class Special:
    """Values that the module which uses them checks, and for which `runs.config` has a type of its own."""

    type: str
    """The type as docstrings and the reference write it."""
    allowed: str = ""
    """As the protocol."""
    expected: str = ""
    """As the protocol."""

    def plain(self, value: object) -> object:
        """Return `value` as it is."""
        return value

    def schema(self) -> Json:
        """Return the schema that accepts everything."""
        return {}


@dataclass(frozen=True)
class Directory(Special):
    """The path of a directory, or None."""

    type: str = "path or None"
    """As the protocol."""
    expected: str = "the path of a directory, or None"
    """As the protocol."""

    def plain(self, value: object) -> object:
        """Return the path as it is."""
        if value is not None and not isinstance(value, str | Path):
            raise ValueError
        return value


Class = TypeVar("Class", bound=type)


@dataclass(frozen=True)
class Parameter:
    """A parameter of an estimator, from which its check, its key in a configuration file and its reference are made."""

    name: str
    """Name in the signature of the estimator."""
    default: object
    """Default in the signature and in the file."""
    domain: Domain
    """The values that it may have."""
    text: str
    """What it does, in one sentence, which tables and the schema of configuration files have."""
    key: str | None = None
    """Where a configuration file has it: a section, in which it has its own name, or a whole key; None = nowhere."""
    field: str | None = ""
    """Name among the parameters of a fit: empty = its own; None = the fit does not read it as it is."""
    details: str = ""
    """Further sentences of the docstring of the estimator."""
    checked: bool = True
    """Whether the estimator checks it against the domain; else the module that uses it does."""
    of_states: bool = False
    """Whether it enters a state or the model made from it: it is saved with states, and those that are merged agree in it."""

    @property
    def path(self) -> str | None:
        """Key in a configuration file, such as ``model.solver``."""
        return f"{self.key}.{self.name}" if self.key in ("model", "preprocess", "statistics") else self.key


def checked(parameters: Sequence[Parameter], values: Mapping[str, object]) -> Json:
    """Return `values`, by the names of `parameters`, as plain objects under their names among the parameters of a fit.

    Raises
    ------
    ParameterError
        For the first value outside its domain, with the name, the value and what is expected.
    """
    plain = {}
    for parameter in parameters:
        value = values[parameter.name]
        if parameter.checked:
            try:
                value = parameter.domain.plain(value)
            except ValueError:
                raise ParameterError(f"{parameter.name}={value!r}: expected {parameter.domain.expected}") from None
        if parameter.field is not None:
            plain[parameter.field or parameter.name] = value
    return plain


def documented(parameters: Sequence[Parameter]) -> Callable[[Class], Class]:
    """Return a decorator that writes the statements of `parameters` in place of ``{parameters}`` into the docstring of an estimator."""

    def written(kind: Class) -> Class:
        if kind.__doc__:  # python -OO leaves none
            entries = (f"{each.name} : {each.domain.type}\n{_paragraph(each)}" for each in parameters)
            kind.__doc__ = inspect.cleandoc(kind.__doc__).replace("{parameters}", "\n".join(entries), 1)
        return kind

    return written


def _paragraph(parameter: Parameter) -> str:
    return textwrap.fill(
        f"{parameter.text} {parameter.details}".strip(), 110, initial_indent="    ", subsequent_indent="    "
    )
