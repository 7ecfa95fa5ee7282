"""Sparse times sparse on a device."""
