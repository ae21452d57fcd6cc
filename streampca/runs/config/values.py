"""Types of the values of a configuration, and the sections of clusters."""

from __future__ import annotations

import ipaddress
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, TypeAlias, TypeVar
from urllib.parse import urlsplit

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ByteSize,
    ConfigDict,
    Field,
    PlainValidator,
    PrivateAttr,
    TypeAdapter,
    WithJsonSchema,
    create_model,
    model_validator,
)
from pydantic_core import PydanticCustomError
from typing_extensions import TypedDict

from streampca.linalg.component_rules import RULES, RuleName
from streampca.parameters import Parameter
from streampca.parameters.statement import DEVICE_NAME, Domain
from streampca.parameters.statement import Sampling as SamplingName
from streampca.runs.config.document import KeyPath, has_control_characters
from streampca.storage.directories import is_short_enough

MIN_MEMORY_BYTES = 64 * 2**20
_MAX_MEMORY_BYTES = 2**60
_MAX_SECONDS = 366 * 86400.0
_SECONDS = {"ms": 1e-3, "s": 1.0, "min": 60.0, "h": 3600.0, "d": 86400.0}
_ADDRESS = r"^(?:tcp|tls)://(\[[0-9A-Fa-f:.]+\]|[^\s:/@?#\[\]]+):([0-9]{1,5})$"
_Value = TypeVar("_Value")


def _require(accepted: Callable[[_Value], bool]) -> AfterValidator:
    """Return a validator that refuses values; the message comes from the description of the field."""

    def checked(value: _Value) -> _Value:
        if not accepted(value):
            raise ValueError
        return value

    return AfterValidator(checked)


def _as_tuple(value: object) -> object:
    return tuple(value) if isinstance(value, list) else value


def _listed(value: object) -> object:
    return _as_tuple(value) if isinstance(value, list | tuple | None) else (value,)


def one_list_of_kernels(value: object) -> object:
    """Convert the three forms of a kernel to one: a list of mappings."""
    listed = value if isinstance(value, list | tuple) else [value]
    if not listed:  # said here: pydantic would count a kernel that it refuses as one too few
        raise ValueError
    return tuple({"name": item} if isinstance(item, str) else item for item in listed)


def memory_in_bytes(value: int | str) -> int:
    """Return the bytes of a size such as ``2GiB``."""
    return value if isinstance(value, int) else int(TypeAdapter(ByteSize).validate_python(value))


def seconds_of(value: str) -> float:
    """Return the seconds of a duration such as ``30s``."""
    number = value.rstrip("abcdefghijklmnopqrstuvwxyz")
    return float(number) * _SECONDS[value.removeprefix(number)]


def _is_one_line(text: str) -> bool:
    return text.strip() != "" and not has_control_characters(text, line_breaks=True)


def _is_name(name: str) -> bool:
    return len(name.encode("utf-8", "replace")) <= 200 and not set("/\\") & set(name) and name.strip(". ") != ""


def _are_different(values: Sequence[object]) -> bool:
    return len(set(values)) == len(values)


def _as_directory(value: object) -> object:
    """Return the path that a text names, or the value itself if it names none, for pydantic to refuse."""
    if isinstance(value, str) and _is_one_line(value) and "://" not in value:
        return Path(os.path.expanduser(value))
    return value


def _is_address(path: str) -> bool:
    return path != "builtin:" and ("://" not in path or urlsplit(path) is not None)  # or urlsplit raises ValueError


def is_loopback(address: str) -> bool:
    """Return whether the host name in the address of a scheduler is this machine."""
    match = re.match(_ADDRESS, address)
    host = match[1].strip("[]") if match else ""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


class PrivateOptions(dict[str, object]):
    """Options for a constructor of another package, with environment variables filled in; ``repr`` never shows a value."""

    def __init__(self, options: Mapping[str, object] | None = None):
        super().__init__({key: _with_mappings(value, PrivateOptions) for key, value in (options or {}).items()})

    def __repr__(self) -> str:
        return "{" + ", ".join(f"{key!r}: ***" for key in self) + "}"

    __str__ = __repr__


