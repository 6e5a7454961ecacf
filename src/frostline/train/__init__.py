"""Training of the bundled pair and of drafters for any target the engine loads. Nothing below imports it."""
