"""Tokens to text and back: tokenizer, chat template, incremental detokenizer, stop strings. No tensors."""
