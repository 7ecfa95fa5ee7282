"""Pruned matrices, such as those of the Deep Learning Matrix Collection, measured."""
