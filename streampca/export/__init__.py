"""Fitted models in the formats of other programs: scikit-learn, ONNX, faiss, numpy and NetCDF files."""
