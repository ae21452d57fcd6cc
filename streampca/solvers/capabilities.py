"""Combinations of options in one table, from which refusals, the reference page and tests are generated.

A trait is something about rows or parameters that not everything takes. Solvers say in their own modules which traits they do not
take (`PCASolver.refuses`); the table here has what excludes what whatever the solver, and what ways of fitting do not take.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, TypeAlias

from streampca.errors import NotAvailableError
from streampca.linalg.eigen import DENSE_LIMIT
from streampca.linalg.selection import Frobenius, Rule

if TYPE_CHECKING:
    from streampca.parameters import Parameters
    from streampca.sources.base import Source

Table: TypeAlias = Mapping[str, str]
"""What to do instead, by the trait that is refused."""
Finder: TypeAlias = "Callable[[Source | None, Parameters], str | None]"
"""What returns a trait as the user wrote it, None where it is absent. Without rows, those of parameters alone are found."""


def _written(name: str, *values: object) -> Finder:
    """Return what finds one of `values` in the parameter `name`."""

    def find(source: Source | None, parameters: Parameters) -> str | None:
        value = getattr(parameters, name)
        return f"{name}={value!r}" if any(value is each or value == each for each in values) else None

    return find


def _named(name: str, test: Callable[[Source | None, Parameters], bool]) -> Finder:
    return lambda source, parameters: name if test(source, parameters) else None


def needs_moments(parameters: Parameters) -> bool:
    """Tell whether the conversion needs to know scales, or shares of observed values, before rows are multiplied.

    Its eigenvalues are those of ΩᵀCΩ for the Ω that was drawn, so unlike the Nyström approximation it is not the same for
    every test matrix of one span, and factors of the features cannot be put in afterwards.
    """
    return parameters.recovery == "conversion" and (bool(parameters.scale) or parameters.missing == "pairwise")


TRAITS: dict[str, Finder] = {
    "missing='drop_rows'": _written("missing", "drop_rows"),
    "missing='mean'": _written("missing", "mean"),
    "missing='pairwise'": _written("missing", "pairwise"),
    "sparse rows": _named("sparse rows", lambda source, parameters: source is not None and source.sparse),
    "sample_weight": _named("sample_weight", lambda source, parameters: parameters.sample_weight is not None),
    "forgetting": lambda source, parameters: (
        f"forgetting={parameters.forgetting!r}" if parameters.forgetting != 1 else None
    ),
    "remove": _named("remove", lambda source, parameters: parameters.remove is not None),
    "center=False": _written("center", False),
    "scale by means": lambda source, parameters: f"scale={parameters.scale!r}" if parameters.scaling.of_means else None,
    "scale='block'": _named("scale='block'", lambda source, parameters: parameters.scaling.given == "block"),
    "sampling_errors": lambda source, parameters: (
        f"sampling_errors={parameters.sampling_errors}" if parameters.sampling_errors else None
    ),
    "n_components='cross_validation'": _written("n_components", "cross_validation"),
    "a rule that needs all eigenvalues": lambda source, parameters: (
        f"n_components={wanted.name!r}"
        if isinstance(wanted := parameters.selection(source), Rule) and wanted.needs_all
        else None
    ),
    "a share of the Frobenius norm": lambda source, parameters: (
        f"n_components={wanted!r}" if isinstance(wanted := parameters.selection(source), Frobenius) else None
    ),
    "recovery='conversion'": _written("recovery", "conversion"),
    "recovery='conversion' with scale or missing='pairwise'": lambda source, parameters: (
        f"recovery='conversion' with scale={parameters.scale!r} and missing={parameters.missing!r}"
        if needs_moments(parameters)
        else None
    ),
    "more features than LAPACK decomposes": _named(
        f"more than {DENSE_LIMIT:,} features",
        lambda source, parameters: source is not None and source.shape[1] > DENSE_LIMIT,
    ),
}
"""How each trait is found: returns it as the user wrote it, None where it is absent."""

_FILL = "fill the missing values first"
_GROUPS_OF_ROWS = "groups of rows are left out one at a time, which is done for complete rows of constant weights only; set sampling_errors=0"
_FOR_CROSS_VALIDATION = (
    f"expected solver='covariance', at most {DENSE_LIMIT:,} features, and rows without fillings, forgetting and remove; 'parallel' and "
    "'tracy_widom' need less"
)
_LATER_ROWS = "the groups, trend and covariates of rows to come are not known; fit all rows at once"
_ALL_GROUPS = "its groups are those of all rows; use fit, and then the number that it gave"
_BY_THEMSELVES = "fit the rows of each group by themselves"

CONFLICTS: dict[str, Table] = {
    "sparse rows": dict.fromkeys(
        ("missing='drop_rows'", "missing='mean'", "missing='pairwise'"),
        "that is for dense rows: what a sparse matrix does not store is zero, not missing",
    ),
    "forgetting": dict.fromkeys(
        ("sample_weight", "missing='mean'", "missing='pairwise'", "sparse rows"), "leave one of them out"
    ),
    "remove": {
        **dict.fromkeys(("missing='drop_rows'", "missing='mean'", "missing='pairwise'"), _FILL),
        "forgetting": "use sample_weight",
        "sparse rows": "residuals are dense: give dense rows",
        "center=False": "residuals have the mean 0 in any case; use center=True",
        "scale by means": "residuals have the mean 0, which tells no standard deviation; use scale=True",
    },
    "sampling_errors": dict.fromkeys(
        ("missing='drop_rows'", "missing='mean'", "missing='pairwise'", "forgetting"), _GROUPS_OF_ROWS
    ),
    "n_components='cross_validation'": dict.fromkeys(
        ("missing='mean'", "missing='pairwise'", "forgetting", "remove", "more features than LAPACK decomposes"),
        _FOR_CROSS_VALIDATION,
    ),
}
"""What does not go together whatever the solver: a trait, and those that it excludes."""

WAYS: dict[str, Table] = {
    "fits of groups": {
        **dict.fromkeys(
            (
                *("missing='mean'", "missing='pairwise'", "forgetting"),
                *("n_components='cross_validation'", "sampling_errors"),
            ),
            _BY_THEMSELVES,
        ),
        "center=False": "what is within groups is about their means; use center=True",
    },
    "sampling errors of analyses": {
        "remove": "they follow from covariances of groups of rows; set sampling_errors=0, or remove that part of the rows before",
    },
    "states that rows can be added to": {
        "remove": _LATER_ROWS,
        "n_components='cross_validation'": _ALL_GROUPS,
    },
}
"""What ways of fitting do not take."""


def require_together(source: Source | None, parameters: Parameters, way: str = "") -> None:
    """Raise `NotAvailableError`, naming both, if two traits, or one and a `way` of fitting, do not go together.

    Without a `source`, that is what no rows would change.
    """
    present = {name: found for name, find in TRAITS.items() if (found := find(source, parameters)) is not None}
    for name, table in CONFLICTS.items():
        for trait, instead in table.items():
            if name in present and trait in present:
                raise NotAvailableError(f"{present[name]} and {present[trait]} cannot be combined: {instead}")
    for trait, instead in WAYS.get(way, {}).items():
        if trait in present:
            raise NotAvailableError(f"{way} do not take {present[trait]}: {instead}")


def require_taken(solver: str, refuses: Table, source: Source | None, parameters: Parameters) -> None:
    """Raise `NotAvailableError` if `solver` refuses a trait of the rows or parameters."""
    for trait, instead in refuses.items():
        if (found := TRAITS[trait](source, parameters)) is not None:
            raise NotAvailableError(f"solver={solver!r} does not take {found}: {instead}")