def plain_options(options: Mapping[str, object]) -> dict[str, object]:
    """Return options as ordinary dictionaries: fsspec treats options that print alike as equal, and would use the older secret."""
    return {key: _with_mappings(value, plain_options) for key, value in options.items()}


def _with_mappings(value: object, made: Callable[[Mapping[str, object]], object]) -> object:
    """Return `value` with each mapping in it, and in its lists, replaced by what `made` returns."""
    if isinstance(value, dict):
        return made(value)
    return [_with_mappings(item, made) for item in value] if isinstance(value, list) else value


class Section(BaseModel):
    """A mapping of the file; values with ``${NAME}`` are shown with the reference."""

    model_config = ConfigDict(
        extra="forbid", frozen=True, strict=True, allow_inf_nan=False, hide_input_in_errors=True, validate_default=False
    )

    _written: dict[KeyPath, str] = PrivateAttr(default_factory=dict)

    def __repr_args__(self) -> Iterator[tuple[str | None, object]]:
        for key, value in super().__repr_args__():
            yield key, self._written.get((key,), value) if key else value

    def as_written(self, key: str) -> object:
        """Return the value of a key with its ``${NAME}`` references unresolved: the form to show."""
        return self._written.get((key,), getattr(self, key))

    def remember(self, written: Mapping[KeyPath, str]) -> None:
        """Keep the texts that contain references, by key path, here and in the sections below."""
        self._written = dict(written)
        for key in type(self).model_fields:
            child = getattr(self, key)
            if isinstance(child, Section):
                child.remember({path[1:]: text for path, text in written.items() if path[0] == key and path[1:]})


def section_of(parameters: Sequence[Parameter], key: str, *first: str) -> type[Section]:
    """Return a base class with the fields `first`, and one for each of `parameters` that the file has under `key`.

    Fields in `first` and fields with a special domain only reserve their position; the class gives them a type.
    """
    fields: dict[str, Any] = dict.fromkeys(first, (Any, None))
    fields |= {each.name: (annotation_of(each.domain), each.default) for each in parameters if each.key == key}
    return create_model("Parameters", __base__=Section, **fields)


def annotation_of(domain: Domain) -> object:
    """Return the type with which pydantic validates the values of a domain."""
    if domain.names:
        return Literal[domain.names]
    if domain.schema is None:
        return Any
    allowed = Field(description=domain.allowed)
    return Annotated[object, PlainValidator(domain.plain), WithJsonSchema(domain.schema), allowed]


_Share = Annotated[float, Field(gt=0, lt=1)]


class ThresholdValue(TypedDict):
    """Take all components with an eigenvalue of at least `threshold` times the largest."""

    __pydantic_config__ = ConfigDict(extra="forbid", strict=True)  # type: ignore[misc]
    threshold: _Share
    """Share of the largest eigenvalue."""


class FrobeniusValue(TypedDict):
    """Take the smallest number of components whose squared eigenvalues reach a share of the squared Frobenius norm."""

    __pydantic_config__ = ConfigDict(extra="forbid", strict=True)  # type: ignore[misc]
    frobenius: _Share
    """Share of the squared norm."""


Text: TypeAlias = Annotated[str, _require(_is_one_line)]
_Texts = Annotated[tuple[Text, ...], Field(min_length=1)]
_Path = Annotated[Text, _require(_is_address), AfterValidator(os.path.expanduser)]
_Paths = Annotated[tuple[_Path, ...], Field(min_length=1)]
RowsDType: TypeAlias = Literal[
    "float16", "float32", "float64", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"
]
"""Data types for written rows."""
_AtLeast1 = Annotated[int, Field(ge=1)]
_SizeText = Annotated[
    str,
    Field(pattern=r"^[0-9]{1,18}(\.[0-9]{1,9})? *[kmgtpKMGTP]?i?[bB]$"),
    _require(lambda size: memory_in_bytes(size) <= _MAX_MEMORY_BYTES),
]

