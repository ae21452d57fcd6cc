"""Frozen, validated classes for the YAML file, with every key, its default and its values."""

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
    """How rows are normalised during reading; tables other than AnnData accept norm, log1p, and a number as target_sum."""

    @model_validator(mode="after")
    def _does_something(self) -> NormalizeConfig:
        if not any(getattr(self, key.name) for key in NORMALIZE):
            some = ", ".join(f"{key.name}: true" if key.takes is bool else key.name for key in NORMALIZE)
            raise PydanticCustomError("rule", f"does nothing: give {some}, or null")
        return self


class QuantizationConfig(Section):
    """Values of int8 or uint8 codes: from a table or a power, times the scale of their row if one is given."""

    table: Text | None = Field(default=None, description=_ARRAY_OR_FILE)
    """The values of the 256 codes in ascending order."""
    power: Positive | None = Field(default=None, description="a number above 0, or null")
    """A code c stands for sign(c) · abs(c / divisor) ** power."""
    divisor: Positive | None = Field(default=None, description="a number above 0, or null (1)")
    """Codes are divided by it before they are raised to the power."""
    scale: Text | None = Field(default=None, description=f"the name of a column of Parquet files, {_ARRAY_OR_FILE}")
    """Factor of each row, above 0, that multiplies its values; alone, or with table or power."""
    nodata: int | tuple[int, ...] | None = Field(default=None, description="a code, a list of codes, or null")
    """Codes that count as missing, like NaN."""

    @model_validator(mode="after")
    def _says_what_codes_mean(self) -> QuantizationConfig:
        if self.table is None and self.power is None and self.scale is None:
            raise PydanticCustomError("rule", "does not say what codes mean: give table, power or scale, or null")
        return self


