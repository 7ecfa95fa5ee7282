"""Sparse times sparse, row by row."""
