"""Whole networks on a device."""
