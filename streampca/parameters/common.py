"""Parameters that PCA and kernel PCA share."""

from __future__ import annotations

from typing import get_args

from streampca.parameters.choices import Recovery, ScaleName
from streampca.parameters.domains import Choice, Directory, Flag, FlagOr, Number, Special, Whole
from streampca.parameters.statement import Parameter

N_COMPONENTS = Special("int, float in (0, 1), Threshold or None")
SKETCH_SIZE = Whole(1, auto=True)

N_HASHES = Parameter("n_hashes", 4, Whole(1), "Hash functions of a count sketch.", "model")
RECOVERY = Parameter(
    "recovery",
    "nystrom",
    Choice(get_args(Recovery)),
    "How components come back from the sketch: by the Nyström approximation, or, for comparison, by the conversion of the literature.",
    "model",
    details="The conversion (Marukatat 2023) is far less accurate and has no bounds of angles.",
)
CENTER = Parameter(
    "center",
    True,
    Flag(),
    "Subtract the mean of each feature (in kernel PCA: in kernel space); without it second moments are taken about zero.",
    "preprocess",
    of_states=True,
)
SCALE = Parameter(
    "scale",
    False,
    FlagOr(get_args(ScaleName)),
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
    Number(optional=True, hint=" that counts as missing"),
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
    Special("int, str or None"),
    'Ceiling for the resident memory of the whole process, bytes or a text such as "2GiB"; None: what the process has plus 60 % of what is free.',
    "resources.memory",
    details=(
        "A plan that does not fit is refused with `PlanError` before the data is read; only the matrix of "
        '``solver="covariance"``, asked for by name, goes to disk instead (``plan_.tile_groups`` readings, no '
        "state)."
    ),
)
RANDOM_STATE = Parameter(
    "random_state",
    0,
    Whole(hint=", so that a run can be repeated"),
    "Seed of everything that is drawn; the same seed gives the same bits.",
    "seed",
    field="seed",
)
CHECKPOINT = Parameter(
    "checkpoint",
    None,
    Directory(),
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
    Whole(0, hint=": 0 for none, or a number of groups, of which 20 are usual"),
    "Groups of consecutive rows that a jackknife leaves out one at a time, for sampling errors of eigenvalues, shares and components; 0: none.",
    "statistics",
    details="They are in ``sampling_error_``. May take a reading more, which ``plan`` says.",
)
PROGRESS = Parameter(
    "progress",
    None,
    Special("callable or None"),
    "Called with a `Progress` as blocks finish, from any thread.",
    field=None,
)
