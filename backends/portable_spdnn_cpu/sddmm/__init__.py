"""Sampled products of dense matrices, and the softmax of sparse rows."""
