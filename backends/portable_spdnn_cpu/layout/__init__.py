"""How layers lie in memory: clusters of outputs, orders of rows, packed arrays."""
