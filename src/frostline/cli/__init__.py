"""Entry points, thin: they turn arguments into configs and results into terminal text or JSON. No tensors."""
