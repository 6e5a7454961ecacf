"""One tick of the serving loop: scheduler, admission, finish rules. Knows rows and tokens, never tensors."""
