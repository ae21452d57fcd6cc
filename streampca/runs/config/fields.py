"""Sections of the file whose keys are parameters of the estimators, made from the statements in `streampca.parameters`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

from pydantic import Field, PlainValidator, WithJsonSchema, create_model

from streampca.parameters import Parameter
from streampca.parameters.domains import Choice, Domain, Flag, Number, Whole
from streampca.runs.config.values import Section


def section_of(
    name: str, parameters: Sequence[Parameter], key: str, special: Mapping[str, Any], *, kinds: tuple[str, ...] = ()
) -> type[Section]:
    """Return a base class with a field for each of `parameters` that the file has under `key`.

    `special` gives the types, or types and defaults as pairs, of those with a domain of their own. The first field is
    `kind` where `kinds` are given.
    """
    fields: dict[str, Any] = {"kind": (Literal[kinds], kinds[0])} if kinds else {}
    for parameter in parameters:
        if parameter.key == key:
            given = special.get(parameter.name)
            given = annotation_of(parameter.domain) if given is None else given
            fields[parameter.name] = given if isinstance(given, tuple) else (given, parameter.default)
    return create_model(name, __base__=Section, **fields)


def annotation_of(domain: Domain) -> Any:
    """Return the type that pydantic checks the values of a domain with."""
    if isinstance(domain, Choice):
        return Literal[domain.names]
    if isinstance(domain, Flag):
        return Annotated[bool, Field(description=domain.allowed)]
    if isinstance(domain, Whole) and domain.auto:
        schema = WithJsonSchema(domain.schema())
        return Annotated[
            int | Literal["auto"], PlainValidator(_exactly(domain)), Field(description=domain.allowed), schema
        ]
    if isinstance(domain, Whole):
        return Annotated[int, Field(ge=domain.least, description=domain.allowed)]
    if isinstance(domain, Number):
        number = Annotated[float, Field(gt=domain.above, ge=domain.least, le=domain.most)]
        return Annotated[number | None if domain.optional else number, Field(description=domain.allowed)]
    raise TypeError(f"{domain!r} needs a type of its own")


def _exactly(domain: Whole) -> Any:
    def check(value: Any) -> Any:
        if type(value) not in (int, str):
            raise ValueError
        return domain.plain(value)

    return check
