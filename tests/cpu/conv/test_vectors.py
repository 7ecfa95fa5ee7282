"""Vectors of the length that the processor has: the other one is emitted, run and looked at."""

from __future__ import annotations

from pathlib import Path

from avx2_process import needs_avx512, output_without_avx512


@needs_avx512
def test_code_without_avx512(tmp_path: Path) -> None:
    script = Path(__file__).with_name("vectors_of_avx2.py")
    assert output_without_avx512(script, tmp_path) == ["ymm"]
