"""The kinds of values that the keys of a configuration hold, each with the words that say what is allowed."""

from __future__ import annotations

import ipaddress
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, TypeAlias, get_args
from urllib.parse import urlsplit

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    PlainSerializer,
    PlainValidator,
    PrivateAttr,
    WithJsonSchema,
    create_model,
)

from streampca.linalg.rule_names import RULES, RuleName
from streampca.parameters import Parameter
from streampca.parameters.choices import Sampling as SamplingName
from streampca.parameters.domains import Choice, Domain, Special, Whole
from streampca.runs.config.yaml import KeyPath, has_control_characters
from streampca.storage.directories import is_short_enough

MIN_MEMORY_BYTES = 64 * 2**20
_MAX_MEMORY_BYTES = 2**60
_MAX_SECONDS = 366 * 86400.0
_SIZE = re.compile(r"[0-9]{1,18}(\.[0-9]{1,9})? *[kmgtpKMGTP]?i?[bB]")
_DURATION = re.compile(r"[0-9]{1,12}(\.[0-9]{1,9})? *(ms|s|min|h|d)")
_SECONDS = {"ms": 1e-3, "s": 1.0, "min": 60.0, "h": 3600.0, "d": 86400.0}
_ADDRESS = re.compile(r"(?:tcp|tls)://(\[[0-9A-Fa-f:.]+\]|[^\s:/@?#\[\]]+):([0-9]{1,5})")


def _need(accepted: bool) -> None:
    """Let pydantic refuse a value; what is said about it comes from the description of the field."""
    if not accepted:
        raise ValueError


def _text(value: object) -> str:
    text = value if isinstance(value, str) else ""
    _need(bool(text.strip()) and not has_control_characters(text, line_breaks=True))
    return text


def _names(value: object) -> tuple[str, ...] | None:
    if value is None:
        return None
    names = tuple(value) if isinstance(value, list | tuple) else (value,)
    _need(len(names) > 0 and len(set(map(str, names))) == len(names))
    return tuple(map(_text, names))


def _name(value: object) -> str:
    name = _text(value)
    _need(len(name.encode("utf-8", "replace")) <= 200 and not re.search(r"[/\\]", name) and name.strip(". ") != "")
    return name


def _source_path(value: object) -> str | tuple[str, ...]:
    if isinstance(value, list | tuple):
        _need(len(value) > 0)
        return tuple(os.path.expanduser(_text(path)) for path in value)
    path = _text(value)
    _need(path != "builtin:")
    if "://" in path:
        urlsplit(path)  # raises ValueError where a URL is none
    return os.path.expanduser(path)


def _directory(value: object) -> Path:
    if isinstance(value, Path):
        return value
    path = _text(value)
    directory = Path(os.path.expanduser(path))
    _need("://" not in path and is_short_enough(directory))
    return directory


def _publish_url(value: object) -> str:
    url = _text(value)
    scheme, separator, place = url.partition("://")
    _need(
        bool(separator and place.strip("/")) and scheme.lower() not in ("", "file", "local", "http", "https", "builtin")
    )
    return url


def memory_in_bytes(value: int | str) -> int:
    """Return the bytes of a size such as ``2GiB``."""
    if isinstance(value, int):
        return value
    from dask.utils import parse_bytes  # a tenth of a second that `import streampca.runs.config` need not take

    return int(parse_bytes(value))


def _memory(value: object) -> int | str | None:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | str):
        raise ValueError
    _need(isinstance(value, int) or _SIZE.fullmatch(value) is not None)
    _need(MIN_MEMORY_BYTES <= memory_in_bytes(value) <= _MAX_MEMORY_BYTES)
    return value


def _auto_or_size(value: object) -> int | str:
    if value == "auto" and isinstance(value, str):
        return value
    if isinstance(value, bool) or not isinstance(value, int | str):
        raise ValueError
    _need(isinstance(value, int) or _SIZE.fullmatch(value) is not None)
    _need(0 <= memory_in_bytes(value) <= _MAX_MEMORY_BYTES)
    return value


def seconds_of(value: str) -> float:
    """Return the seconds of a duration such as ``30s``."""
    number = value.rstrip("abcdefghijklmnopqrstuvwxyz")
    return float(number) * _SECONDS[value.removeprefix(number)]


def _wait(value: object) -> str:
    if not isinstance(value, str) or _DURATION.fullmatch(value) is None:
        raise ValueError
    _need(0 < seconds_of(value) <= _MAX_SECONDS)
    return value


def _every(value: object) -> str | None:
    return None if value is None else _wait(value)


def _scheduler_address(value: object) -> str:
    address = _text(value)
    match = _ADDRESS.fullmatch(address)
    _need(match is not None and 0 < int(match[2]) < 2**16)
    return address


