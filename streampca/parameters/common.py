"""Parameters that PCA and kernel PCA share."""

from __future__ import annotations

from typing import get_args

from streampca.parameters.choices import BlockScale, Recovery
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
)
CENTER = Parameter(
    "center",
    True,
    Flag(),
    "Subtract the mean of each feature (in kernel PCA: in kernel space); without it second moments are taken about zero.",
    "preprocess",
)
SCALE = Parameter(
    "scale",
    False,
    FlagOr(get_args(BlockScale)),
    "Divide each feature by its standard deviation (in kernel PCA: the kernel is one of z-scores); block, for PCA alone: divide each variable of a table by the square root of its total variance, the sum of the variances of its features.",
    "preprocess",
)
MISSING_VALUE = Parameter(
    "missing_value",
    None,
    Number(optional=True, hint=" that counts as missing"),
    "A number that counts as missing, as NaN does, such as -1 in integers; beside what a store declares.",
    "source.missing_value",
    field=None,
)
MEMORY = Parameter(
    "memory",
    None,
    Special("int, str or None"),
    'Ceiling for the resident memory of the whole process, bytes or a text such as "2GiB"; None: what the process has plus 60 % of what is free.',
    "resources.memory",
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
)
SAMPLING_ERRORS = Parameter(
    "sampling_errors",
    0,
    Whole(0, hint=": 0 for none, or a number of groups, of which 20 are usual"),
    "Groups of consecutive rows that a jackknife leaves out one at a time, for sampling errors of eigenvalues, shares and components; 0: none.",
    "statistics",
)
PROGRESS = Parameter(
    "progress",
    None,
    Special("callable or None"),
    "Called with a `Progress` as blocks finish, from any thread.",
    field=None,
)
