"""C = A B for a single product: A is read as it is, in CSR, and checked on the way."""
