"""The statement of one parameter, and the check of all parameters of an estimator against their statements."""

from __future__ import annotations

import inspect
import textwrap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from streampca.errors import ParameterError
from streampca.parameters.domains import Domain

if TYPE_CHECKING:
    from streampca.typing import Json

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
