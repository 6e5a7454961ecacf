"""Computation with a plain-torch twin of the same signature. Knows tensors only, no model and no request."""
