"""The statement of one parameter with the domain of its values, and the check of all parameters of an estimator."""

from __future__ import annotations

import inspect
import math
import re
import textwrap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from numbers import Integral, Real
from pathlib import Path
from typing import TYPE_CHECKING, Literal, TypeAlias, TypeVar

from streampca.errors import ParameterError, value_in_words
from streampca.suggestions import did_you_mean

if TYPE_CHECKING:
    from streampca.typing import Json


Solver: TypeAlias = Literal["auto", "covariance", "gram", "qr", "sketch", "adaptive"]
EXACT_SOLVERS = {
    "covariance": "the d × d matrix",
    "gram": "the n × n matrix of samples, for wide data; auto takes it if samples are at most half as many as features",
    "qr": "a d × d triangular factor, for singular values below 1e-7 of the first; two to four times slower",
}
"""What exact solvers work with, by name."""
APPROXIMATE_SOLVERS = {
    "sketch": "products of the covariance with `sketch_size` vectors",
    "adaptive": "a basis of that rank, updated with the rows in shuffled order; more accurate in one pass",
}
"""What solvers with errors, and a certificate of them, work with, by name."""
Sketch: TypeAlias = Literal["auto", "gaussian", "count_sketch", "sparse_sign", "grouping"]
Recovery: TypeAlias = Literal["nystrom", "conversion"]
Missing: TypeAlias = Literal["error", "drop_rows", "mean", "pairwise"]
MissingScores: TypeAlias = Literal["conditional", "mean"]
KernelName: TypeAlias = Literal["linear", "rbf", "poly", "sigmoid", "tanh", "laplacian", "cosine"]
Method: TypeAlias = Literal["auto", "exact", "nystrom", "nystrom_extension", "empirical_map"]
Sampling: TypeAlias = Literal["auto", "uniform", "diagonal", "column_norm", "rpcholesky"]
Auto: TypeAlias = Literal["auto"]
ScaleName: TypeAlias = Literal["block", "poisson", "patterson"]
Rotation: TypeAlias = Literal["varimax", "promax"]
Class = TypeVar("Class", bound=type)


@dataclass(frozen=True)
class Domain:
    """The values that a parameter may have, as one of the functions below makes it."""

    type: str
    """The type as docstrings write it."""
    plain: Callable[[object], object]
    """Returns a value as a plain Python object; raises `ValueError` if it is outside the domain."""
    values: str
    """What tables of the reference say of the values."""
    expected: str = ""
    """What Python code may give, in words that follow "expected"."""
    allowed: str = ""
    """What a configuration file may hold, in words."""
    schema: Json | None = None
    """The JSON Schema of the values in a configuration file; None where `runs.config` has a type of its own."""
    names: tuple[str, ...] = ()
    """The values, where all are names."""


def choice(names: tuple[str, ...], *, optional: bool = False) -> Domain:
    """Return the domain of some names, and of None if it is `optional`."""

    def plain(value: object) -> str | None:
        if value is None and optional:
            return None
        if not isinstance(value, str) or value not in names:
            raise ValueError
        return str(value)

    listed, shown = ", ".join(names), ", ".join([f'"{name}"' for name in names] + ["None"] * optional)
    schema: Json = {"type": "string", "enum": list(names)}
    if optional:
        either: Json = {"anyOf": [schema, {"type": "null"}]}
        return Domain(f"{{{shown}}}", plain, shown, f"one of {listed}, or None", f"{listed}, or null", either)
    return Domain(f"{{{shown}}}", plain, shown, f"one of {listed}", listed, schema, names)


def flag(names: tuple[str, ...] = ()) -> Domain:
    """Return the domain of True and False, and of some names."""

    def plain(value: object) -> bool | str:
        if names and isinstance(value, str):
            return str(either.plain(value))
        if not isinstance(value, bool) and type(value).__name__ not in ("bool", "bool_"):  # of numpy 2 and 1
            raise ValueError
        return bool(value)

    either, schema = choice(names), {"type": "boolean"}
    if not names:
        return Domain("bool", plain, "bool", "True or False", "true or false", schema)
    kind, listed = f"bool or {either.values}", ", ".join(names)
    expected, allowed = f"True or False, or {either.values}", f"true or false, or {listed}"
    return Domain(kind, plain, kind, expected, allowed, {"anyOf": [schema, either.schema]})


