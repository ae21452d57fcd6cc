"""Clusters for a run: workers on this machine, a scheduler that runs already, jobs of SLURM."""

from __future__ import annotations

import logging
import re
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, cast

from streampca.errors import ClusterError, ConfigError, StreamPCAError
from streampca.execution.distributed.active_client import forget, using_client
from streampca.logs import Notice
from streampca.planning.work import workers_of
from streampca.runs.config.clusters import (
    AddressCluster,
    AnyCluster,
    LocalCluster,
    SlurmCluster,
    ThreadsCluster,
)
from streampca.runs.config.values import seconds_of
from streampca.runs.deploy.local import (
    LocalStart,
    StartedCluster,
    n_workers_and_threads,
    nannies_of,
    process_of,
)
from streampca.runs.deploy.options import (
    certificates_of,
    class_of,
    closing_jobs,
    security_of,
    settings_of,
    slurm_options,
)
from streampca.typing import DaskClient, Json

if TYPE_CHECKING:
    from distributed import Client

    from streampca.runs.config import RunConfig


Startable = LocalCluster | SlurmCluster

_NOISE = re.compile(r"in <[^>]*>: |\[Errno -?[0-9]+\] ")
_CONNECT_SECONDS = 20.0  # to a scheduler that was just started, if `wait` is less
_CLOSE_SECONDS, _KILL_SECONDS = 5.0, 2.0  # a run that a signal stops is to end within ten
_CLOSE_JOBS_SECONDS = 30.0
_NEXT_SECONDS = 15.0  # how long work waits for the next worker when there are some
_START_SECONDS = 15.0  # between two looks whether workers of this machine still work on their start


