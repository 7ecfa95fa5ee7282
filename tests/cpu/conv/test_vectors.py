"""Vectors of the length that the processor has: the other one is emitted, run and looked at."""

from __future__ import annotations

from pathlib import Path

from vector_lengths import needs_avx512, needs_sse2, output_with_vectors


@needs_avx512
def test_code_without_avx512(tmp_path: Path) -> None:
    script = Path(__file__).with_name("shorter_vectors.py")
    assert output_with_vectors(32, script, tmp_path) == ["ymm"]


@needs_sse2
def test_code_without_avx(tmp_path: Path) -> None:
    script = Path(__file__).with_name("shorter_vectors.py")
    assert output_with_vectors(16, script, tmp_path) == []  # no wide register is named
