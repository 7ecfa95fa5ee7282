"""Tiles of inputs: microkernels, copies, the kernel that runs layers on them."""