class _Background(logging.Handler):
    """Hears of calls that failed in the loop of a cluster, which nobody else is told."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.error: BaseException | None = None

    def emit(self, record: logging.LogRecord) -> None:
        """Keep the first error; those of pages are not meant."""
        if record.exc_info and self.error is None and record.getMessage().startswith("Exception in callback"):
            self.error = record.exc_info[1]


@contextmanager
def cluster_of(config: RunConfig, notice: Notice | None = None) -> Iterator[None]:
    """Start or join the cluster that `config` names, for as long as the block lasts; its client is the active one.

    `notice` is told where the dashboard is, and how many workers came if they are fewer than were asked for. Closing takes a
    bounded time, whatever state the workers are in.

    Raises
    ------
    ClusterError
        If no scheduler answers, no worker comes in time, or the system that starts workers refuses to.
    ConfigError
        If the files of `tls` cannot be used, or `options` are refused.
    NotAvailableError
        If the package that a kind needs is not installed.
    """
    cluster, notify = config.cluster, notice or (lambda _: None)
    if isinstance(cluster, ThreadsCluster):
        yield
        return
    import dask

    settings = settings_of(cluster)
    with dask.config.set(settings), _quiet() as background, ExitStack() as stack:
        if isinstance(cluster, AddressCluster):
            with _in_use(_scheduler_at(cluster)) as client:
                _wait_for(client, 1, cluster.wait, "the scheduler has none: start some", background)
                yield
            return
        start, advice, seconds = _starting(config, cluster, settings, stack)
        with (
            _closing(_started(start, cluster), seconds, notify) as started,
            _in_use(_client_of(started, cluster)) as client,
        ):
            if cluster.dashboard:
                notify(f"dashboard: {_pages(started)}")
            wanted, workers = cluster.n_workers, None
            if isinstance(cluster, LocalCluster):
                wanted, _ = n_workers_and_threads(cluster)
                workers = LocalStart(started, wanted)
            came = _wait_for(client, int(wanted), cluster.wait, advice, background, workers)
            if came < int(wanted):
                notify(f"{came} of {wanted} workers have come: going on with them, others may join")
            yield


@contextmanager
def planning_for(config: RunConfig) -> Iterator[None]:
    """Have plans of this block count what those of a run count on the cluster that `config` names, which is not started.

    The workers of one on this machine are known beforehand; of another kind, as before the first of them has come, none is.
    """
    cluster = config.cluster
    if isinstance(cluster, ThreadsCluster):
        yield
        return
    import dask

    # With this the modules of `distributed` are in memory, as in a run.
    with dask.config.set(settings_of(cluster)), using_client(cast(DaskClient, _WorkersToCome(cluster))):
        yield


class _WorkersToCome:
    """What planning asks of the client of a cluster."""

    status, scheduler = "running", None

    def __init__(self, cluster: AnyCluster):
        self.workers: Json = {}
        if isinstance(cluster, LocalCluster):
            n_workers, n_threads = n_workers_and_threads(cluster)
            one = {"nthreads": n_threads, "memory_limit": 0, "host": "127.0.0.1"}
            self.workers = {f"tcp://127.0.0.1:{i}": one for i in range(n_workers)}

    def scheduler_info(self, n_workers: int) -> Json:
        """Return the workers in the form of `distributed.Client.scheduler_info`."""
        return {"workers": self.workers}


def _starting(
    config: RunConfig, cluster: Startable, settings: dict[str, object], stack: ExitStack
) -> tuple[Callable[[], StartedCluster], str, float]:
    """Return what starts the workers, what to do if none comes, and how many seconds closing may take."""
    if isinstance(cluster, LocalCluster):
        import distributed

        options = _local_options(cluster)
        advice = "they ended or stood still while they started; look at the memory and the load of this machine"
        return lambda: distributed.LocalCluster(**options), advice, _CLOSE_SECONDS  # type: ignore[no-untyped-call]
    slurm = class_of("dask_jobqueue", "SLURMCluster", "slurm")
    if shutil.which("sbatch") is None:
        raise ClusterError("cluster.kind: slurm: there is no sbatch on this machine: run this where jobs are submitted")
    advice = "squeue tells what the jobs wait for, and with options.log_directory they write down what they say"
    security = stack.enter_context(certificates_of(config, cluster))
    options = slurm_options(config, cluster, settings, security)
    if hasattr(slurm, "job_cls"):
        options["job_cls"] = closing_jobs(slurm.job_cls)
    return lambda: slurm(**options), advice, _CLOSE_JOBS_SECONDS


def _local_options(cluster: LocalCluster) -> dict[str, Any]:
    import dask

    return {
        "n_workers": 0,  # started one step later, by `LocalStart`
        "threads_per_worker": n_workers_and_threads(cluster)[1],
        "host": "127.0.0.1",
        "dashboard_address": "127.0.0.1:0",
        "scheduler_kwargs": {"dashboard": cluster.dashboard},
        "memory_limit": 0,  # the ceiling is kept by the plan, not by killing workers
        # A worker would log a task that fails, with its arguments, and the traceback: the error itself comes back to us.
        "silence_logs": logging.CRITICAL,
        "preload": [*dask.config.get("distributed.worker.preload"), "streampca.runs.deploy.preload"],
    }


def _started(start: Callable[[], StartedCluster], cluster: Startable) -> StartedCluster:
    """Start workers; what other systems say goes on in one line, without the values of options, which may be secrets."""
    options = getattr(cluster, "options", {})
    try:
        return start()
    except StreamPCAError:
        raise
    except (TypeError, ValueError) as error:
        if isinstance(cluster, LocalCluster):
            raise ClusterError(f"the workers on this machine did not start: {_one_line(error)}") from error
        raise ConfigError(f"cluster.options: kind {cluster.kind} refuses them: {_one_line(error, options)}") from error
    except Exception as error:  # every system that starts workers has errors of its own
        raise ClusterError(f"kind {cluster.kind} starts no workers: {_one_line(error, options)}") from error


def _client_of(started: StartedCluster, cluster: Startable) -> Client:
    import distributed

    # Results come straight from workers of this machine, not through the scheduler, which takes half the processor time. A
    # connection to a frozen worker ends because its nanny, which is here too, kills it.
    options = {"direct_to_workers": True} if isinstance(cluster, LocalCluster) else {}
    try:
        return distributed.Client(started, timeout=max(_CONNECT_SECONDS, seconds_of(cluster.wait)), **options)  # type: ignore[no-untyped-call]
    except (OSError, ValueError) as error:
        raise ClusterError(f"the scheduler that was started does not answer: {_one_line(error)}") from error


def _scheduler_at(cluster: AddressCluster) -> Client:
    """Return a client of the scheduler that runs at an address."""
    import distributed

    security = {"security": security_of(cluster.tls)} if cluster.address.startswith("tls://") else {}
    try:
        return distributed.Client(cluster.address, timeout=seconds_of(cluster.wait), **security)  # type: ignore[no-untyped-call]
    except (OSError, ValueError) as error:
        address = str(cluster.as_written("address"))
        reason = _one_line(error).replace(cluster.address, address)
        raise ClusterError(f"no scheduler answers at {address} within {cluster.wait}: {reason}") from error


@contextmanager
def _in_use(client: Client) -> Iterator[Client]:
    """Make `client` the active one, and close it in the end, whether or not the scheduler still answers."""
    try:
        with client.as_current():
            yield client
    finally:
        with suppress(OSError):  # of which TimeoutError is one
            client.close(timeout=_CLOSE_SECONDS)  # type: ignore[no-untyped-call]
        forget(client)


@contextmanager
def _closing(started: StartedCluster, seconds: float, notify: Notice) -> Iterator[StartedCluster]:
    """Close a cluster in the end; kill the processes of ours that do not end in time, such as frozen ones."""
    try:
        yield started
    except BaseException:
        _close(started, seconds, lambda _: None)  # what it has to say comes after what went wrong
        raise
    _close(started, seconds, notify)


def _close(started: StartedCluster, seconds: float, notify: Notice) -> None:
    import distributed
    import psutil

    processes = list(filter(None, map(process_of, nannies_of(started))))
    try:
        started.close(timeout=seconds)
    except TimeoutError:
        for process in processes:
            with suppress(psutil.NoSuchProcess):
                process.kill()
        with suppress(TimeoutError):
            started.close(timeout=_KILL_SECONDS)
    except Exception as error:  # noqa: BLE001 what the work came to does not depend on it
        started.status = distributed.Status.closed  # as far as it goes: Dask gives up at a job that was never begun
        notify(f"the cluster was not closed in order: {_one_line(error)}")


def _wait_for(
    client: Client, wanted: int, within: str, advice: str, background: _Background, local: LocalStart | None = None
) -> int:
    """Wait until `wanted` workers have come, or some and no more for a while; return how many.

    Workers of this machine, which `local` starts, are started again if they end or do not come.

    Raises
    ------
    ClusterError
        If none came in time, or one could not be started.
    """
    now = time.monotonic()
    limit, n_before = now + seconds_of(within), 0
    until = limit if local is None else min(limit, now + _START_SECONDS)
    while (n_present := len(names := _names_of_workers(client))) < wanted:
        now = time.monotonic()
        if local is not None and local.replace_ended():
            until = min(limit, now + _START_SECONDS)
        if local is not None and local.is_over:
            break
        if local is None and background.error is not None:
            raise ClusterError(f"a worker could not be started: {_one_line(background.error)}") from background.error
        if n_present > n_before:
            n_before, until = n_present, min(limit, now + _NEXT_SECONDS)
        if now >= until:
            again = local is not None and local.end_frozen(names)
            if local is None or now >= limit or (n_present and not again):
                break
            until = min(limit, now + _START_SECONDS)
        with suppress(TimeoutError):
            client.wait_for_workers(n_present + 1, timeout=max(0.05, min(1.0, until - now)))
    if not n_present:
        reason = "" if background.error is None else f" ({_one_line(background.error)})"
        raise ClusterError(f"0 of {wanted} workers came within {within}: {advice}{reason}")
    return n_present


def _names_of_workers(client: Client) -> set[object]:
    """Return the names of the workers that have come."""
    return {worker["name"] for worker in workers_of(client).values()}


def _pages(started: StartedCluster) -> str:
    """Return where Dask's pages are: pictures where bokeh is installed, tables of workers and tasks in any case."""
    page = "status" if find_spec("bokeh") else "info/main/workers.html"
    return f"http://127.0.0.1:{started.scheduler_info['services']['dashboard']}/{page}"


