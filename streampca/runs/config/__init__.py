"""The YAML file as validated, frozen classes: every key, its default and what it may hold."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from operator import or_
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeAlias

from pydantic import BeforeValidator, Field, ValidationError, create_model, model_validator
from pydantic_core import PydanticCustomError

from streampca.counts import NORMALIZE, CountKey, keys_in_words
from streampca.parameters import (
    KERNEL_PCA_PARAMETERS,
    KINDS,
    PCA_PARAMETERS,
    ModelKind,
)
from streampca.parameters.statement import KernelName
from streampca.redaction import redacted, without_secrets
from streampca.runs.config.document import Document, dump, problems_of, with_texts
from streampca.runs.config.values import (
    AnyCluster,
    AutoOrCount,
    AutoOrSize,
    Count,
    Degree,
    Device,
    Directory,
    Duration,
    Flag,
    KernelNComponents,
    LagList,
    MemorySize,
    Names,
    Natural,
    NComponents,
    Options,
    Positive,
    PrivateOptions,
    RowsDType,
    RunName,
    Sampling,
    Section,
    SourcePath,
    Text,
    ThreadsCluster,
    memory_in_bytes,
    one_list_of_kernels,
    seconds_of,
    section_of,
    without_kubernetes,
)


def _of_counts(key: CountKey) -> tuple[Any, Any]:
    """Return type and default of a key of ``normalize``."""
    if key.takes is bool:
        return Flag, False
    kinds: list[Any] = [Positive] if key.takes is float else []
    kinds += [Literal[key.words]] if key.words else []
    return reduce(or_, kinds) | None, Field(default=None, description=key.allowed.replace("None", "null"))


_ARRAY_OR_FILE = "the path of an .npy file, the name of an array beside the codes, or null"
_OF_COUNTS: dict[str, Any] = {key.name: _of_counts(key) for key in NORMALIZE}


class NormalizeConfig(create_model("NormalizeConfig", __base__=Section, **_OF_COUNTS)):  # type: ignore[misc]
    """How rows are normalised while they are read; tables that are not AnnData take norm, log1p, and numbers as target_sum."""

    @model_validator(mode="after")
    def _does_something(self) -> NormalizeConfig:
        if not any(getattr(self, key.name) for key in NORMALIZE):
            some = ", ".join(f"{key.name}: true" if key.takes is bool else key.name for key in NORMALIZE)
            raise PydanticCustomError("rule", f"does nothing: give {some}, or null")
        return self


class QuantizationConfig(Section):
    """What codes of int8 or uint8 mean: the values of a table or of a power, times the scale of their row where there is one."""

    table: Text | None = Field(default=None, description=_ARRAY_OR_FILE)
    """The values of the 256 codes in ascending order."""
    power: Positive | None = Field(default=None, description="a number above 0, or null")
    """A code c stands for sign(c) · abs(c / divisor) ** power."""
    divisor: Positive | None = Field(default=None, description="a number above 0, or null (1)")
    """By what codes are divided before they are raised to a power."""
    scale: Text | None = Field(default=None, description=f"the name of a column of Parquet files, {_ARRAY_OR_FILE}")
    """A number above 0 for each row, by which its values are multiplied; beside table or power, or alone."""
    nodata: int | tuple[int, ...] | None = Field(default=None, description="a code, a list of codes, or null")
    """Codes that count as missing, as NaN does."""

    @model_validator(mode="after")
    def _says_what_codes_mean(self) -> QuantizationConfig:
        if self.table is None and self.power is None and self.scale is None:
            raise PydanticCustomError("rule", "does not say what codes mean: give table, power or scale, or null")
        return self


class SourceConfig(Section):
    """Where the data are and how they lie."""

    path: SourcePath
    """Local path (``~`` expanded, relative to the working directory), pattern such as ``shards/*.npy``, list of these, URL, or
    ``icechunk:PATH``, or ``builtin:NAME``."""
    array: Text | None = Field(default=None, description="the name of an array inside the group, or null")
    """Name of the array inside a group."""
    variables: Names = None
    """Names of several arrays inside a group on the same samples, whose features are put side by side."""
    samples: Names = None
    """Dimensions whose places are the rows, the slowest first; needed for arrays of more than two dimensions."""
    features: Names = None
    """Dimensions whose places are the columns, the slowest first; by default all others."""
    columns: Names = None
    """Columns of Parquet files that are read, in this order; by default all, which must be numbers or lists of numbers."""
    id_column: Text | None = Field(default=None, description="the name of a column, or null")
    """Column of Parquet files that names the rows."""
    mask: Text | None = Field(
        default=None,
        description="observed, survey, the path of an .npy file, the name of an array beside the data, or null",
    )
    """Features that are used: those observed in the first rows, those observed in any row, or those that are true in an array."""
    labels: Text | None = Field(
        default=None,
        description="a sample coordinate, a part of its times such as time.season, a column of Parquet files or of obs, the path of an .npy "
        "file, the name of an array beside the data, or null",
    )
    """Class of each sample, text or whole numbers, which colours the score plots of the report."""
    orientation: Literal["samples_first", "features_first"] | None = Field(
        default=None, description="samples_first, features_first, or null (samples_first)"
    )
    """Whether an array of two dimensions is stored as ``(n_samples, n_features)`` or the other way round."""
    missing_chunks: Literal["error", "fill", "fill_labels"] = "error"
    """What to do about chunks that the store doesn't hold."""
    missing_value: int | float | None = Field(default=None, allow_inf_nan=False, description="a number, or null")
    """Stored number that counts as missing, as NaN does, beside what the data declare."""
    quantization: QuantizationConfig | None = Field(
        default=None, description="a mapping with table, power, divisor, scale or nodata, or null"
    )
    """What codes of int8 or uint8 mean, such as embeddings."""
    verify: Text | None = Field(
        default=None, description="manifest, the path of a fingerprint or of a run with a state, or null"
    )
    """Fingerprint that every chunk is compared with; ``manifest``: the one that ``streampca fingerprint`` writes."""
    follow_symlinks: Flag = False
    """Ignored with a warning, and ends with the next minor version: links in a store are followed."""
    decode: Literal["auto", "raw"] = "auto"
    """Whether packed values of zarr arrays (CF conventions) are decoded, or read as they are stored."""
    layer: Text | None = Field(default=None, description="the name of a layer of AnnData, or null")
    """Layer of AnnData that is read in place of X; ``raw/X`` for that of ``raw``."""
    mask_var: Text | None = Field(default=None, description="the name of a column of truth values in var, or null")
    """Column in ``var`` of AnnData that says which features are used, such as ``highly_variable``."""
    normalize: NormalizeConfig | None = Field(default=None, description=f"{keys_in_words()}, or null")
    """Normalisation of each row, while it is read; of tables that are not AnnData by norm, log1p, and a number as target_sum."""
    genes: Literal["same", "intersection"] = "same"
    """Features of several AnnData: the same in all, or those that all have."""
    lags: Count | LagList | None = Field(
        default=None, description="a whole number of at least 1, a list of different whole numbers, or null"
    )
    """How many consecutive samples make a row, or at which lags: lagged copies, for extended EOFs and singular spectrum analysis."""
    where: Text | None = Field(
        default=None,
        description="a condition on coordinates and columns such as time.season == 'DJF', the path of an .npy file of truth values, or null",
    )
    """Samples that are used; those that are left out have scores NaN."""
    storage_options: Options = Field(default_factory=PrivateOptions)
    """Options of obstore for a URL, references resolved; write them nowhere."""
    branch: Text | None = Field(default=None, description="the name of a branch of an icechunk repository, or null")
    """Branch of an icechunk repository, ``icechunk:PATH``, whose last snapshot is read; by default main."""
    tag: Text | None = Field(default=None, description="the name of a tag of an icechunk repository, or null")
    """Tag of the snapshot that is read."""
    snapshot: Text | None = Field(
        default=None, description="the identifier of a snapshot of an icechunk repository, or null"
    )
    """Identifier of the snapshot that is read."""

    @model_validator(mode="after")
    def _one_way_of_saying_it(self) -> SourceConfig:
        if self.array is not None and self.variables is not None:
            raise PydanticCustomError("rule", "array and variables both name what is read: give one of them")
        if self.orientation is not None and (self.samples is not None or self.features is not None):
            raise PydanticCustomError("rule", "samples and features already give the orientation: leave it out")
        return self

    @property
    def path_as_written(self) -> str:
        """The path with its ``${NAME}`` references kept and no password or query: the form to show and to store."""
        if isinstance(self.path, str):
            return redacted(self._written.get(("path",), self.path))
        return ", ".join(redacted(self._written.get(("path", i), path)) for i, path in enumerate(self.path))


_WEIGHTS = "the path of an .npy file, the name of an array beside source.array, or null"


class RemoveConfig(Section):
    """What is subtracted from each feature: what regression on these explains."""

    groups: Text | None = Field(
        default=None,
        description="a part of the times of a sample coordinate such as time.month, the name of a sample coordinate, a column of Parquet "
        "files or of obs, the path of an .npy file, the name of an array beside the data, or null",
    )
    """One label for each row, whose means are subtracted; of times month, season, year, dayofyear or hour."""
    trend: Degree | None = Field(default=None, description="a whole number from 1 to 20, or null")
    """Degree of a polynomial over the coordinate of the first sample dimension, or over the numbers of the rows."""
    covariates: Text | None = Field(default=None, description="the path of an .npy file, or null")
    """Covariates of each row, ``(n_samples, n_covariates)``."""

    @model_validator(mode="after")
    def _names_something(self) -> RemoveConfig:
        if self.groups is None and self.trend is None and self.covariates is None:
            raise PydanticCustomError("rule", "names nothing: give groups, trend or covariates, or null")
        return self


class PreprocessConfig(section_of(PCA_PARAMETERS, "preprocess")):  # type: ignore[misc]
    """What happens to the rows before the components are taken."""

    sample_weight: Text | None = Field(default=None, description=_WEIGHTS)
    """Path of an ``.npy`` file, or name of an array beside `source.array`: how many times each sample counts."""
    feature_weight: Text | None = Field(
        default=None, description=f"the cosine of a coordinate such as cos(lat), {_WEIGHTS}"
    )
    """The same for features, or the cosine of their coordinate: centred and scaled features are multiplied by the square root."""
    remove: RemoveConfig | None = Field(default=None, description="a mapping with groups, trend or covariates, or null")


_FIRST = "a whole number of at least 1, the names of variables that come first, or null"
_KERNEL_KEYS = {
    "linear": (),
    "rbf": ("gamma", "sigma"),
    "poly": ("gamma", "degree", "coef0"),
    "sigmoid": ("gamma", "coef0"),
    "tanh": ("gamma", "coef0"),
    "laplacian": ("gamma",),
    "cosine": (),
}


class KernelConfig(Section):
    """One kernel of a sum; keys that are null are those of the model."""

    name: KernelName = "rbf"
    """Name of the kernel function."""
    gamma: Positive | None = Field(default=None, description="a number above 0, or null")
    """Factor of the inner product or of the distance."""
    sigma: Positive | None = Field(default=None, description="a number above 0, or null")
    """Width of an rbf kernel, in place of gamma."""
    degree: Count | None = Field(default=None, description="a whole number of at least 1, or null")
    """Degree of a polynomial kernel."""
    coef0: float | None = Field(default=None, description="a number, or null")
    """Constant added to the inner product."""
    weight: Positive = 1.0
    """Factor of this kernel in the sum."""

    @model_validator(mode="after")
    def _only_keys_of_its_kind(self) -> KernelConfig:
        accepted = _KERNEL_KEYS[self.name]
        for key in ("gamma", "sigma", "degree", "coef0"):
            if key not in accepted and getattr(self, key) is not None:
                keys = ", ".join(("name", *accepted, "weight"))
                raise PydanticCustomError("rule", f"kernel {self.name} has no {key} (keys: {keys})")
        if self.gamma is not None and self.sigma is not None:
            raise PydanticCustomError("rule", "gamma and sigma both set the width: give one of them")
        return self


Kernels: TypeAlias = Annotated[
    tuple[KernelConfig, ...],
    BeforeValidator(
        one_list_of_kernels,
        json_schema_input_type=KernelName
        | KernelConfig
        | Annotated[list[KernelName | KernelConfig], Field(min_length=1)],
    ),
    Field(description="the name of a kernel, a mapping with name, gamma, …, or a list of these"),
]


class PCAConfig(section_of(PCA_PARAMETERS, "model", "kind")):  # type: ignore[misc]
    """Parameters of `streampca.PCA`, each under its own name."""

    kind: Literal["pca"] = "pca"
    """Linear PCA; ``kernel_pca`` is kernel PCA."""
    n_components: NComponents = None
    kernel: Kernels | None = None
    """Read by ``kind: kernel_pca`` only; accepted here, so that one file serves both kinds by its `kind`."""
    group_by: Text | None = Field(
        default=None,
        description="a sample coordinate, a part of its times such as time.month, a column of Parquet files or of obs, the path of an .npy "
        "file, the name of an array beside the data, or null",
    )
    """Label of each row: one model for each group of rows, within groups, and of the group means, from one reading."""
    rotation: Literal["varimax", "promax"] | None = None
    """How the components are rotated after the fit, as by `PCA.rotate`; scores, page and model are those of the rotated ones."""

    def warnings(self) -> list[str]:
        """Return sentences about keys that are not used."""
        return [] if self.kernel is None else ["model.kernel is read by kind: kernel_pca only and was not used"]


class KernelPCAConfig(section_of(KERNEL_PCA_PARAMETERS, "model", "kind")):  # type: ignore[misc]
    """Parameters of `streampca.KernelPCA`, each under its own name."""

    kind: Literal["kernel_pca"]
    """Kernel PCA; ``pca`` is linear PCA."""
    n_components: KernelNComponents = None
    kernel: Kernels = (KernelConfig(),)
    kernel_params: None = Field(default=None, description="null")
    sampling: Sampling = "auto"

    def warnings(self) -> list[str]:
        """Return sentences about keys that are not used; there are none."""
        return []


class AnalysisConfig(Section):
    """What the analyses of an accumulated covariance share."""

    if TYPE_CHECKING:
        kind: str
        n_components: int
        first: int | tuple[str, ...] | None
        rotation: str | None

    def warnings(self) -> list[str]:
        """Return sentences about keys that are not used; there are none."""
        return []


_SPECIAL: dict[str, Any] = {"first": (Count | Names, Field(default=None, description=_FIRST))}
"""Keys of analyses whose domains are special."""


def _section_of_analysis(kind: ModelKind) -> type[AnalysisConfig]:
    """Return the section of the parameters of an analysis, each under its own name."""
    bases: Any = (section_of(kind.parameters, "model", "kind"), AnalysisConfig)
    fields: dict[str, Any] = {"kind": (Literal[kind.name], ...)}
    fields |= {each.name: _SPECIAL[each.name] for each in kind.parameters if each.name in _SPECIAL}
    section: type[AnalysisConfig] = create_model(f"{kind.estimator}Config", __base__=bases, **fields)
    section.__doc__ = f"Parameters of `streampca.{kind.estimator}`, each under its own name."
    return section


ANALYSES = {kind.name: _section_of_analysis(kind) for kind in KINDS.values() if kind.is_analysis}
"""Sections of analyses by the names of their kinds."""
if TYPE_CHECKING:
    ModelConfig: TypeAlias = PCAConfig | KernelPCAConfig | AnalysisConfig
else:
    ModelConfig = reduce(or_, (PCAConfig, KernelPCAConfig, *ANALYSES.values()))


class StatisticsConfig(section_of(PCA_PARAMETERS, "statistics")):  # type: ignore[misc]
    """What is computed about the answer as an estimate from a sample."""


class ResourcesConfig(Section):
    """What the process may use."""

    memory: MemorySize = None
    """Ceiling for the whole process, as it was written; null leaves it to the plan."""
    threads: AutoOrCount = "auto"
    """Number of threads."""
    device: Device = "cpu"
    """Where products of rows are made: cpu, or cuda or cuda:1 for a graphics card."""
    read_ahead: AutoOrSize = "auto"
    """Most memory for stored bytes that are requested ahead of their use from a URL; auto: 128 MiB. `memory` limits it, too."""

    @property
    def read_ahead_bytes(self) -> int | None:
        """The most memory for reading ahead in bytes, or None for auto."""
        return None if self.read_ahead == "auto" else memory_in_bytes(self.read_ahead)

    @property
    def n_threads(self) -> int | None:
        """The number of threads, or None for all cores."""
        return None if self.threads == "auto" else int(self.threads)

    @property
    def memory_bytes(self) -> int | None:
        """The ceiling in bytes, or None when the plan is to choose it."""
        return None if self.memory is None else memory_in_bytes(self.memory)


class CheckpointConfig(Section):
    """How often progress is kept."""

    every: Duration = "30s"
    """Time between checkpoints as it was written; null for none."""

    @property
    def every_seconds(self) -> float | None:
        """Seconds between checkpoints, or None for none."""
        return None if self.every is None else seconds_of(self.every)


class OutputConfig(Section):
    """What a run leaves, and where."""

    directory: Directory
    """Directory of the run (``~`` expanded, relative to the working directory); ``runs/<name>`` by default."""
    scores: Flag = True
    """Write the scores of all samples."""
    diagnostics: Flag = False
    """Write T² and Q of all samples beside their scores: how far each is from the model. kind: pca alone has them."""
    reconstruction: Annotated[
        bool | RowsDType, Field(description="true, false, or the name of a type of integers or floating point numbers")
    ] = False
    """Write the rows that the scores give back, in the units of the data, to reconstruction.zarr; true for the type of
    `inverse_transform`, or another type: integers are rounded to the nearest."""
    report: Flag = True
    """Write the HTML page."""
    anndata: Annotated[bool | Literal["overwrite"], Field(description="true, false or overwrite")] = False
    """Write scores, components and variances into the AnnData that was read, as scanpy does; `overwrite` replaces what is there."""
    state: Flag = False
    """Keep the accumulated state with the model, so that rows can be added and models merged."""
    overwrite: Flag = False
    """Replace an earlier run of streampca in the same directory."""

    @model_validator(mode="before")
    @classmethod
    def _without_publish(cls, output: object) -> object:
        """Refuse to copy runs to object stores, which 0.2 did; configurations of earlier runs hold the keys, without a value."""
        if not isinstance(output, dict):
            return output
        for key in ("publish", "storage_options"):
            if output.get(key):
                raise PydanticCustomError(
                    "rule",
                    f"{key} was removed: leave it out, and copy the directory when the run is complete, with obstore or the command line of the store",
                )
        return {key: value for key, value in output.items() if key not in ("publish", "storage_options")}

    @model_validator(mode="after")
    def _scores_for_others(self) -> OutputConfig:
        for name in [
            name for name in ("anndata", "diagnostics", "reconstruction") if getattr(self, name) and not self.scores
        ]:
            raise PydanticCustomError("rule", f"{name} takes the scores: give scores: true, or {name}: false")
        return self


class RunConfig(Section):
    """A whole configuration file, defaults filled in."""

    version: Annotated[int, Field(ge=1, le=1, description="1")] = 1
    """Version of this format."""
    name: RunName
    """Name of the run; the stem of the source's path by default."""
    source: SourceConfig
    """Where the data are."""
    preprocess: PreprocessConfig = Field(default_factory=PreprocessConfig)
    """What happens to the rows first."""
    model: Annotated[ModelConfig, Field(discriminator="kind")] = Field(default_factory=PCAConfig)
    """What is fitted."""
    statistics: StatisticsConfig = Field(default_factory=StatisticsConfig)
    """What is computed about the answer as an estimate from a sample."""
    quality: Flag = True
    """Examine the quality of the data while they are read: drift, features that hardly vary, missing values."""
    resources: ResourcesConfig = Field(default_factory=ResourcesConfig)
    """What the process may use."""
    cluster: Annotated[AnyCluster, Field(discriminator="kind"), BeforeValidator(without_kubernetes)] = Field(
        default_factory=ThreadsCluster
    )
    """Where the work is done."""
    checkpoint: CheckpointConfig = Field(default_factory=CheckpointConfig)
    """How often progress is kept."""
    output: OutputConfig
    """What the run leaves."""
    seed: Natural = 0
    """Addresses every random number."""

    @model_validator(mode="after")
    def _groups_without_others(self) -> RunConfig:
        if getattr(self.model, "group_by", None) is None:
            return self
        output = self.output
        for key in ("reconstruction", "scores", "anndata"):
            if getattr(output, key):
                raise PydanticCustomError("rule", f"output.{key} cannot be combined with model.group_by: leave it out")
        return self

    def estimator_parameters(self) -> dict[str, object]:
        """Return what the file says of the parameters of the estimator of `model.kind`, by name.

        Weights, thresholds and kernels are as the file has them; `memory` is in bytes.
        """
        parameters = KINDS[self.model.kind].parameters
        sections: dict[str | None, Section] = {
            "model": self.model,
            "preprocess": self.preprocess,
            "statistics": self.statistics,
        }
        named = {p.name: getattr(sections[p.key], p.name) for p in parameters if p.key in sections}
        return named | {
            "memory": self.resources.memory_bytes,
            "device": self.resources.device,
            "random_state": self.seed,
        }

    def to_tree(self) -> dict[str, Any]:
        """Return plain data with every default, ``${NAME}`` references as they were written, other secrets left out."""
        tree = self.model_dump()
        kernels = tree["model"].get("kernel") or []
        if len(kernels) == 1 and not any(path[:3] == ("model", "kernel", 0) for path in self._written):
            tree["model"]["kernel"] = kernels[0]
        return dict(with_texts(without_secrets(tree), self._written))

    def to_yaml(self) -> str:
        """Write `to_tree` as YAML."""
        return dump(self.to_tree())


def load_config(path: Path | str, overrides: Sequence[str] = ()) -> RunConfig:
    """Read and validate a YAML file; each override is ``key.sub=value``.

    Raises
    ------
    ConfigError
        With one line: the file, the key path, what was found and what is allowed.
    """
    return validated(Document.read(path, overrides))


def parse_config(text: str, *, name: str, overrides: Sequence[str] = ()) -> RunConfig:
    """Validate a YAML text that errors call `name`; otherwise as `load_config`."""
    return validated(Document.parse(text, name, overrides))


def validated(document: Document) -> RunConfig:
    """Return the configuration of a document; raise `ConfigError` for the first thing that is wrong with it."""
    tree, written = document.resolve()
    try:
        config = RunConfig.model_validate(tree)
    except ValidationError as error:
        problems = problems_of(error, document, RunConfig)
    else:
        config.remember(written)
        return config
    raise document.refusal(problems)  # outside of the handler: a traceback would show the values
