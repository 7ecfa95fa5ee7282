"""Convolutions with pruned weights: shapes, handles, and what users call."""