def is_loopback(address: str) -> bool:
    """Tell whether the host of the address of a scheduler is this machine, by its name."""
    match = _ADDRESS.fullmatch(address)
    host = match[1].strip("[]") if match else ""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _n_components(value: object) -> object:
    if isinstance(value, dict):
        form = next(iter(value), "")
        _need(len(value) == 1 and form in _FORMS and type(value[form]) is float and 0 < value[form] < 1)
        return _FORMS[form](**value)
    if isinstance(value, float):
        _need(0 < value < 1)
    elif isinstance(value, str):
        _need(value in RULES)
    else:
        _need(
            value is None or isinstance(value, ThresholdValue | FrobeniusValue) or (type(value) is int and value >= 1)
        )
    return value


def _kernel_n_components(value: object) -> object:
    _need(not isinstance(value, str | FrobeniusValue) and not (isinstance(value, dict) and "frobenius" in value))
    return _n_components(value)


def _n_components_as_data(value: object) -> object:
    return value.model_dump() if isinstance(value, ThresholdValue | FrobeniusValue) else value


def _sampling(value: object) -> object:
    if isinstance(value, list | tuple):
        _need(len(value) > 0 and all(type(index) is int and index >= 0 for index in value))
        _need(len(set(value)) == len(value))
        return tuple(value)
    _need(value in get_args(SamplingName))
    return value


def one_list_of_kernels(value: object) -> object:
    """Bring the three ways of writing a kernel into one: a list of mappings."""
    listed = value if isinstance(value, list | tuple) else [value]
    _need(len(listed) > 0)
    return tuple({"name": item} if isinstance(item, str) else item for item in listed)


class PrivateOptions(dict[str, object]):
    """Options for somebody else's constructor, environment variables filled in; no value is ever shown by ``repr``."""

    def __init__(self, options: Mapping[str, object] | None = None):
        super().__init__({key: _with_mappings(value, PrivateOptions) for key, value in (options or {}).items()})

    def __repr__(self) -> str:
        return "{" + ", ".join(f"{key!r}: ***" for key in self) + "}"

    __str__ = __repr__


def plain_options(options: Mapping[str, object]) -> dict[str, object]:
    """Return options as ordinary dictionaries: fsspec takes two for equal that print alike, and would use the older secret."""
    return {key: _with_mappings(value, plain_options) for key, value in options.items()}


def _with_mappings(value: object, made: Callable[[Mapping[str, object]], object]) -> object:
    """Return `value` with each mapping in it, and in its lists, replaced by what `made` returns."""
    if isinstance(value, dict):
        return made(value)
    return [_with_mappings(item, made) for item in value] if isinstance(value, list) else value


class Section(BaseModel):
    """A mapping of the file; what was written with ``${NAME}`` is shown as it was written."""

    model_config = ConfigDict(
        extra="forbid", frozen=True, strict=True, allow_inf_nan=False, hide_input_in_errors=True, validate_default=False
    )

    _written: dict[KeyPath, str] = PrivateAttr(default_factory=dict)

    def __repr_args__(self) -> Iterator[tuple[str | None, object]]:
        for key, value in super().__repr_args__():
            yield key, self._written.get((key,), value) if key else value

    def remember(self, written: Mapping[KeyPath, str]) -> None:
        """Keep, here and in the sections below, the texts that hold references, by their key paths."""
        self._written = dict(written)
        for key in type(self).model_fields:
            child = getattr(self, key)
            if isinstance(child, Section):
                child.remember({path[1:]: text for path, text in written.items() if path[0] == key and path[1:]})


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


class ThresholdValue(Section):
    """Take all components with an eigenvalue of at least `threshold` times the largest."""

    threshold: Annotated[float, Field(gt=0, lt=1)]
    """Share of the largest eigenvalue."""


class FrobeniusValue(Section):
    """Take the smallest number of components whose squared eigenvalues reach a share of the squared Frobenius norm."""

    frobenius: Annotated[float, Field(gt=0, lt=1)]
    """Share of the squared norm."""


_FORMS: dict[str, type[ThresholdValue] | type[FrobeniusValue]] = {
    "threshold": ThresholdValue,
    "frobenius": FrobeniusValue,
}
_FORM_SCHEMAS = [
    {
        "type": "object",
        "properties": {form: {"type": "number", "exclusiveMinimum": 0, "exclusiveMaximum": 1}},
        "required": [form],
        "additionalProperties": False,
    }
    for form in _FORMS
]

_TEXT = WithJsonSchema({"type": "string"})
_AUTO_OR_COUNT = Whole(1, auto=True)

