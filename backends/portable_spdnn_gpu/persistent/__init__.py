"""Runs of layers in one launch."""
