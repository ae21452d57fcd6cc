"""The parameters of `PCA`, of which other estimators share some, and those of a fit after they were checked."""

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
    "How components come back from the sketch: by the Nyström approximation, or, for comparison, by the conversion of the literature.",
    "model",
    details="The conversion (Marukatat 2023) is far less accurate and has no bounds of angles.",
)
CENTER = Parameter(
    "center",
    True,
    flag(),
    "Subtract the mean of each feature (in kernel PCA: in kernel space); without it second moments are taken about zero.",
    "preprocess",
    of_states=True,
)
SCALE = Parameter(
    "scale",
    False,
    flag(get_args(ScaleName)),
    "Divide each feature by its standard deviation (in kernel PCA: the kernel is one of z-scores); for PCA alone: block divides each variable of a table by the square root of its total variance, the sum of the variances of its features; poisson divides each feature of counts by the square root of its mean; patterson each genotype, of 0 to 2 copies of an allele, by the square root of 2 p (1 − p), with half the mean as p.",
    "preprocess",
    details=(
        "Standard deviations have the same `ddof` as the covariance, so that the eigenvalues sum to the number of "
        'features that vary. With ``"block"`` all variables have the same weight, and features of one variable '
        "keep theirs relative to each other; the eigenvalues sum to the number of variables that vary; a table "
        'without variables is one. ``"poisson"`` and ``"patterson"`` (Patterson, Price and Reich 2006) divide by the '
        "standard deviations that the means tell, which come from the same reading; missing values have no part in them, "
        "and sampling errors take them as known. Features that never vary get weight 0."
    ),
    of_states=True,
)
MISSING_VALUE = Parameter(
    "missing_value",
    None,
    number(optional=True, hint=" that counts as missing"),
    "A number that counts as missing, as NaN does, such as -1 in integers; beside what a store declares.",
    "source.missing_value",
    field=None,
    details=(
        "In the rows of `fit`, and then in those of `transform` and of all that takes rows. Integers, which have "
        "no NaN, are read as floats then: float32 those of up to 16 bits. As `missing_value` of `streampca.open`."
    ),
)
MEMORY = Parameter(
    "memory",
    None,
    special("int, str or None"),
    'Ceiling for the resident memory of the whole process, bytes or a text such as "2GiB"; None: what the process has plus 60 % of what is free.',
    "resources.memory",
    details=(
        "A plan that does not fit is refused with `PlanError` before the data is read; only the matrix of "
        '``solver="covariance"``, asked for by name, goes to disk instead (``plan_.tile_groups`` readings, no '
        "state)."
    ),
)
DEVICE = Parameter(
    "device",
    "cpu",
    device(),
    'Where products of rows are made: "cpu", or "cuda" or "cuda:1" for a graphics card.',
    "resources.device",
    details=(
        "Rows are read and centred here as ever, multiplied and added up there, and the state comes back as that of the host, so that "
        "merging, saving, checkpoints, certificates and clusters (a card for each worker) are the same. Products are in float64 where "
        "the card has them at full rate, else in float32 with sums in float64. `plan_.notes` says what stays on the host. The bits of "
        "a result belong to its device."
    ),
)
RANDOM_STATE = Parameter(
    "random_state",
    0,
    whole(hint=", so that a run can be repeated"),
    "Seed of everything that is drawn; the same seed gives the same bits.",
    "seed",
    field="seed",
)
CHECKPOINT = Parameter(
    "checkpoint",
    None,
    directory(),
    "Directory in which `fit` keeps what is done, so that the same fit goes on from there after it was stopped.",
    field=None,
    details=(
        "It goes on to the same bits. Progress is kept every 30 s or twentieth of the work, and removed when a "
        "fit is done; a fit of other data or with other parameters that finds it raises `OutputError`."
    ),
)
SAMPLING_ERRORS = Parameter(
    "sampling_errors",
    0,
    whole(0, hint=": 0 for none, or a number of groups, of which 20 are usual"),
    "Groups of consecutive rows that a jackknife leaves out one at a time, for sampling errors of eigenvalues, shares and components; 0: none.",
    "statistics",
    details="They are in ``sampling_error_``. May take a reading more, which ``plan`` says.",
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
        f"How many components: a count, the smallest number that carries this share of the variance, a threshold relative to the first eigenvalue, the smallest number whose squared eigenvalues reach a share of the squared Frobenius norm, as many as a rule finds above noise ({', '.join(RULES)}), or all: n_features, or of fewer rows than that as many as stand above rounding.",
        "model",
        details=(
            "A threshold keeps all with λᵢ ≥ eps·λ₁, `Frobenius` the smallest number with Σλᵢ² ≥ share·‖C‖²_F for the matrix C "
            "that is decomposed (of exact solvers). Rules give at least one component; `component_rules_` has their figures and "
            "``docs/how-to/number-of-components.md`` their assumptions."
        ),
        of_states=True,
    ),
    Parameter(
        "solver",
        "auto",
        choice(get_args(Solver)),
        f"How the components are computed: exact by {_listed(EXACT_SOLVERS)}; approximate, with a certificate, by {_listed(APPROXIMATE_SOLVERS)}.",
        "model",
        details=(
            f"{_described(EXACT_SOLVERS | APPROXIMATE_SOLVERS)} auto takes an approximate one for a count of "
            "components where nothing exact fits, then reading until eigenvalues are certified to 1 %, or where a `tolerance` is "
            "given and it is expected to be faster; its certificate is in `certificate_`."
        ),
    ),
    Parameter(
        "sketch",
        "auto",
        choice(get_args(Sketch)),
        "Test matrix that maps features to the columns of the sketch; auto: gaussian, the only one that a pilot informs.",
        "model",
    ),
    Parameter(
        "sketch_size",
        "auto",
        SKETCH_SIZE,
        "Columns of the sketch, or rank of the incremental solver; auto: the larger of twice the components and 32 more (four times and 64 more without a pilot).",
        "model",
        details="At least `n_components`; fewer than by default where memory is short.",
    ),
    N_HASHES,
    RECOVERY,
    Parameter(
        "pilot",
        "auto",
        whole(0, auto=True),
        "Rows read before the first pass to inform the test matrix; auto: ten for each column and at least 500, unless more than a tenth of the data would be decoded for them; 0: none.",
        "model",
    ),
    Parameter(
        "max_passes",
        "auto",
        whole(1, auto=True),
        "Most readings by an approximate solver; auto: eight, or two where tolerance is 0.",
        "model",
    ),
    Parameter(
        "tolerance",
        None,
        number(least=0, optional=True, hint=" for the default"),
        "Relative error to which every eigenvalue is to be certified: an approximate solver reads again until it is or `max_passes` are over; 0: always `max_passes`; None: 0.01 where solver is auto, one reading of a solver that is named.",
        "model",
        details="The exact solvers read none of the parameters of approximate ones.",
    ),
    CENTER,
    SCALE,
    Parameter(
        "whiten",
        False,
        flag(),
        "Divide scores by the standard deviation of their component.",
        "model",
        details="Components below rounding get scores of 0.",
        of_states=True,
    ),
    Parameter(
        "missing",
        "error",
        choice(get_args(Missing)),
        "What NaN means: an error, a row to leave out, the mean of the feature, or covariances over the rows in which both features were observed.",
        "preprocess",
        details=(
            'Infinity is always an error. A row that is left out has scores of NaN. With "pairwise" nothing is made '
            'up, but eigenvalues may come out negative and are clipped (``error_["clipped_mass"]``).'
        ),
        of_states=True,
    ),
    Parameter(
        "missing_scores",
        "conditional",
        choice(get_args(MissingScores)),
        "Scores of rows with NaN where `missing` is mean or pairwise: the conditional mean given the observed features, or those of the row with means for NaN.",
        "preprocess",
        details=(
            "In `transform` and `transform_to`, and what `score_samples` takes such rows for. The conditional mean is "
            "that of probabilistic PCA (Tipping & Bishop 1999), without noise the least-squares fit; a k × k system "
            "is solved for each pattern of holes. A row of NaN alone has scores of 0. Means for NaN draw scores "
            "towards 0."
        ),
        of_states=True,
    ),
    MISSING_VALUE,
    Parameter(
        "feature_weight",
        None,
        special("array-like, shape (n_features,), str or None"),
        "Weights of features such as areas, or the name of a coordinate or its cosine such as cos(lat): centred and scaled features are multiplied by the square root.",
        "preprocess",
        field=None,
        details=(
            "Finite and not negative. The matrix that is decomposed is W^½ C W^½, so `inverse_transform` divides by "
            "the root and gives the mean for features of weight 0. A text names a coordinate of a labelled table, "
            "of one or two dimensions, levels of a MultiIndex included, or its cosine as ``cos(lat)``, of degrees where "
            "coordinates are in degrees; features of variables without it have weight 1; an array of the shape of a variable, such as (lat, lon), is for all variables "
            "that have it."
        ),
        of_states=True,
    ),
    Parameter(
        "remove",
        None,
        special("mapping or None"),
        "Subtract from each feature what regression on these explains: `groups` (one label for each row, or where the labels of the table have it, such as time.month), `trend` (degree of a polynomial), `covariates` (an array; in a file the path of an .npy file).",
        "preprocess",
        field=None,
        details=(
            "In the same reading. Groups are means that are subtracted, such as a seasonal cycle, by labels, the name "
            'of a coordinate along samples or of a column, or of a part of its times, such as ``"time.month"``; a '
            "trend is over the coordinate of the first sample dimension, or over the numbers of the rows; covariates "
            "have shape (n_samples, n_covariates). With `scale`, features are divided by the standard deviations of "
            "the residuals. Variances are divided by n − ddof all the same."
        ),
    ),
    Parameter("ddof", 1, whole(0), "Variances are divided by n − ddof.", "model", of_states=True),
    Parameter(
        "forgetting",
        1.0,
        number(above=0, most=1, hint="; 1 forgets nothing"),
        "Factor by which the weight of every row shrinks with each row after it.",
        "model",
        details=(
            "In (0, 1], within and across `partial_fit` calls: the last row has weight 1, the t-th before it "
            "``forgetting ** t``, and about ``1 / (1 - forgetting)`` rows count. Divisors are then W − ddof·W₂/W for "
            "the sums W of the weights and W₂ of their squares. The order of the rows matters, and so does that of "
            "models in `merge`."
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
    """The checked parameters of a fit; those of `PCA_PARAMETERS` mean what is said there."""

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
