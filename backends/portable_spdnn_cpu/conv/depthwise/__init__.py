"""Depthwise convolutions: each channel by itself, with dense kernels of few entries."""
