"""A CUDA device: memory, launches, features, operands, measured limits."""
