"""Fitted models: frozen, small, saved as plain arrays."""

from streampca.models.pca import PCAModel
from streampca.models.persistence.models import load_model, save_model

__all__ = ["PCAModel", "load_model", "save_model"]
