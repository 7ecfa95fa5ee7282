"""Compiling kernels, intrinsics, threads, and what the processor can do at most."""
