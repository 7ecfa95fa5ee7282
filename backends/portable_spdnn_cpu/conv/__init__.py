"""Convolutions with pruned weights."""
