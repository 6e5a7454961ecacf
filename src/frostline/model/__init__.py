"""The Gemma 4 decoder and its assistant, driven by a spec read from the Hugging Face config. Knows no engine."""
