"""Frozen-KV multi-token prediction: plan, draft, tree, verify, accept, as functions of row state."""
