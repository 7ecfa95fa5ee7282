"""Whole networks on the CPU, depth first."""
