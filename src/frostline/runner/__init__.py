"""Device-side state of requests, and sampling on it. Knows rows, not requests."""
