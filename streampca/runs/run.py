"""Runs of a configuration, and operations on finished runs of any kind."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from streampca.errors import ConfigError, DataError, NotAvailableError
from streampca.execution.progress import ProgressCallback
from streampca.logs import Notice, logged
from streampca.models.persistence.models import load_saved
from streampca.planning.many import ManyPlan
from streampca.planning.plan import Plan
from streampca.runs.config import RunConfig, load_config
from streampca.runs.config.document import dump
from streampca.runs.config.models import ModelsConfig, load_any_config, parse_any_config
from streampca.runs.deploy import planning_for
from streampca.runs.diagnostics import read_rows
from streampca.runs.from_config import group_by_of, require_possible, source_of
from streampca.runs.manifest import read_json, read_manifest
from streampca.runs.one_model import OneModel
from streampca.runs.report.run_files import FurtherRows
from streampca.runs.report.several import write_groups_report, write_models_report
from streampca.runs.several import GroupsOfRows, SeveralModels, runs_of
from streampca.runs.strategy import Run, Strategy, carry_out, require_place
from streampca.runs.verify import verify_groups, verify_run
from streampca.runs.verify.eigenpairs import Check, Verification
from streampca.storage.directories import read_record
from streampca.storage.figures import changed_figures
from streampca.suggestions import suggests_keywords


@suggests_keywords
def run(
    config: str | Path | Mapping[str, object] | RunConfig | ModelsConfig,
    *,
    overrides: Sequence[str] = (),
    resume: bool = False,
    fresh: bool = False,
    progress: ProgressCallback | None = None,
    notice: Callable[[str], None] | None = None,
) -> Run:
    """Execute the run of a configuration file and return it.

    For several models (``models``) the result is a `RunOfModels`, for groups of rows (``model.group_by``) a
    `RunOfGroups`.

    The directory is built under a temporary name and renamed when complete, so a failed run leaves an existing
    directory unchanged. A stopped run resumes from its checkpoint, the directory ``<output>.checkpoint``, and gives
    the same bits.

    Parameters
    ----------
    config : path, mapping, RunConfig or ModelsConfig
        The YAML file, or its content.
    overrides : sequence of "key.sub=value"
        Changes to the configuration, as with ``--set``.
    resume : bool
        Require a checkpoint to resume from, or a finished run, which is returned unchanged.
    fresh : bool
        Start over and remove an existing checkpoint.
    progress : callable, optional
        Called with a `Progress` as blocks finish, from any thread.
    notice : callable, optional
        Called with a sentence when a stopped run is resumed, a checkpoint is damaged, a dashboard is served, or fewer
        workers start than requested.

    Returns
    -------
    Run, RunOfModels or RunOfGroups
        The finished run with its ``directory``, ``manifest`` and ``model``.

    Raises
    ------
    StreamPCAError
        `ConfigError` for the configuration, `DataError` for the data, `PlanError` if the work does not fit in memory,
        `OutputError` or `NoSpaceError` for the directory, `ClusterError` for the cluster; see `exit_status`.

    Examples
    --------
    >>> from pathlib import Path
    >>> import streampca as sp
    >>> _ = Path("digits.yaml").write_text("{source: {path: 'builtin:digits'}, model: {n_components: 3}, output: {report: false}}")
    >>> finished = sp.run("digits.yaml")
    >>> finished.model.n_components_, finished.manifest["passes"]
    (3, 1)
    """
    if resume and fresh:
        raise ConfigError("resume and fresh contradict each other: give one of them")
    if isinstance(config, Mapping):
        config = parse_any_config(dump(dict(config)), name="the mapping", overrides=overrides)
    elif isinstance(config, str | Path):
        config = load_any_config(config, overrides)
    notice = logged(notice)
    require_place(common_of(config), _kind_of(config).kind, resume=resume)
    return carry_out(strategy_of(config, progress, notice), resume=resume, fresh=fresh)


def plan_run(config: RunConfig | ModelsConfig) -> Plan | ManyPlan:
    """Return the plan of a run of `config`; reads only metadata and labels."""
    with planning_for(common_of(config)):
        return strategy_of(config).planned()


def strategy_of(
    config: RunConfig | ModelsConfig,
    progress: ProgressCallback | None = None,
    notice: Notice = lambda _: None,
) -> SeveralModels | GroupsOfRows | OneModel:
    """Return the run of `config` with an opened source; first refuse configurations that fail for any data."""
    require_possible(config)
    if isinstance(config, ModelsConfig):
        return SeveralModels.of(config, progress, notice)
    if group_by_of(config) is not None:
        return GroupsOfRows.of(config, progress, notice)
    return OneModel.of(config, progress, notice)


def _kind_of(config: RunConfig | ModelsConfig) -> type[Strategy]:
    if isinstance(config, ModelsConfig):
        return SeveralModels
    return OneModel if group_by_of(config) is None else GroupsOfRows


def common_of(config: RunConfig | ModelsConfig) -> RunConfig:
    """Return the configuration of a run; for several models, the part that they share."""
    return config.common if isinstance(config, ModelsConfig) else config


def kind_of(directory: Path) -> str:
    """Return the kind of the finished run in `directory`: ``run``, ``models`` or ``groups``; ``run`` for anything else."""
    kind = str((read_record(directory) or {}).get("format")).removeprefix("streampca-")
    return kind if kind in ("models", "groups") else "run"


def verify_runs(
    directory: Path, *, overrides: Sequence[str] = (), progress: ProgressCallback | None = None
) -> list[Verification]:
    """Return the verification of a finished run, one for each model; the first includes the check of the common manifest."""
    kind = kind_of(directory)
    if kind == "groups":
        return [verify_groups(directory, overrides=overrides, progress=progress)]
    if kind == "run":
        return [verify_run(directory, overrides=overrides, progress=progress)]
    runs = runs_of(directory)
    results = [verify_run(each, overrides=overrides, progress=progress) for each in runs.values()]
    record, manifest = read_record(directory) or {}, read_json(directory, "manifest.json")
    changed = [f"{document} {name}" for document, name in changed_figures(directory, record.get("figures", {}))]
    for name, path in runs.items():
        entry = manifest["models"][name]
        stated = entry.get("result") if isinstance(entry, dict) else None
        if stated != read_json(path, "manifest.json").get("result"):
            changed.append(f"manifest.json models.{name}")
    note = f"not what was committed: {', '.join(changed)}" if changed else "its figures are those of the commit"
    check = Check("manifest of all models", holds=not changed, note=note)
    return [replace(results[0], checks=(*results[0].checks, check)), *results[1:]]


def write_reports(directory: Path, rows: tuple[int, ...] = ()) -> list[Path]:
    """Write the report of a finished run, with more `rows` of the source; for several models, their reports and one that links them."""
    from streampca.runs.report.page import write_report

    kind = kind_of(directory)
    if kind == "groups":
        if rows:
            raise ConfigError(f"{directory} is a run of groups, whose report rebuilds no rows: leave --row out")
        return [write_groups_report(directory)]
    runs = runs_of(directory) if kind == "models" else {"": directory}
    for each in runs.values():
        read_manifest(each)
    pages = [write_report(each, further_rows(each, rows)) for each in runs.values()]
    return [*pages, write_models_report(directory, runs)] if kind == "models" else pages


def further_rows(directory: Path, rows: Sequence[int]) -> FurtherRows | None:
    """Return rows, by number from 0, of the source that the run in `directory` has read; None without numbers.

    Raises
    ------
    ConfigError
        If a row number does not exist.
    DataError
        If the source is gone, or is not the one that the run has read.
    NotAvailableError
        For kernel PCA.
    """
    if not rows:
        return None
    manifest = read_manifest(directory)
    model = load_saved(directory / "model.zarr")[0]
    if model.linear is None:
        raise NotAvailableError(
            f"{directory}: rows are rebuilt for PCA only, and this is a run of kernel PCA: leave --row out"
        )
    n = int(manifest["source"]["shape"][0])
    wrong = [row for row in rows if not 0 <= row < n]
    if wrong:
        raise ConfigError(
            f"--row {wrong[0]}: expected the number of a row from 0 to {n - 1}, those of the run in {directory}"
        )
    mask = None if model.labels is None else model.labels.mask
    source = source_of(load_config(directory / "config.yaml"), mask=mask)
    if source.fingerprint != manifest["source"]["fingerprint"]:
        raise DataError(
            f"{source.description} is not what the run in {directory} read: restore it, or run again, to draw its rows"
        )
    with source.reading():
        values = read_rows(source, list(rows))[0]
    return FurtherRows(values, np.array(rows, dtype=np.int64))