Names: TypeAlias = Annotated[
    Annotated[_Texts, _require(_are_different)] | None,
    BeforeValidator(_listed, json_schema_input_type=Text | _Texts | None),
    Field(description="a name, a list of different names, or null"),
]
Flag: TypeAlias = Annotated[bool, Field(description="true or false")]
Count: TypeAlias = Annotated[int, Field(ge=1, description="a whole number of at least 1")]
LagList: TypeAlias = Annotated[tuple[Annotated[int, Field(ge=0)], ...], Field(min_length=1)]
Degree: TypeAlias = Annotated[int, Field(ge=1, le=20, description="a whole number from 1 to 20")]
Natural: TypeAlias = Annotated[int, Field(ge=0, description="a whole number of at least 0")]
Positive: TypeAlias = Annotated[float, Field(gt=0, description="a number above 0")]
AutoOrCount: TypeAlias = Annotated[
    Literal["auto"] | _AtLeast1, Field(description="auto, or a whole number of at least 1")
]
Device: TypeAlias = Annotated[
    str, Field(pattern=f"^({DEVICE_NAME})$", description="cpu, or cuda or cuda:1 for a graphics card")
]
Options: TypeAlias = Annotated[
    dict[str, object], AfterValidator(PrivateOptions), Field(description="a mapping of options")
]
RunName: TypeAlias = Annotated[
    Text,
    _require(_is_name),
    Field(description="a name for the run: text on one line without slashes"),
]
SourcePath: TypeAlias = Annotated[
    _Path | _Paths,
    BeforeValidator(_as_tuple),
    Field(description="a local path, a URL, or builtin:NAME, or a list of paths"),
]
Directory: TypeAlias = Annotated[
    Path,
    BeforeValidator(_as_directory, json_schema_input_type=str),
    _require(is_short_enough),
    Field(description="a local directory, with names of at most 220 bytes; copy it to a store when it is complete"),
]
MemorySize: TypeAlias = Annotated[
    Annotated[int, Field(ge=MIN_MEMORY_BYTES, le=_MAX_MEMORY_BYTES)]
    | Annotated[_SizeText, _require(lambda size: memory_in_bytes(size) >= MIN_MEMORY_BYTES)]
    | None,
    Field(description="a size of at least 64 MiB such as 2GiB, a whole number of bytes, or null"),
]
AutoOrSize: TypeAlias = Annotated[
    Literal["auto"] | Annotated[int, Field(ge=0, le=_MAX_MEMORY_BYTES)] | _SizeText,
    Field(description="auto, a size such as 64MiB, or a whole number of bytes; 0 for none"),
]
Wait: TypeAlias = Annotated[
    str,
    Field(
        pattern=r"^[0-9]{1,12}(\.[0-9]{1,9})? *(ms|s|min|h|d)$",
        description="a duration such as 30s, 5min or 1h (ms, s, min, h, d)",
    ),
    _require(lambda wait: 0 < seconds_of(wait) <= _MAX_SECONDS),
]
Duration: TypeAlias = Annotated[
    Wait | None, Field(description="a duration such as 30s, 5min or 1h (ms, s, min, h, d), or null")
]
SchedulerAddress: TypeAlias = Annotated[
    str,
    Field(pattern=_ADDRESS, description="the address of a scheduler, tls://HOST:PORT or tcp://HOST:PORT"),
    _require(lambda address: 0 < int(address.rpartition(":")[2]) < 2**16),
]
Sampling: TypeAlias = Annotated[
    SamplingName | Annotated[tuple[Annotated[int, Field(ge=0)], ...], Field(min_length=1), _require(_are_different)],
    BeforeValidator(_as_tuple),
    Field(description="auto, uniform, diagonal, column_norm, rpcholesky, or a list of different row numbers"),
]
NComponents: TypeAlias = Annotated[
    _AtLeast1 | _Share | ThresholdValue | FrobeniusValue | RuleName | None,
    Field(
        description="a whole number of at least 1, a share of variance such as 0.95, "
        f"{{threshold: E}} or {{frobenius: S}} with numbers between 0 and 1, {', '.join(RULES)}, or null"
    ),
]
KernelNComponents: TypeAlias = Annotated[
    _AtLeast1 | _Share | ThresholdValue | None,
    Field(
        description="a whole number of at least 1, a share of the trace such as 0.95, {threshold: E} with a number between 0 and 1, or null"
    ),
]


