"""Data-parallel runs over MPI ranks."""
