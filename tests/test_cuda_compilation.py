"""Every CUDA kernel compiles for every architecture within its claims; no device is needed."""

from __future__ import annotations

import functools
from dataclasses import replace

import pytest

from portable_spdnn_gpu.kernel_catalog import (
    ARCHITECTURES,
    OLDEST_OF_CUDA_13,
    PRECISIONS,
    SHARED_LIMITS,
    SHARED_UNASKED,
    Kernel,
    Precision,
    catalog,
    csr_spmm,
    kernel_folder,
    resident_layers,
)
from portable_spdnn_gpu.nvrtc_compiler import (
    MULTIPROCESSORS,
    KernelCompilationError,
    ResourceReport,
    compile_source,
    occupancy,
    resident_blocks,
    resources,
)

nvrtc = pytest.importorskip("cupy.cuda", reason="CuPy is not installed: extra cuda13").nvrtc
try:
    nvrtc.getVersion()
except (RuntimeError, OSError) as error:
    pytest.skip(f"NVRTC cannot be loaded: {error}", allow_module_level=True)


BEFORE_13 = nvrtc.getVersion()[0] < 13


@pytest.fixture(params=ARCHITECTURES)
def architecture(request: pytest.FixtureRequest) -> int:
    if request.param < OLDEST_OF_CUDA_13 and not BEFORE_13:
        pytest.skip(f"NVRTC 13 does not compile for sm_{request.param}; that of CUDA 12 does")
    return int(request.param)


@functools.cache
def compiled(source: str, defines: tuple[tuple[str, str], ...], architecture: int) -> tuple:
    """Machine code and reports of one file; its kernels share one compilation."""
    code, log = compile_source(Kernel("", source, 0, defines, 0), architecture)
    return code, resources(log)


def kernel_id(kernel: Kernel) -> str:
    return "-".join([kernel.name, *(value for _, value in kernel.defines)])


CHOSEN = [
    (kernel, architecture) for architecture in ARCHITECTURES for kernel in catalog(architecture)
]


@pytest.mark.parametrize(
    ("kernel", "architecture"),
    CHOSEN,
    indirect=["architecture"],
    ids=[f"{kernel_id(k)}-sm_{a}" for k, a in CHOSEN],
)
def test_kernel_compiles_within_its_claims(kernel: Kernel, architecture: int) -> None:
    code, reports = compiled(kernel.source, kernel.defines, architecture)
    assert code[:4] == b"\x7fELF"
    report = reports[kernel.name]
    assert (report.spill_stores, report.spill_loads, report.stack_frame) == (0, 0, 0)
    assert report.registers <= kernel.registers
    assert report.static_shared == kernel.static_shared
    # The launch asks for what is beyond SHARED_UNASKED; it covers dynamic shared memory alone.
    assert kernel.static_shared <= SHARED_UNASKED
    assert kernel.static_shared + kernel.dynamic_shared <= SHARED_LIMITS[architecture]
    claimed = replace(report, registers=kernel.registers)
    assert occupancy(kernel, report, architecture) >= occupancy(kernel, claimed, architecture)
    assert resident_blocks(kernel, claimed, architecture) >= 1


def test_every_file_of_kernels_is_in_the_catalog() -> None:
    assert {path.name for path in kernel_folder().glob("*.cu")} == {k.source for k in catalog()}


def test_single_precision_kernels_keep_their_occupancy() -> None:
    # Of float on sm_90: a change that halves one of these is a change of design.
    floors = {"csr_spmm": 0.5, "clustered_spmm": 0.3, "staged_spmm": 0.35, "spgemm_fill": 0.75}
    floors["resident_layers"] = 0.25  # 512 threads with 128 registers each
    for kernel in catalog(90):
        if dict(kernel.defines)["SCALAR"] == "float" and kernel.name in floors:
            report = compiled(kernel.source, kernel.defines, 90)[1][kernel.name]
            assert occupancy(kernel, report, 90) >= floors[kernel.name]


def test_occupancy_by_hand() -> None:
    # 65536 registers / (128 threads x 64) = 8 blocks of 128 among 2048 threads: one half.
    kernel = Kernel("k", "k.cu", 128, (), 64)
    assert resident_blocks(kernel, ResourceReport(64, 0, 0, 0, 0), 90) == 8
    assert occupancy(kernel, ResourceReport(64, 0, 0, 0, 0), 90) == 0.5
    # 33 registers are given as 40: 12 blocks (61440 registers), where 16 would need 81920.
    assert resident_blocks(kernel, ResourceReport(33, 0, 0, 0, 0), 90) == 12
    # 32 KiB and the driver's 1 KiB: 6 of 228 KiB; on sm_75 nothing is reserved: 2 of 64.
    wide = Kernel("k", "k.cu", 128, (), 16, dynamic_shared=32 * 1024)
    assert resident_blocks(wide, ResourceReport(16, 0, 0, 0, 0), 90) == 6
    assert resident_blocks(wide, ResourceReport(16, 0, 0, 0, 0), 75) == 2
    assert set(MULTIPROCESSORS) == set(ARCHITECTURES)


@pytest.mark.parametrize("number", ARCHITECTURES)
def test_what_is_chosen_for_a_width_is_in_the_catalog(number: int) -> None:
    limits = MULTIPROCESSORS[number]
    assert SHARED_LIMITS[number] == limits.shared - limits.reserved_shared
    claimed = {kernel.defines for kernel in catalog(number)}
    for precision in PRECISIONS:
        for widest in range(1, 4200):
            kernel = resident_layers(precision, widest, SHARED_LIMITS[number])
            assert kernel is None or kernel.defines in claimed


def test_a_kernel_that_does_not_compile_prints_the_log(
    tmp_path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "common.cuh").write_text("")
    (tmp_path / "csr_spmm.cu").write_text("__global__ void csr_spmm() { no_such_name = 1; }")
    monkeypatch.setattr("portable_spdnn_gpu.nvrtc_compiler.kernel_folder", lambda: tmp_path)
    with pytest.raises(KernelCompilationError) as error:
        compile_source(csr_spmm(Precision(), True), 90)
    message = str(error.value)
    assert "csr_spmm.cu does not compile for sm_90 with -DSCALAR=float" in message
    assert 'identifier "no_such_name" is undefined' in message


def test_a_report_in_an_unknown_form_is_an_error() -> None:
    with pytest.raises(KernelCompilationError, match="in a form not known here"):
        resources("ptxas info : Compiling entry function 'k' for 'sm_90'\nnothing more")
