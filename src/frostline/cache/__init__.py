"""KV memory: pages (who owns which, no tensors) and pools (the tensors, one per layer group).

Knows no model and no request.
"""
