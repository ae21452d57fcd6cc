"""The clusters that a configuration may name: the keys of each kind, and what none of them does by accident."""

from __future__ import annotations

from typing import Annotated, Literal, TypeAlias

from pydantic import Field, model_validator
from pydantic_core import PydanticCustomError

from streampca.runs.config.values import (
    AutoOrCount,
    Count,
    Flag,
    Options,
    PrivateOptions,
    SchedulerAddress,
    Section,
    Text,
    Wait,
    is_loopback,
)

_NOT_OPTIONS = {
    "asynchronous": "streampca does not work that way",
    "loop": "streampca has its own",
    "n_workers": "cluster.n_workers says it",
    "protocol": "it follows from the kind",
    "security": "cluster.tls says it",
    "silence_logs": "a log of a task would show its arguments",
}
_FileName: TypeAlias = Annotated[Text, Field(description="text on one line")]


class ThreadsCluster(Section):
    """A thread pool in this process."""

    kind: Literal["threads"] = "threads"
    """Says that no other process is started."""


class LocalCluster(Section):
    """Worker processes on this machine."""

    kind: Literal["local"]
    """Says that workers are started here."""
    n_workers: AutoOrCount = "auto"
    """Number of processes."""
    threads_per_worker: AutoOrCount = "auto"
    """Number of threads of each."""
    wait: Wait = "2min"
    """How long to wait for workers; those that do not start are replaced meanwhile."""
    dashboard: Flag = False
    """Serve Dask's pages on the loopback, and say where."""


class TLSConfig(Section):
    """Files that secure a connection, all in PEM."""

    ca_file: _FileName
    """Certificate of the authority."""
    cert: _FileName
    """Our certificate."""
    key: _FileName
    """Our key."""


class AddressCluster(Section):
    """A scheduler that runs already."""

    kind: Literal["address"]
    """Says that nothing is started."""
    address: SchedulerAddress
    """Address of the scheduler, such as ``tls://host:8786``."""
    tls: TLSConfig | None = None
    """Files of a ``tls://`` connection; null takes those of Dask's own configuration."""
    allow_remote: Flag = False
    """Let rows and code go to another machine."""
    wait: Wait = "1min"
    """How long to wait for a first worker."""

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
    """Workers that SLURM starts as jobs; every connection is encrypted."""

    kind: Literal["slurm"]
    """Says that workers are jobs of SLURM."""
    n_workers: Count = 1
    """Number of workers asked for."""
    threads_per_worker: AutoOrCount = "auto"
    """Number of threads of each; auto leaves it to `options`."""
    tls: TLSConfig | None = None
    """Files for scheduler, workers and us; null makes a certificate for this run."""
    wait: Wait = "10min"
    """How long to wait for workers."""
    dashboard: Flag = False
    """Serve Dask's pages on the loopback, and say where."""
    options: Options = Field(default_factory=PrivateOptions)
    """Passed on to ``dask_jobqueue.SLURMCluster``."""

    @model_validator(mode="after")
    def _options_do_not_contradict(self) -> SlurmCluster:
        for key in _NOT_OPTIONS.keys() & self.options:
            raise PydanticCustomError("rule", f"options may not hold {key}: {_NOT_OPTIONS[key]}")
        return self


AnyCluster = ThreadsCluster | LocalCluster | AddressCluster | SlurmCluster


def without_kubernetes(cluster: object) -> object:
    """Refuse ``kind: kubernetes``, which 0.2.0 had, with what to do instead; return everything else as it is."""
    if isinstance(cluster, dict) and cluster.get("kind") == "kubernetes":
        raise PydanticCustomError(
            "rule",
            "kind kubernetes is no longer there: have the Dask operator start scheduler and workers, and give the scheduler as kind: "
            "address, address: tls://HOST:PORT, allow_remote: true",
        )
    return cluster
