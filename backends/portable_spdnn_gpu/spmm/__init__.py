"""Sparse times dense on a device."""
