"""Fitted models: frozen, small, saved as plain arrays."""
