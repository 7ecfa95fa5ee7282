"""Sparse attention, fused: scores, softmax and values, a block of queries at a time."""