def whole(least: int | None = None, *, auto: bool = False, hint: str = "") -> Domain:
    """Return the domain of whole numbers from `least` on, and of the text ``"auto"``; `hint` ends the sentence of an error."""

    def plain(value: object) -> int | str:
        if auto and isinstance(value, str) and value == "auto":
            return value
        if isinstance(value, bool) or not isinstance(value, Integral) or (least is not None and int(value) < least):
            raise ValueError
        return int(value)

    bound = "" if least is None else f" of at least {least}"
    schema: Json = {"type": "integer"} | ({} if least is None else {"minimum": least})
    if auto:
        words, either = f'an integer{bound}{hint}, or "auto"', {"anyOf": [{"const": "auto"}, schema]}
        return Domain('int or "auto"', plain, words, words, f"auto, or a whole number{bound}", either)
    words = f"an integer{bound}"
    return Domain("int", plain, words, words + hint, f"a whole number{bound}", schema)


def number(
    *,
    above: float | None = None,
    least: float | None = None,
    most: float | None = None,
    optional: bool = False,
    hint: str = "",
) -> Domain:
    """Return the domain of finite numbers, greater than `above`, from `least` on and up to `most`, and of None if it is `optional`.

    `hint` ends the sentence of an error.
    """

    def plain(value: object) -> float | None:
        if value is None and optional:
            return None
        if isinstance(value, bool) or not isinstance(value, Real) or not math.isfinite(value):
            raise ValueError
        given = float(value)
        below = (above is not None and given <= above) or (least is not None and given < least)
        if below or (most is not None and given > most):
            raise ValueError
        return given

    bounds = (("above", above), ("of at least", least), ("at most", most))
    words = " and ".join(f"{word} {bound:g}" for word, bound in bounds if bound is not None)
    expected = f"a finite number {words}".rstrip()
    if above is not None and most is not None:
        expected = f"a number in ({above:g}, {most:g}]"
    limits = {"exclusiveMinimum": above, "minimum": least, "maximum": most}
    schema: Json = {"type": "number"} | {name: limit for name, limit in limits.items() if limit is not None}
    allowed = f"a number {words}".rstrip()
    if optional:
        expected, either = f"{expected}, or None", {"anyOf": [schema, {"type": "null"}]}
        return Domain("float or None", plain, expected, expected + hint, f"{allowed}, or null", either)
    return Domain("float", plain, expected, expected + hint, allowed, schema)


def special(kind: str) -> Domain:
    """Return the domain of values that the module which uses them checks."""
    return Domain(kind, lambda value: value, kind.strip("{}"))


DEVICE_NAME = r"cpu|cuda(:\d+)?|[a-z_]\w*:\w+(:\d+)?"
"""Names of devices: cpu, cuda, cuda:1, or a library of the array API and one of its devices, such as torch:cpu."""


def device() -> Domain:
    """Return the domain of names of devices."""

    def plain(value: object) -> str:
        if not isinstance(value, str) or not re.fullmatch(DEVICE_NAME, value):
            raise ValueError
        return value

    words = "cpu, or cuda or cuda:1 for a graphics card"
    return Domain(
        "str", plain, "cpu, cuda, cuda:1, …", words, words, {"type": "string", "pattern": f"^({DEVICE_NAME})$"}
    )


def directory() -> Domain:
    """Return the domain of paths of directories, and None."""

    def plain(value: object) -> object:
        if value is not None and not isinstance(value, str | Path):
            raise ValueError
        return value

    return Domain("path or None", plain, "path or None", "the path of a directory, or None")


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
                names = parameter.domain.names or re.findall(r'"(\w+)"', parameter.domain.expected)
                meant = did_you_mean(value, names) if isinstance(value, str) else ""
                raise ParameterError(
                    f"{parameter.name}={value_in_words(value)}: expected {parameter.domain.expected}{meant}"
                ) from None
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
