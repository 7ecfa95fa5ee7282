"""Fused segments: many layers of a narrow network in one launch."""
