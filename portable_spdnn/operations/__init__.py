"""The operations of a backend: operands, handles, and what users call."""
