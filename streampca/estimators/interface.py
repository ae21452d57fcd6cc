"""The interface of scikit-learn: its own classes where it is installed, those of `plain` where it is not.

Estimators are estimators of scikit-learn wherever somebody can use them as such. Without it they have the same parameters,
methods and results, but for what only scikit-learn itself makes of them: ``set_output``, pipelines and searches.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from streampca.system.optional import is_installed

if TYPE_CHECKING or is_installed("sklearn"):
    from sklearn import get_config
    from sklearn.base import BaseEstimator, ClassNamePrefixFeaturesOutMixin, TransformerMixin, clone
    from sklearn.utils.validation import check_is_fitted, validate_data
else:
    from streampca.estimators.plain import (
        BaseEstimator,
        ClassNamePrefixFeaturesOutMixin,
        TransformerMixin,
        check_is_fitted,
        clone,
        get_config,
        validate_data,
    )

__all__ = [
    "BaseEstimator",
    "ClassNamePrefixFeaturesOutMixin",
    "TransformerMixin",
    "check_is_fitted",
    "clone",
    "get_config",
    "validate_data",
]
