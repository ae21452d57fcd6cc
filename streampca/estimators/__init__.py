"""Estimators with the interface of scikit-learn, a module each; `loading` and `merging` load and merge saved ones."""