_NOT_OPTIONS = {
    "asynchronous": "streampca does not work that way",
    "loop": "streampca has its own",
    "n_workers": "cluster.n_workers sets it",
    "protocol": "the kind sets it",
    "security": "cluster.tls sets it",
    "silence_logs": "a log of a task would show its arguments",
}
_FileName: TypeAlias = Annotated[Text, Field(description="text on one line")]


class ThreadsCluster(Section):
    """A thread pool in this process."""

    kind: Literal["threads"] = "threads"
    """Run in the threads of this process."""


class LocalCluster(Section):
    """Worker processes on this machine."""

    kind: Literal["local"]
    """Start workers on this machine."""
    n_workers: AutoOrCount = "auto"
    """Number of processes."""
    threads_per_worker: AutoOrCount = "auto"
    """Number of threads per process."""
    wait: Wait = "2min"
    """How long to wait for workers; those that fail to start are replaced meanwhile."""
    dashboard: Flag = False
    """Serve the dashboard of Dask on the loopback interface, and print its address."""


class TLSConfig(Section):
    """PEM files that secure a connection."""

    ca_file: _FileName
    """Certificate of the certificate authority."""
    cert: _FileName
    """Certificate to present."""
    key: _FileName
    """Private key of this certificate."""


class AddressCluster(Section):
    """A running scheduler."""

    kind: Literal["address"]
    """Connect to a running scheduler."""
    address: SchedulerAddress
    """Address of the scheduler, such as ``tls://host:8786``."""
    tls: TLSConfig | None = None
    """PEM files for a ``tls://`` connection; null uses those in the configuration of Dask."""
    allow_remote: Flag = False
    """Allow rows and code to be sent to another machine."""
    wait: Wait = "1min"
    """How long to wait for the first worker."""

    @model_validator(mode="after")
    def _nothing_leaves_this_machine_in_the_clear(self) -> AddressCluster:
        encrypted = self.address.startswith("tls://")
        if not is_loopback(self.address):
            if not self.allow_remote:
                raise PydanticCustomError(
                    "rule",
                    "address is that of another machine, to which rows and code would go: set allow_remote: true if they may",
                )
            if not encrypted:
                raise PydanticCustomError(
                    "rule",
                    "address is that of another machine and the connection would not be encrypted: write tls://HOST:PORT and "
                    "tls: {ca_file, cert, key}, or make a tunnel and give its end on this machine, tcp://127.0.0.1:PORT",
                )
        if self.tls is not None and not encrypted:
            raise PydanticCustomError("rule", "tls is given, but address is not encrypted: write tls://HOST:PORT")
        return self


class SlurmCluster(Section):
    """Workers in SLURM jobs; every connection is encrypted."""

    kind: Literal["slurm"]
    """Start workers as SLURM jobs."""
    n_workers: Count = 1
    """Number of workers to request."""
    threads_per_worker: AutoOrCount = "auto"
    """Number of threads per worker; auto leaves it to `options`."""
    tls: TLSConfig | None = None
    """PEM files for scheduler, workers and client; null creates a certificate for this run."""
    wait: Wait = "10min"
    """How long to wait for workers."""
    dashboard: Flag = False
    """Serve the dashboard of Dask on the loopback interface, and print its address."""
    options: Options = Field(default_factory=PrivateOptions)
    """Options for ``dask_jobqueue.SLURMCluster``."""

    @model_validator(mode="after")
    def _options_do_not_contradict(self) -> SlurmCluster:
        for key in _NOT_OPTIONS.keys() & self.options:
            raise PydanticCustomError("rule", f"options may not hold {key}: {_NOT_OPTIONS[key]}")
        return self


AnyCluster = ThreadsCluster | LocalCluster | AddressCluster | SlurmCluster


def without_kubernetes(cluster: object) -> object:
    """Refuse ``kind: kubernetes``, which 0.2.0 had, and suggest an alternative; return all other values unchanged."""
    if isinstance(cluster, dict) and cluster.get("kind") == "kubernetes":
        raise PydanticCustomError(
            "rule",
            "kind kubernetes was removed: have the Dask operator start scheduler and workers, and give the scheduler as kind: "
            "address, address: tls://HOST:PORT, allow_remote: true",
        )
    return cluster