class SourceConfig(Section):
    """Location and layout of the data, and how to read them."""

    path: SourcePath
    """Local path (``~`` expanded, relative to the working directory), pattern such as ``shards/*.npy``, list of these, URL,
    ``icechunk:PATH`` or ``builtin:NAME``."""
    array: Text | None = Field(default=None, description="the name of an array inside the group, or null")
    """Name of the array inside a group."""
    variables: Names = None
    """Names of several arrays in a group with the same samples; their features lie side by side."""
    samples: Names = None
    """Dimensions that form the rows, slowest first; required for arrays of more than two dimensions."""
    features: Names = None
    """Dimensions that form the columns, slowest first; by default all others."""
    columns: Names = None
    """Columns of Parquet files to read, in this order; by default all. They must hold numbers or lists of numbers."""
    id_column: Text | None = Field(default=None, description="the name of a column, or null")
    """Column of Parquet files with the names of the rows."""
    mask: Text | None = Field(
        default=None,
        description="observed, survey, the path of an .npy file, the name of an array beside the data, or null",
    )
    """Features to use: those observed in the first rows (observed) or in any row (survey), or those that are true in an array."""
    labels: Text | None = Field(
        default=None,
        description="a sample coordinate, a part of its times such as time.season, a column of Parquet files or of obs, the path of an .npy "
        "file, the name of an array beside the data, or null",
    )
    """Class of each sample, as text or whole numbers; it colours the score plots of the report."""
    orientation: Literal["samples_first", "features_first"] | None = Field(
        default=None, description="samples_first, features_first, or null (samples_first)"
    )
    """Whether a two-dimensional array is stored as ``(n_samples, n_features)`` or the other way round."""
    missing_chunks: Literal["error", "fill", "fill_labels"] = "error"
    """How to treat chunks that the store does not hold."""
    missing_value: int | float | None = Field(default=None, allow_inf_nan=False, description="a number, or null")
    """Stored number that counts as missing, like NaN, in addition to those that the data declare."""
    quantization: QuantizationConfig | None = Field(
        default=None, description="a mapping with table, power, divisor, scale or nodata, or null"
    )
    """Values of int8 or uint8 codes, such as quantised embeddings."""
    verify: Text | None = Field(
        default=None, description="manifest, the path of a fingerprint or of a run with a state, or null"
    )
    """Fingerprint to compare every chunk with; ``manifest`` is the one that ``streampca fingerprint`` writes."""
    follow_symlinks: Flag = False
    """Ignored with a warning, and removed in the next minor version: symbolic links in a store are followed."""
    decode: Literal["auto", "raw"] = "auto"
    """Whether to decode packed values of zarr arrays (CF conventions), or to read them as stored."""
    layer: Text | None = Field(default=None, description="the name of a layer of AnnData, or null")
    """Layer of AnnData to read in place of X; ``raw/X`` for the matrix of ``raw``."""
    mask_var: Text | None = Field(default=None, description="the name of a column of truth values in var, or null")
    """Boolean column in ``var`` of AnnData that selects the features, such as ``highly_variable``."""
    normalize: NormalizeConfig | None = Field(default=None, description=f"{keys_in_words()}, or null")
    """Normalisation of each row during reading; tables other than AnnData accept norm, log1p, and a number as target_sum."""
    genes: Literal["same", "intersection"] = "same"
    """Whether several AnnData must have the same features, or only the features common to all are read."""
    lags: Count | LagList | None = Field(
        default=None, description="a whole number of at least 1, a list of different whole numbers, or null"
    )
    """Number of consecutive samples in a row, or their lags: lagged copies for extended EOFs and singular spectrum analysis."""
    where: Text | None = Field(
        default=None,
        description="a condition on coordinates and columns such as time.season == 'DJF', the path of an .npy file of truth values, or null",
    )
    """Samples to use; the scores of all others are NaN."""
    storage_options: Options = Field(default_factory=PrivateOptions)
    """Options of obstore for a URL; they are never printed."""
    branch: Text | None = Field(default=None, description="the name of a branch of an icechunk repository, or null")
    """Branch of an icechunk repository, ``icechunk:PATH``; its last snapshot is read. By default main."""
    tag: Text | None = Field(default=None, description="the name of a tag of an icechunk repository, or null")
    """Tag of the snapshot to read."""
    snapshot: Text | None = Field(
        default=None, description="the identifier of a snapshot of an icechunk repository, or null"
    )
    """Identifier of the snapshot to read."""

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
    """Regressors; the part of each feature that they explain is subtracted."""

    groups: Text | None = Field(
        default=None,
        description="a part of the times of a sample coordinate such as time.month, the name of a sample coordinate, a column of Parquet "
        "files or of obs, the path of an .npy file, the name of an array beside the data, or null",
    )
    """Label of each row; the mean of each group is subtracted. Parts of times are month, season, year, dayofyear and hour."""
    trend: Degree | None = Field(default=None, description="a whole number from 1 to 20, or null")
    """Degree of a polynomial in the coordinate of the first sample dimension, or in the row number."""
    covariates: Text | None = Field(default=None, description="the path of an .npy file, or null")
    """Covariates of each row, ``(n_samples, n_covariates)``."""

    @model_validator(mode="after")
    def _names_something(self) -> RemoveConfig:
        if self.groups is None and self.trend is None and self.covariates is None:
            raise PydanticCustomError("rule", "names nothing: give groups, trend or covariates, or null")
        return self


class PreprocessConfig(section_of(PCA_PARAMETERS, "preprocess")):  # type: ignore[misc]
    """How rows are preprocessed before the components are computed."""

    sample_weight: Text | None = Field(default=None, description=_WEIGHTS)
    """Weights of samples: how many times each one counts."""
    feature_weight: Text | None = Field(
        default=None, description=f"the cosine of a coordinate such as cos(lat), {_WEIGHTS}"
    )
    """Weights of features: centred and scaled features are multiplied by their square roots."""
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
    """One kernel of a sum; null keys take the value of the model."""

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
    """Weight of this kernel in the sum."""

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
    """Parameters of `streampca.PCA`, under their own names."""

    kind: Literal["pca"] = "pca"
    """Linear PCA; ``kernel_pca`` is kernel PCA."""
    n_components: NComponents = None
    kernel: Kernels | None = None
    """Used by ``kind: kernel_pca`` only; accepted here so that one file serves both kinds."""
    group_by: Text | None = Field(
        default=None,
        description="a sample coordinate, a part of its times such as time.month, a column of Parquet files or of obs, the path of an .npy "
        "file, the name of an array beside the data, or null",
    )
    """Label of each row: one pass gives a model for each group of rows, one within groups, and one of the group means."""
    rotation: Literal["varimax", "promax"] | None = None
    """Rotation of the components after the fit, as by `PCA.rotate`; scores, report and model contain the rotated ones."""

    def warnings(self) -> list[str]:
        """Return warnings about unused keys."""
        return [] if self.kernel is None else ["model.kernel is read by kind: kernel_pca only and was not used"]


