"""The parameters of the estimators, each stated once with name, default, domain and text, and the checked parameters of a fit.

The modules here import neither numpy nor any other heavy package, because the configuration of a run reads them.
"""

from __future__ import annotations

from dataclasses import dataclass

from streampca.parameters.analyses import COUPLED_PARAMETERS, FACTOR_PARAMETERS
from streampca.parameters.kernel_pca import KERNEL_PCA_PARAMETERS
from streampca.parameters.pca import PCA_PARAMETERS, Parameters
from streampca.parameters.statement import Parameter, checked, documented

__all__ = [
    "COUPLED_PARAMETERS",
    "FACTOR_PARAMETERS",
    "KERNEL_PCA_PARAMETERS",
    "KINDS",
    "PCA_PARAMETERS",
    "ModelKind",
    "Parameter",
    "Parameters",
    "checked",
    "documented",
]


@dataclass(frozen=True)
class ModelKind:
    """What distinguishes one kind of model in names and in words."""

    name: str
    """Value of ``model.kind``, and of the attribute of saved models."""
    estimator: str
    """Name of its estimator in `streampca`."""
    parameters: tuple[Parameter, ...]
    """Parameters of the estimator, in the order of the signature."""
    title: str
    """Title of the page of a run."""
    meaning: str = ""
    """Sentence of the key ``kind`` in configurations."""
    page: str = "components"
    """Which page shows it: ``"components"``, ``"kernel"`` or ``"analysis"``."""
    row_distances: bool = False
    """Whether there are T² and Q of rows, and results in AnnData."""
    keeps_state: bool = True
    """Whether rows can be added to a fit that was saved."""
    noun: str = "component"
    """What one of its components is called."""
    strength: str = "variance (eigenvalue)"
    """What the values are called by which components are ordered."""
    strengths: str = "explained_variance"
    """Name of these values in data sets."""
    bounded: bool = False
    """Whether they are correlations, at most 1."""
    chart: str = ""
    """Title of their chart."""
    share_of: str = ""
    """Heading of their shares in a table."""
    note: str = ""
    """What a page says of its patterns."""
    found: str = ""
    """What a page says was found, with the names of numbers: ``count``, ``first``, ``share``, ``rows``."""
    finished: str = ""
    """What the command line says was found, with ``size`` in place of ``rows``."""

    @property
    def is_analysis(self) -> bool:
        """Return whether it is solved from a covariance in place of principal components."""
        return self.page == "analysis"


_OF_PAIRS = "The sign of a pair as a whole is arbitrary."
KINDS = {
    kind.name: kind
    for kind in (
        ModelKind("pca", "PCA", PCA_PARAMETERS, "Principal component analysis", row_distances=True),
        ModelKind(
            "kernel_pca",
            "KernelPCA",
            KERNEL_PCA_PARAMETERS,
            "Kernel principal component analysis",
            page="kernel",
            strengths="eigenvalues",
            keeps_state=False,
        ),
        ModelKind(
            "mca",
            "MCA",
            COUPLED_PARAMETERS,
            "Maximum covariance analysis",
            meaning="Maximum covariance analysis of two variables, or of the first features and the others.",
            page="analysis",
            noun="pair",
            strength="singular value",
            strengths="singular_values",
            chart="Singular values of the cross-covariance",
            share_of="share of squared covariance",
            note="The change of each table where its score on the pair rises by one standard deviation, with the pair’s share of the "
            f"squared covariance between the tables. {_OF_PAIRS}",
            found="{count} of patterns explain {share} of the squared covariance between {tables} in {rows}",
            finished="{count} of patterns of {size} with {share} of the squared covariance",
        ),
        ModelKind(
            "cca",
            "CCA",
            COUPLED_PARAMETERS,
            "Canonical correlation analysis",
            meaning="Canonical correlation analysis of two variables, or of the first features and the others.",
            page="analysis",
            noun="pair",
            strength="correlation",
            strengths="correlations",
            bounded=True,
            chart="Canonical correlations",
            share_of="square",
            note="The change of each table where its canonical variate rises by one standard deviation, with the canonical correlation r "
            f"of the pair. {_OF_PAIRS}",
            found="{count} of canonical variates of {tables} in {rows}; the first canonical correlation is {first}",
            finished="{count} of variates of {size}, the first with a correlation of {first}",
        ),
        ModelKind(
            "factor_analysis",
            "FactorAnalysis",
            FACTOR_PARAMETERS,
            "Factor analysis",
            meaning="Factor analysis by maximum likelihood.",
            page="analysis",
            noun="factor",
            strength="communal variance",
            strengths="communal_variance",
            chart="Communal variance of the factors",
            share_of="share of variance",
            note="Loadings: the change of each feature where the factor rises by one standard deviation, with the factor’s share of the "
            "total variance. Factors are determined up to a rotation.",
            found="{count} explain {share} of the variance of {rows}; the rest is specific to single features",
            finished="{count} of {size} with {share} of the variance",
        ),
    )
}
"""The kinds of models by name."""
