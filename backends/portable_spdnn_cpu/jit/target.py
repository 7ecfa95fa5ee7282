"""The processor that kernels are compiled for: its vector registers, as LLVM sees them."""

from __future__ import annotations

import functools

from llvmlite import binding
from numba.core import config


def _features() -> dict[str, bool]:
    """Return what Numba compiles for: NUMBA_CPU_FEATURES where that is set, else the host's."""
    given: str | None = vars(config)["CPU_FEATURES"]
    if given is None:
        host = dict(binding.get_host_cpu_features())
        if not vars(config)["ENABLE_AVX"]:  # NUMBA_ENABLE_AVX=0
            host = {name: has and not name.startswith("avx") for name, has in host.items()}
        return host
    named = given.split(",")
    return {feature[1:]: feature[0] == "+" for feature in named if feature}


_FEATURES = _features()
VECTOR_REGISTERS = 32 if _FEATURES.get("avx512f") else 16
# Bytes of one: AVX-512, AVX2, or what is common to all (SSE2, and NEON, which has 32 registers, of
# which half are used).
VECTOR_BYTES = 64 if _FEATURES.get("avx512f") else 32 if _FEATURES.get("avx2") else 16
HAS_FAST_MASKS = VECTOR_BYTES == 64  # loads and stores of some lanes are as fast as of all


def is_x86(triple: str) -> bool:
    """Whether a triple of LLVM names an x86 processor."""
    return triple.startswith(("x86", "i386", "i686"))


def cpu_name() -> str:
    """Return LLVM's name of the processor: NUMBA_CPU_NAME where that is set, else the host's."""
    return str(vars(config)["CPU_NAME"] or binding.get_host_cpu_name())


def is_zen() -> bool:
    """Whether the processor is one of AMD's since 2017."""
    return cpu_name().startswith("znver")


def has_slow_word_loads() -> bool:
    """Whether code with vectors of 64 bytes is known to gain where it loads few single words.

    On a Zen 5, between multiply-adds with operands of 64 bytes in the first-level cache, a load of
    8 bytes takes 0.9 cycles, one of 16 to 64 bytes 0.5.
    """
    return VECTOR_BYTES == 64 and cpu_name() == "znver5"


def is_zen_4() -> bool:
    """Whether code is for a Zen 4, with vectors of 64 bytes.

    It computes the halves of such a vector one after the other, and loads two vectors of 32 bytes
    in the time of one of 64: half a vector takes half of the time.
    """
    return VECTOR_BYTES == 64 and cpu_name() == "znver4"


def has_fast_broadcasts() -> bool:
    """Whether to load a number into all lanes of 64 bytes takes less time than to shuffle it there.

    Intel's cores with AVX-512 shuffle such vectors on one of the two ports that multiply and add.
    Those since Sapphire Rapids, which are told by their numbers of 16 bits, have three ports that
    load: two for 64 bytes, and one more for 32 or less. On one of these, a Xeon with 48 KiB and 2
    MiB of cache, 45 streamed products took 0.97 of the time by loads. Others were not measured.
    """
    return VECTOR_BYTES == 64 and not is_zen() and _FEATURES.get("avx512fp16", False)


@functools.cache
def has_fast_gathers() -> bool:
    """Whether a gather of the processor's takes less time than as many single loads.

    Of some processors LLVM knows that gathers are slow, and emits single loads. It takes those of
    Zen 4 and 5 for fast, where a single column takes 0.7 to 0.95 of the time with single loads.
    """
    if is_zen():
        return False
    binding.initialize_native_target()
    binding.initialize_native_asmprinter()
    machine = binding.Target.from_default_triple().create_target_machine(
        cpu=cpu_name(),
        features=",".join(f"{'+' if has else '-'}{name}" for name, has in _FEATURES.items()),
        opt=3,
    )
    mask = ", ".join(["i1 true"] * 4)
    module = binding.parse_assembly(
        "declare <4 x double> @llvm.masked.gather.v4f64.v4p0"
        "(<4 x ptr>, i32, <4 x i1>, <4 x double>)\n"
        "define <4 x double> @four(<4 x ptr> %from) {\n"
        "  %found = call <4 x double> @llvm.masked.gather.v4f64.v4p0"
        f"(<4 x ptr> %from, i32 8, <4 x i1> <{mask}>, <4 x double> undef)\n"
        "  ret <4 x double> %found\n}"
    )
    return "vgather" in machine.emit_assembly(module)
