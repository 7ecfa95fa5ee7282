"""C = A B for a single product: A is read as it is, in CSR or CSC, and checked on the way."""
