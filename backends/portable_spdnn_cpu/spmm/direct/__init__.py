"""C = A B with nothing prepared: A is read as it is, in CSR or CSC, and checked on the way."""