class KernelPCAConfig(section_of(KERNEL_PCA_PARAMETERS, "model", "kind")):  # type: ignore[misc]
    """Parameters of `streampca.KernelPCA`, under their own names."""

    kind: Literal["kernel_pca"]
    """Kernel PCA; ``pca`` is linear PCA."""
    n_components: KernelNComponents = None
    kernel: Kernels = (KernelConfig(),)
    kernel_params: None = Field(default=None, description="null")
    sampling: Sampling = "auto"

    def warnings(self) -> list[str]:
        """Return an empty list: all keys are used."""
        return []


class AnalysisConfig(Section):
    """Base class for the analyses of an accumulated covariance."""

    if TYPE_CHECKING:
        kind: str
        n_components: int
        first: int | tuple[str, ...] | None
        rotation: str | None

    def warnings(self) -> list[str]:
        """Return an empty list: all keys are used."""
        return []


_SPECIAL: dict[str, Any] = {"first": (Count | Names, Field(default=None, description=_FIRST))}
"""Keys of analyses whose domains are special."""


def _section_of_analysis(kind: ModelKind) -> type[AnalysisConfig]:
    """Return the section with the parameters of an analysis, under their own names."""
    bases: Any = (section_of(kind.parameters, "model", "kind"), AnalysisConfig)
    fields: dict[str, Any] = {"kind": (Literal[kind.name], ...)}
    fields |= {each.name: _SPECIAL[each.name] for each in kind.parameters if each.name in _SPECIAL}
    section: type[AnalysisConfig] = create_model(f"{kind.estimator}Config", __base__=bases, **fields)
    section.__doc__ = f"Parameters of `streampca.{kind.estimator}`, each under its own name."
    return section


ANALYSES = {kind.name: _section_of_analysis(kind) for kind in KINDS.values() if kind.is_analysis}
"""Sections of analyses by kind."""
if TYPE_CHECKING:
    ModelConfig: TypeAlias = PCAConfig | KernelPCAConfig | AnalysisConfig
else:
    ModelConfig = reduce(or_, (PCAConfig, KernelPCAConfig, *ANALYSES.values()))


class StatisticsConfig(section_of(PCA_PARAMETERS, "statistics")):  # type: ignore[misc]
    """Statistics of the result as an estimate from a sample."""


class ResourcesConfig(Section):
    """Memory, threads and device that the process may use."""

    memory: MemorySize = None
    """Memory ceiling for the whole process; null lets the plan choose it."""
    threads: AutoOrCount = "auto"
    """Number of threads."""
    device: Device = "cpu"
    """Device that multiplies rows."""
    read_ahead: AutoOrSize = "auto"
    """Maximum memory for bytes fetched ahead of their use from a URL; auto is 128 MiB. `memory` limits it too."""

    @property
    def read_ahead_bytes(self) -> int | None:
        """The maximum memory for reading ahead in bytes, or None for auto."""
        return None if self.read_ahead == "auto" else memory_in_bytes(self.read_ahead)

    @property
    def n_threads(self) -> int | None:
        """The number of threads, or None for all cores."""
        return None if self.threads == "auto" else int(self.threads)

    @property
    def memory_bytes(self) -> int | None:
        """The ceiling in bytes, or None if the plan chooses it."""
        return None if self.memory is None else memory_in_bytes(self.memory)


