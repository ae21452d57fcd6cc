"""The parameters of `PCA`, some of them shared by other estimators, and the checked parameters of a fit."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, get_args

from streampca.linalg.component_rules import RULES
from streampca.parameters.statement import (
    APPROXIMATE_SOLVERS,
    EXACT_SOLVERS,
    Missing,
    MissingScores,
    Parameter,
    Recovery,
    ScaleName,
    Sketch,
    Solver,
    choice,
    device,
    directory,
    flag,
    number,
    special,
    whole,
)

if TYPE_CHECKING:
    from streampca.linalg.scaling import Scale, Scaling
    from streampca.linalg.selection import NComponents, Selection
    from streampca.regressors import Removal
    from streampca.sources.base import Source
    from streampca.typing import FloatArray


N_COMPONENTS = special("int, float in (0, 1), Threshold or None")
SKETCH_SIZE = whole(1, auto=True)

N_HASHES = Parameter("n_hashes", 4, whole(1), "Hash functions of a count sketch.", "model")
RECOVERY = Parameter(
    "recovery",
    "nystrom",
    choice(get_args(Recovery)),
    "How components are recovered from the sketch: by the Nyström approximation, or, for comparison, by the conversion of the literature.",
    "model",
    details="The conversion (Marukatat 2023) is far less accurate and has no bounds of angles.",
)
CENTER = Parameter(
    "center",
    True,
    flag(),
    "Subtract the mean of each feature (in kernel PCA: in kernel space). If False, second moments are about zero.",
    "preprocess",
    of_states=True,
)
SCALE = Parameter(
    "scale",
    False,
    flag(get_args(ScaleName)),
    "Divide each feature by its standard deviation (kernel PCA: apply the kernel to z-scores). For PCA only: block divides each variable of a table by the square root of its total variance, the sum of the variances of its features; poisson divides each feature of counts by the square root of its mean; patterson divides each genotype, with 0 to 2 copies of an allele, by the square root of 2 p (1 − p), where p is half the mean.",
    "preprocess",
    details=(
        "Standard deviations have the `ddof` of the covariance, so the eigenvalues sum to the number of features that "
        'vary. With ``"block"`` all variables have the same weight, features of one variable keep their relative '
        "weights, and the eigenvalues sum to the number of variables that vary; a table without variables counts as "
        'one. ``"poisson"`` and ``"patterson"`` (Patterson, Price and Reich 2006) divide by standard deviations '
        "derived from the means, which come from the same pass. Missing values do not enter these, and sampling "
        "errors treat them as known. Features that never vary get weight 0."
    ),
    of_states=True,
)
MISSING_VALUE = Parameter(
    "missing_value",
    None,
    number(optional=True, hint=" that counts as missing"),
    "A number that counts as missing, like NaN, such as -1 in integers; in addition to what a store declares.",
    "source.missing_value",
    field=None,
    details=(
        "It applies to rows of `fit`, `transform` and all other methods. Integers are then read as floats (float32 for "
        "up to 16 bits), since they have no NaN. Same as `missing_value` of `streampca.open`."
    ),
)
MEMORY = Parameter(
    "memory",
    None,
    special("int, str or None"),
    'Ceiling for the resident memory of the whole process, in bytes or as text such as "2GiB"; None: the current memory of the process plus 60 % of free memory.',
    "resources.memory",
    details=(
        "A plan that does not fit raises `PlanError` before data are read. The exception is an explicit "
        '``solver="covariance"``: its matrix goes to disk instead (``plan_.tile_groups`` passes, no state).'
    ),
)
DEVICE = Parameter(
    "device",
    "cpu",
    device(),
    'Device that multiplies rows: "cpu", or "cuda" or "cuda:1" for a graphics card.',
    "resources.device",
    details=(
        "The host reads and centres rows, the device multiplies and sums them, and the state returns to the host. Merging, "
        "saving, checkpoints, certificates and clusters (one card per worker) work as without a device. Products are in float64 if "
        "the card computes float64 at full rate, otherwise in float32 with sums in float64. `plan_.notes` lists the steps that stay "
        "on the host. Results have the same bits only on the same device."
    ),
)
RANDOM_STATE = Parameter(
    "random_state",
    0,
    whole(hint=", so that a run can be repeated"),
    "Seed of all random numbers; the same seed gives the same bits.",
    "seed",
    field="seed",
)
CHECKPOINT = Parameter(
    "checkpoint",
    None,
    directory(),
    "Directory for the progress of `fit`, from which the same fit resumes after it was stopped.",
    field=None,
    details=(
        "A resumed fit gives the same bits. Progress is saved every 30 s or twentieth of the work, and removed when the "
        "fit is done. A fit of other data or with other parameters raises `OutputError` if it finds this progress."
    ),
)
SAMPLING_ERRORS = Parameter(
    "sampling_errors",
    0,
    whole(0, hint=": 0 for none, or a number of groups, of which 20 are usual"),
    "Number of groups of consecutive rows for a jackknife, which gives sampling errors of eigenvalues, shares and components; 0: none.",
    "statistics",
    details="The errors are in ``sampling_error_``. They may take one more pass; ``plan`` shows it.",
)
PROGRESS = Parameter(
    "progress",
    None,
    special("callable or None"),
    "Called with a `Progress` as blocks finish, from any thread.",
    field=None,
)


def _listed(names: Iterable[str]) -> str:
    *others, last = names
    return f"{', '.join(others)} or {last}"


def _described(solvers: Mapping[str, str]) -> str:
    return " ".join(f"{name}: {what}." for name, what in solvers.items())


PCA_PARAMETERS = (
    Parameter(
        "n_components",
        None,
        special("int, float in (0, 1), Threshold, Frobenius, str or None"),
        f"Number of components: a count, a share of the variance to reach, a threshold relative to the first eigenvalue, a share of the squared Frobenius norm for the squared eigenvalues to reach, a rule that counts components above noise ({', '.join(RULES)}), or None for all: n_features, or with fewer rows, as many as rise above rounding.",
        "model",
        details=(
            "`Threshold` keeps all components with λᵢ ≥ eps·λ₁. `Frobenius` keeps the smallest number with Σλᵢ² ≥ share·‖C‖²_F "
            "for the decomposed matrix C (exact solvers only). Rules give at least one component; `component_rules_` has their "
            "figures, and ``docs/how-to/number-of-components.md`` their assumptions."
        ),
        of_states=True,
    ),
    Parameter(
        "solver",
        "auto",
        choice(get_args(Solver)),
        f"Method of computation: exact by {_listed(EXACT_SOLVERS)}; approximate, with a certificate, by {_listed(APPROXIMATE_SOLVERS)}.",
        "model",
        details=(
            f"{_described(EXACT_SOLVERS | APPROXIMATE_SOLVERS)} auto takes an approximate solver for a "
            "count of components in two cases: if no exact solver fits in memory (it then reads until eigenvalues are certified "
            "to 1 %), or if a `tolerance` is given and it is expected to be faster. Its certificate is in `certificate_`."
        ),
    ),
    Parameter(
        "sketch",
        "auto",
        choice(get_args(Sketch)),
        "Test matrix that maps features to the columns of the sketch; auto: gaussian, the only one that can use a pilot.",
        "model",
    ),
    Parameter(
        "sketch_size",
        "auto",
        SKETCH_SIZE,
        "Columns of the sketch, or rank of the incremental solver; auto: the larger of twice the components and 32 more (four times and 64 more without a pilot).",
        "model",
        details="At least `n_components`. If memory is short, auto takes fewer columns.",
    ),
    N_HASHES,
    RECOVERY,
    Parameter(
        "pilot",
        "auto",
        whole(0, auto=True),
        "Rows read before the first pass to choose the test matrix; auto: ten per column and at least 500, but decoding at most a tenth of the data; 0: none.",
        "model",
    ),
    Parameter(
        "max_passes",
        "auto",
        whole(1, auto=True),
        "Largest number of passes of an approximate solver; auto: eight, or two if tolerance is 0.",
        "model",
    ),
    Parameter(
        "tolerance",
        None,
        number(least=0, optional=True, hint=" for the default"),
        "Certified relative error of every eigenvalue at which an approximate solver stops its passes, up to `max_passes`; 0: always `max_passes`; None: 0.01 if solver is auto, one pass for an explicit solver.",
        "model",
        details="Exact solvers ignore the parameters of approximate ones.",
    ),
    CENTER,
    SCALE,
    Parameter(
        "whiten",
        False,
        flag(),
        "Divide the scores of each component by their standard deviation.",
        "model",
        details="Components below rounding get scores of 0.",
        of_states=True,
    ),
    Parameter(
        "missing",
        "error",
        choice(get_args(Missing)),
        "How NaN is treated: as an error, by leaving out the row, as the mean of the feature, or by covariances over rows in which both features are observed.",
        "preprocess",
        details=(
            'Infinity is always an error. Rows left out get scores of NaN. With "pairwise" no values are imputed, but '
            'eigenvalues can be negative and are clipped to 0 (``error_["clipped_mass"]``).'
        ),
        of_states=True,
    ),
    Parameter(
        "missing_scores",
        "conditional",
        choice(get_args(MissingScores)),
        "Scores of rows with NaN if `missing` is mean or pairwise: the conditional mean given the observed features, or the scores of the row with NaN replaced by means.",
        "preprocess",
        details=(
            "It applies to `transform`, `transform_to` and `score_samples`. The conditional mean is that of probabilistic "
            "PCA (Tipping & Bishop 1999), or the least-squares fit without noise; it solves a k × k system for each "
            "pattern of missing values. A row with only NaN gets scores of 0. Replacing NaN by means draws scores towards 0."
        ),
        of_states=True,
    ),
    MISSING_VALUE,
    Parameter(
        "feature_weight",
        None,
        special("array-like, shape (n_features,), str or None"),
        "Weights of features, such as areas, or the name of a coordinate or its cosine, such as cos(lat). Centred and scaled features are multiplied by the square roots of the weights.",
        "preprocess",
        field=None,
        details=(
            "Weights must be finite and not negative. The decomposed matrix is W^½ C W^½; `inverse_transform` divides by the "
            "square root, and returns the mean for features of weight 0. Text names a coordinate of a labelled table, with "
            "one or two dimensions or a level of a MultiIndex, or its cosine as ``cos(lat)``, in degrees if the coordinate is "
            "in degrees. Features of variables without the coordinate have weight 1. An array with the shape of a variable, "
            "such as (lat, lon), applies to all variables of this shape."
        ),
        of_states=True,
    ),
    Parameter(
        "remove",
        None,
        special("mapping or None"),
        "Subtract from each feature its regression on `groups` (a label for each row, or a name in the labels of the table, such as time.month), `trend` (degree of a polynomial) and `covariates` (an array; in a configuration file the path of an .npy file).",
        "preprocess",
        field=None,
        details=(
            "It takes no further pass. `groups` subtracts the mean of each group, such as a seasonal cycle; give labels, or "
            'the name of a sample coordinate, of a column, or of a part of its times, such as ``"time.month"``. `trend` is '
            "over the coordinate of the first sample dimension, or over row numbers. `covariates` have shape "
            "(n_samples, n_covariates). With `scale`, features are divided by the standard deviations of the residuals. "
            "Variances are still divided by n − ddof."
        ),
    ),
    Parameter("ddof", 1, whole(0), "Variances are divided by n − ddof.", "model", of_states=True),
    Parameter(
        "forgetting",
        1.0,
        number(above=0, most=1, hint="; 1 forgets nothing"),
        "Factor by which the weight of a row shrinks with each later row.",
        "model",
        details=(
            "In (0, 1]. It acts within and across `partial_fit` calls: the last row has weight 1, the t-th before it "
            "``forgetting ** t``, so about ``1 / (1 - forgetting)`` rows count. Variances are then divided by W − ddof·W₂/W, "
            "where W is the sum of the weights and W₂ the sum of their squares. The order of rows matters, and in `merge` the "
            "order of models."
        ),
        of_states=True,
    ),
    SAMPLING_ERRORS,
    MEMORY,
    DEVICE,
    RANDOM_STATE,
    CHECKPOINT,
    PROGRESS,
)
"""In the order of the signature."""


@dataclass(frozen=True)
class Parameters:
    """The checked parameters of a fit; `PCA_PARAMETERS` documents those of `PCA`."""

    n_components: NComponents = None
    """Count, share, `Threshold`, `Frobenius`, the name of a rule or None."""
    solver: str = "auto"
    """As `PCA`."""
    center: bool = True
    """As `PCA`."""
    scale: Scale = False
    """As `PCA`; the edges of the variables in place of ``"block"`` once they are known."""
    whiten: bool = False
    """As `PCA`."""
    ddof: int = 1
    """As `PCA`."""
    missing: str = "error"
    """As `PCA`."""
    missing_scores: str = "conditional"
    """As `PCA`."""
    sample_weight: FloatArray | None = None
    """Weight of each row, ``(n_samples,)``; a weight of 2 counts as the row given twice."""
    feature_weight: FloatArray | None = None
    """Weight of each feature, ``(n_features,)``."""
    given: Mapping[str, Any] = field(default_factory=dict)
    """Weights of rows and of features and `remove` as they were given, where it takes the names of a table to put them in its order."""
    remove: Removal | None = None
    """What is subtracted from the rows."""
    forgetting: float = 1.0
    """As `PCA`."""
    sketch: str = "auto"
    """As `PCA`."""
    sketch_size: int | str = "auto"
    """As `PCA`."""
    n_hashes: int = 4
    """As `PCA`."""
    recovery: str = "nystrom"
    """As `PCA`."""
    pilot: int | str = "auto"
    """As `PCA`."""
    max_passes: int | str = "auto"
    """As `PCA`."""
    tolerance: float | None = None
    """As `PCA`."""
    sampling_errors: int = 0
    """As `PCA`."""
    seed: int = 0
    """The parameter `random_state` of `PCA`."""
    memory: int | str | None = None
    """As `PCA`."""
    device: str = "cpu"
    """As `PCA`."""
    threads: int | None = None
    """Threads to share; None = all cores this process may use."""
    read_ahead: int | None = None
    """Most bytes for reading ahead from a remote store; None = 128 MiB, where the ceiling leaves them."""
    n_regressors: int | None = None
    """Means and slopes that `remove` fits to each feature, once they are known."""

    @property
    def n_means(self) -> int:
        """Return how many means and slopes are fitted to each feature and subtracted."""
        return int(self.center) if self.n_regressors is None else self.n_regressors

    @property
    def scaling(self) -> Scaling:
        """Return how features are scaled; with variables only after they are known (`streampca.planning.columns.with_columns`)."""
        from streampca.linalg.scaling import scaling_of  # numpy, which a configuration does not need

        return scaling_of(self.scale)

    @property
    def weighted(self) -> bool:
        """Return whether rows have weights other than 1; those of weight 0 do not count."""
        given = self.sample_weight
        return given is not None and bool((given[given > 0] != 1).any())

    def selection(self, source: Source | None) -> Selection:
        """Return the rule for how many components, checked against the shape of `source` where there is one."""
        from streampca.linalg.selection import as_selection  # numpy, which a configuration does not need

        return as_selection(self.n_components, sys.maxsize if source is None else min(source.shape))

    def count(self, source: Source) -> int | None:
        """Return the number of components where it is known beforehand; None where the data decides."""
        from streampca.linalg.selection import Count

        selection = self.selection(source)
        return selection.n_components if isinstance(selection, Count) else None
