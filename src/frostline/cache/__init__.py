"""KV memory: pages (who owns which), the prefix cache (what full ones hold) and pools (tensors, one per layer group).

Knows no model and no request.
"""