@contextmanager
def _quiet() -> Iterator[_Background]:
    """Keep the log of Dask off the terminal: whatever goes wrong is raised, or harmless; yield what hears of the loop."""
    import distributed  # noqa: F401 sets up its loggers

    loop = logging.getLogger("tornado.application")
    handlers = {
        handler: handler.level for name in ("distributed", loop.name) for handler in logging.getLogger(name).handlers
    }
    for handler in handlers:
        handler.setLevel(logging.CRITICAL + 1)
    heard = _Background()
    loop.addHandler(heard)
    try:
        yield heard
    finally:
        loop.removeHandler(heard)
        for handler, level in handlers.items():
            handler.setLevel(level)


def _one_line(error: BaseException, options: object = None) -> str:
    """Return what an error says on one line, with the texts of `options` hidden."""
    text = _NOISE.sub("", " ".join(str(error).split())) or type(error).__name__
    for value in sorted(_texts(options), key=len, reverse=True):
        text = text.replace(value, "***")
    return text if len(text) <= 300 else text[:300] + "…"


def _texts(options: object) -> set[str]:
    if isinstance(options, dict):
        return set().union(*map(_texts, options.values()))
    if isinstance(options, list | tuple):
        return set().union(*map(_texts, options))
    return {options} if isinstance(options, str) and len(options) >= 4 else set()
