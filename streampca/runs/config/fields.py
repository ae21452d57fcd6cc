"""Sections of the file whose keys are parameters of the estimators, made from the statements in `streampca.parameters`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

from pydantic import Field, PlainValidator, WithJsonSchema, create_model

from streampca.parameters import Parameter
from streampca.parameters.domains import Choice, Domain, Special
from streampca.runs.config.values import Section


def section_of(
    name: str, parameters: Sequence[Parameter], key: str, special: Mapping[str, object], *, kinds: tuple[str, ...] = ()
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


def annotation_of(domain: Domain) -> object:
    """Return the type that pydantic checks the values of a domain with."""
    if isinstance(domain, Choice):
        return Literal[domain.names]
    if isinstance(domain, Special):
        raise TypeError(f"{domain!r} needs a type of its own")
    allowed = Field(description=domain.allowed)
    return Annotated[object, PlainValidator(domain.plain), WithJsonSchema(domain.schema()), allowed]