class CheckpointConfig(Section):
    """How often progress is saved."""

    every: Duration = "30s"
    """Time between checkpoints; null for no checkpoints."""

    @property
    def every_seconds(self) -> float | None:
        """Seconds between checkpoints, or None for none."""
        return None if self.every is None else seconds_of(self.every)


class OutputConfig(Section):
    """What a run writes, and where."""

    directory: Directory
    """Directory of the run (``~`` expanded, relative to the working directory); ``runs/<name>`` by default."""
    scores: Flag = True
    """Write the scores of all samples."""
    diagnostics: Flag = False
    """Write T² and Q, the distances of all samples from the model, beside the scores. Only kind: pca has them."""
    reconstruction: Annotated[
        bool | RowsDType, Field(description="true, false, or the name of a type of integers or floating point numbers")
    ] = False
    """Write the rows reconstructed from the scores, in the units of the data, to reconstruction.zarr; true for the type of
    `inverse_transform`, or the name of another type. Integers are rounded to the nearest."""
    report: Flag = True
    """Write the HTML report."""
    anndata: Annotated[bool | Literal["overwrite"], Field(description="true, false or overwrite")] = False
    """Write scores, components and variances into the AnnData that was read, as scanpy does; `overwrite` replaces earlier ones."""
    state: Flag = False
    """Store the accumulated state with the model, so that rows can be added and models merged."""
    overwrite: Flag = False
    """Replace an earlier run of streampca in the same directory."""

    @model_validator(mode="before")
    @classmethod
    def _without_publish(cls, output: object) -> object:
        """Refuse to copy runs to object stores, as 0.2 did; configurations of earlier runs have these keys without a value."""
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
    """A complete configuration file, with defaults filled in."""

    version: Annotated[int, Field(ge=1, le=1, description="1")] = 1
    """Version of this format."""
    name: RunName
    """Name of the run; the stem of the source's path by default."""
    source: SourceConfig
    """The data, and how to read them."""
    preprocess: PreprocessConfig = Field(default_factory=PreprocessConfig)
    """How rows are preprocessed."""
    model: Annotated[ModelConfig, Field(discriminator="kind")] = Field(default_factory=PCAConfig)
    """The model to fit."""
    statistics: StatisticsConfig = Field(default_factory=StatisticsConfig)
    """Statistics of the result as an estimate from a sample."""
    quality: Flag = True
    """Check the quality of the data during reading: drift, nearly constant features, missing values."""
    resources: ResourcesConfig = Field(default_factory=ResourcesConfig)
    """Memory, threads and device that the process may use."""
    cluster: Annotated[AnyCluster, Field(discriminator="kind"), BeforeValidator(without_kubernetes)] = Field(
        default_factory=ThreadsCluster
    )
    """Where the work runs."""
    checkpoint: CheckpointConfig = Field(default_factory=CheckpointConfig)
    """How often progress is saved."""
    output: OutputConfig
    """What the run writes."""
    seed: Natural = 0
    """Seed of all random numbers."""

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
        """Return the parameters in the file for the estimator of `model.kind`, by name.

        Weights, thresholds and kernels are in the form of the file; `memory` is in bytes.
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
        """Return plain data with every default, with ``${NAME}`` references unresolved and other secrets left out."""
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
        On one line: the file, the key path, the value found and the values allowed.
    """
    return validated(Document.read(path, overrides))


def parse_config(text: str, *, name: str, overrides: Sequence[str] = ()) -> RunConfig:
    """Validate a YAML text that errors call `name`; otherwise as `load_config`."""
    return validated(Document.parse(text, name, overrides))


def validated(document: Document) -> RunConfig:
    """Return the configuration of a document; raise `ConfigError` for its first problem."""
    tree, written = document.resolve()
    try:
        config = RunConfig.model_validate(tree)
    except ValidationError as error:
        problems = problems_of(error, document, RunConfig)
    else:
        config.remember(written)
        return config
    raise document.refusal(problems)  # outside of the handler: a traceback would show the values
