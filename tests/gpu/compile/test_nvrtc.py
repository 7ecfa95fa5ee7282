"""Every kernel compiles for every architecture within its claims; no device is needed."""

from __future__ import annotations

import functools
import itertools
import re
import struct
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest
from kernel_catalog import ARCHITECTURES, PRECISIONS, SHARED_LIMITS, catalog
from nvrtc_architectures import is_compiled_for, needs_compiler_of
from ptxas_reports import (
    MULTIPROCESSORS,
    ResourceReport,
    compile_anew,
    occupancy,
    resident_blocks,
    resources,
)

from portable_spdnn.host import usable_cores
from portable_spdnn_gpu.compile.catalog import (
    BOUNDED,
    NO_EPILOGUE,
    SHARED_UNASKED,
    Kernel,
    clustered_spmm,
    csr_spmm,
    persistent_layers,
    staged_configs,
    staged_spmm,
)
from portable_spdnn_gpu.compile.nvrtc import (
    KernelCompilationError,
    compile_source,
    headers,
    kernel_folder,
)
from portable_spdnn_gpu.compile.precision import Precision

nvrtc = pytest.importorskip("cupy.cuda", reason="CuPy is not installed: extra cuda13").nvrtc
try:
    nvrtc.getVersion()
except (RuntimeError, OSError) as error:
    pytest.skip(f"NVRTC cannot be loaded: {error}", allow_module_level=True)


@functools.cache
def compiled(source: str, defines: tuple[tuple[str, str], ...], architecture: int) -> tuple:
    """Machine code and reports of one file; its kernels share one compilation."""
    code, log = compile_anew(Kernel("", source, 0, defines, 0), architecture)
    return code, resources(log)


@pytest.fixture(scope="module", autouse=True)
def compiled_ahead(request: pytest.FixtureRequest) -> None:
    """Compile what the chosen tests ask for on all cores; the compiler lets other threads run.

    What does not compile fails in its own test.
    """
    wanted = set()
    for item in request.session.items:
        parameters = item.callspec.params if hasattr(item, "callspec") else {}
        if item.path == request.path and {"kernel", "architecture"} <= parameters.keys():
            kernel, architecture = parameters["kernel"], parameters["architecture"]
            if is_compiled_for(architecture):
                wanted.add((kernel.source, kernel.defines, architecture))
    with ThreadPoolExecutor(usable_cores()) as pool:
        for each in sorted(wanted):
            pool.submit(compiled, *each)


def kernel_id(kernel: Kernel) -> str:
    return "-".join([kernel.name, *(value for _, value in kernel.defines)])


def elf_bytes(code: bytes) -> int:
    """Return how long a 64-bit ELF file is, as its headers say; see elf(5)."""
    segments, sections = struct.unpack_from("<2Q", code, 0x20)
    segment_bytes, segment_count, section_bytes, section_count = struct.unpack_from(
        "<4H", code, 0x36
    )
    ends = [segments + segment_bytes * segment_count, sections + section_bytes * section_count]
    for number in range(section_count):
        header = sections + section_bytes * number
        kind, _, _, offset, size = struct.unpack_from("<I4Q", code, header + 4)
        if kind != NO_BITS:
            ends.append(offset + size)
    return max(ends)


NO_BITS = 8  # a section that takes nothing of the file


TUNED = [
    staged_spmm(precision, BOUNDED, config)
    for precision in PRECISIONS
    for config in staged_configs(precision)[1:]
]


CHOSEN = [
    pytest.param(
        kernel,
        architecture,
        marks=needs_compiler_of(architecture),
        id=f"{kernel_id(kernel)}-sm_{architecture}",
    )
    for architecture in ARCHITECTURES
    for kernel in catalog(architecture)
]


@pytest.mark.parametrize(("kernel", "architecture"), CHOSEN)
def test_kernel_compiles_within_its_claims(kernel: Kernel, architecture: int) -> None:
    code, reports = compiled(kernel.source, kernel.defines, architecture)
    assert code[:4] == b"\x7fELF"
    assert len(code) == elf_bytes(code)
    report = reports[kernel.name]
    # Where all registers of a claim are used, earlier compilers spill a word.
    spilled = 0 if nvrtc.getVersion() >= (13, 1) else 8
    assert max(report.spill_stores, report.spill_loads, report.stack_frame) <= spilled
    assert report.registers <= kernel.registers
    assert report.static_shared == kernel.static_shared
    # What is beyond SHARED_UNASKED is asked for; tuning leaves out what does not fit.
    assert kernel.static_shared <= SHARED_UNASKED
    fits = kernel.shared <= SHARED_LIMITS[architecture]
    assert fits or kernel in TUNED
    claimed = replace(report, registers=kernel.registers)
    assert occupancy(kernel, report, architecture) >= occupancy(kernel, claimed, architecture)
    assert (resident_blocks(kernel, claimed, architecture) >= 1) == fits


