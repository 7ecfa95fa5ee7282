"""Compiling kernels, and intrinsics: single instructions that Numba has no name for."""