Text: TypeAlias = Annotated[str, PlainValidator(_text), _TEXT, Field(description="text on one line")]
Names: TypeAlias = Annotated[
    tuple[str, ...] | None,
    PlainValidator(_names),
    WithJsonSchema(
        {"anyOf": [_TEXT.json_schema, {"type": "array", "minItems": 1, "items": _TEXT.json_schema}, {"type": "null"}]}
    ),
    Field(description="a name, a list of different names, or null"),
]
Flag: TypeAlias = Annotated[bool, Field(description="true or false")]
Count: TypeAlias = Annotated[int, Field(ge=1, description="a whole number of at least 1")]
Degree: TypeAlias = Annotated[int, Field(ge=1, le=20, description="a whole number from 1 to 20")]
Natural: TypeAlias = Annotated[int, Field(ge=0, description="a whole number of at least 0")]
Positive: TypeAlias = Annotated[float, Field(gt=0, description="a number above 0")]
AutoOrCount: TypeAlias = Annotated[
    int | Literal["auto"],
    PlainValidator(_AUTO_OR_COUNT.plain),
    WithJsonSchema(_AUTO_OR_COUNT.schema()),
    Field(description=_AUTO_OR_COUNT.allowed),
]
Options: TypeAlias = Annotated[
    dict[str, object], AfterValidator(PrivateOptions), Field(description="a mapping of options")
]
RunName: TypeAlias = Annotated[
    str, PlainValidator(_name), _TEXT, Field(description="a name for the run: text on one line without slashes")
]
SourcePath: TypeAlias = Annotated[
    str | tuple[str, ...],
    PlainValidator(_source_path),
    WithJsonSchema({"anyOf": [_TEXT.json_schema, {"type": "array", "minItems": 1, "items": _TEXT.json_schema}]}),
    Field(description="a local path, a URL, or builtin:NAME, or a list of paths"),
]
Directory: TypeAlias = Annotated[
    Path,
    PlainValidator(_directory),
    _TEXT,
    Field(
        description="the path of a local directory, of names of at most 220 bytes, which output.publish copies to an object store when it is complete"
    ),
]
PublishURL: TypeAlias = Annotated[
    str,
    PlainValidator(_publish_url),
    WithJsonSchema({"type": "string", "pattern": "://"}),
    Field(description="the URL of a place in an object store, such as s3://bucket/runs/name, or null"),
]
MemorySize: TypeAlias = Annotated[
    int | str | None,
    PlainValidator(_memory),
    WithJsonSchema({"anyOf": [{"type": "string"}, {"type": "integer", "minimum": MIN_MEMORY_BYTES}, {"type": "null"}]}),
    Field(description="a size of at least 64 MiB such as 2GiB, a whole number of bytes, or null"),
]
AutoOrSize: TypeAlias = Annotated[
    int | str,
    PlainValidator(_auto_or_size),
    WithJsonSchema({"anyOf": [{"type": "string"}, {"type": "integer", "minimum": 0}]}),
    Field(description="auto, a size such as 64MiB, or a whole number of bytes; 0 for none"),
]
Duration: TypeAlias = Annotated[
    str | None,
    PlainValidator(_every),
    WithJsonSchema({"anyOf": [{"type": "string"}, {"type": "null"}]}),
    Field(description="a duration such as 30s, 5min or 1h (ms, s, min, h, d), or null"),
]
Wait: TypeAlias = Annotated[
    str, PlainValidator(_wait), _TEXT, Field(description="a duration such as 30s, 5min or 1h (ms, s, min, h, d)")
]
SchedulerAddress: TypeAlias = Annotated[
    str,
    PlainValidator(_scheduler_address),
    _TEXT,
    Field(description="the address of a scheduler, tls://HOST:PORT or tcp://HOST:PORT"),
]
Sampling: TypeAlias = Annotated[
    SamplingName | tuple[int, ...],
    PlainValidator(_sampling),
    WithJsonSchema(
        {
            "anyOf": [
                {"enum": list(get_args(SamplingName))},
                {"type": "array", "minItems": 1, "items": {"type": "integer", "minimum": 0}},
            ]
        }
    ),
    Field(description="auto, uniform, diagonal, column_norm, rpcholesky, or a list of different row numbers"),
]
NComponents: TypeAlias = Annotated[
    int | float | RuleName | ThresholdValue | FrobeniusValue | None,
    PlainValidator(_n_components),
    WithJsonSchema(
        {
            "anyOf": [
                {"type": "integer", "minimum": 1},
                {"type": "number", "exclusiveMinimum": 0, "exclusiveMaximum": 1},
                *_FORM_SCHEMAS,
                {"enum": list(RULES)},
                {"type": "null"},
            ]
        }
    ),
    PlainSerializer(_n_components_as_data),
    Field(
        description="a whole number of at least 1, a share of variance such as 0.95, "
        f"{{threshold: E}} or {{frobenius: S}} with numbers between 0 and 1, {', '.join(RULES)}, or null"
    ),
]
KernelNComponents: TypeAlias = Annotated[
    int | float | ThresholdValue | None,
    PlainValidator(_kernel_n_components),
    WithJsonSchema(
        {
            "anyOf": [
                {"type": "integer", "minimum": 1},
                {"type": "number", "exclusiveMinimum": 0, "exclusiveMaximum": 1},
                _FORM_SCHEMAS[0],
                {"type": "null"},
            ]
        }
    ),
    PlainSerializer(_n_components_as_data),
    Field(
        description="a whole number of at least 1, a share of the trace such as 0.95, {threshold: E} with a number between 0 and 1, or null"
    ),
]