def test_what_tuning_may_choose_is_in_the_catalog() -> None:
    kernels = catalog()
    for precision in PRECISIONS:
        for config in staged_configs(precision):
            assert staged_spmm(precision, BOUNDED, config) in kernels
        assert staged_spmm(precision, NO_EPILOGUE) in kernels
        # The one that is taken without measuring runs everywhere.
        assert staged_spmm(precision, BOUNDED).dynamic_shared < 48 * 1024


@pytest.mark.parametrize("precision", PRECISIONS, ids=lambda p: p.storage.name)
def test_copies_are_asynchronous_and_accesses_vectors(precision: Precision) -> None:
    """Of the virtual code; from sm_80 on, and in pieces of 16 bytes."""
    text = {arch: virtual_code(staged_spmm(precision, BOUNDED), arch) for arch in (75, 80, 90)}
    assert "cp.async" not in text[75]
    for architecture in (80, 90):
        assert "cp.async.cg.shared.global" in text[architecture]
        assert "cp.async.wait_group" in text[architecture]
    for code in text.values():
        assert re.search(r"ld\.shared\.v[24]\.", code)
        assert re.search(r"st\.global\.v[24]\.", code)
        assert "local" not in code


@pytest.mark.parametrize("architecture", [75, 90])
@pytest.mark.parametrize(
    "kernel",
    [product(Precision(), BOUNDED) for product in (csr_spmm, clustered_spmm, staged_spmm)]
    + [persistent_layers(Precision(), 1024, SHARED_LIMITS[90])],
    ids=lambda kernel: kernel.name,
)
def test_the_last_block_lists_behind_fences(kernel: Kernel, architecture: int) -> None:
    """Marks are ordered with the count of blocks, and read where those of others arrive.

    All threads fence before one of them counts: fences must be sequentially consistent, as the
    CUDA C++ Programming Guide says of `__threadfence`.
    """
    text = virtual_code(kernel, architecture)
    fence = r"(?:membar\.gl|fence\.sc\.gpu)"
    assert re.search(
        rf"{fence}.*?atom\.global\.add.*?{fence}.*?ld\.global\.cg\.v2", text, re.DOTALL
    )


def virtual_code(kernel: Kernel, architecture: int) -> str:
    folder = kernel_folder()
    included = headers(folder)
    program = nvrtc.createProgram(
        (folder / kernel.source).read_text(), kernel.source,
        [header.read_bytes() for header in included], [header.name.encode() for header in included],
    )  # fmt: skip
    options = (f"--gpu-architecture=compute_{architecture}", "--std=c++17", *kernel.options)
    try:
        nvrtc.compileProgram(program, options)
        code = nvrtc.getPTX(program)
    finally:
        nvrtc.destroyProgram(program)
    return code.decode() if isinstance(code, bytes) else code


def test_every_file_of_kernels_is_in_the_catalog() -> None:
    folder = kernel_folder()
    found = {str(path.relative_to(folder)) for path in folder.rglob("*.cu")}
    assert found == {kernel.source for kernel in catalog()}


def test_single_precision_kernels_keep_their_occupancy() -> None:
    # Of float on sm_90: a change that halves one of these is no mere change of code.
    floors = {"csr_spmm": 0.5, "clustered_spmm": 0.3, "staged_spmm": 0.5, "spgemm_fill": 0.75}
    floors["persistent_layers"] = 0.25  # 512 threads with 128 registers each
    for kernel in catalog(90):
        wide = dict(kernel.defines).get("MINIBATCH") == "32"  # gives occupancy for registers
        if dict(kernel.defines)["SCALAR"] == "float" and kernel.name in floors and not wide:
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
    for precision, constant in itertools.product(PRECISIONS, (False, True)):
        for widest in range(1, 4200):
            kernel = persistent_layers(precision, widest, SHARED_LIMITS[number], constant)
            assert kernel is None or kernel.defines in claimed


def test_a_kernel_that_does_not_compile_prints_the_log(
    tmp_path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "spmm").mkdir()
    (tmp_path / "spmm" / "csr_spmm.cu").write_text(
        "__global__ void csr_spmm() { no_such_name = 1; }"
    )
    monkeypatch.setattr("portable_spdnn_gpu.compile.nvrtc.kernel_folder", lambda: tmp_path)
    with pytest.raises(KernelCompilationError) as error:
        compile_source(csr_spmm(Precision(), BOUNDED), 90)
    message = str(error.value)
    assert "csr_spmm.cu does not compile for sm_90 with -DSCALAR=float" in message
    assert 'identifier "no_such_name" is undefined' in message


def test_a_report_in_an_unknown_form_is_an_error() -> None:
    with pytest.raises(KernelCompilationError, match="in a form not known here"):
        resources("ptxas info : Compiling entry function 'k' for 'sm_90'\nnothing more")
