"""Fixtures of the tests of the CPU backends."""

from __future__ import annotations

from tile_settings import depth_first_plans as depth_first_plans
