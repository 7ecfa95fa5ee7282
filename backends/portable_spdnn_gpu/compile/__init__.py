"""CUDA kernels: their catalog, their compilation, and machine code kept on disk."""
