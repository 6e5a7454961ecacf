"""Groups of devices and the layers sharded over them. Knows no model."""
