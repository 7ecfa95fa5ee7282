"""Machine code kept on disk.

A file holds a digest and then the machine code: one that was cut short or changed is compiled
again. Its name depends on everything that the machine code depends on.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

from portable_spdnn.errors import InputError
from portable_spdnn.host import cache_folder
from portable_spdnn.io.atomic_output import atomic_output
from portable_spdnn_gpu.compile.catalog import Kernel
from portable_spdnn_gpu.compile.nvrtc import (
    compile_source,
    compiler_version,
    headers,
    kernel_folder,
)

DIGEST = hashlib.sha256().digest_size


def machine_code(kernel: Kernel, architecture: int) -> bytes:
    """Return the machine code of the file of a kernel, from disk where it was compiled before.

    Parameters
    ----------
    kernel : Kernel
    architecture : int
        The compute capability times ten: 90 for sm_90.

    Raises
    ------
    KernelCompilationError
        With the compiler's log.
    """
    path = code_path(kernel, architecture)
    try:
        kept = path.read_bytes()
    except OSError:
        kept = b""
    digest, code = kept[:DIGEST], kept[DIGEST:]
    if code and hashlib.sha256(code).digest() == digest:
        return code
    code, _ = compile_source(kernel, architecture)
    keep(path, hashlib.sha256(code).digest() + code)  # or it is compiled again the next time
    return code


def keep(path: Path, content: bytes) -> str:
    """Write a file of the cache; return why it could not be written, or nothing."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with atomic_output(path) as stream:
            stream.write(content)
    except (OSError, InputError) as error:
        return str(error)
    return ""


def code_path(kernel: Kernel, architecture: int) -> Path:
    """Return where the machine code of the file of a kernel is kept."""
    folder = kernel_folder()
    parts = [f"sm_{architecture}", compiler_version(), *kernel.options]
    digest = hashlib.sha256("\0".join(parts).encode())
    for source in (folder / kernel.source, *headers(folder)):
        digest.update(source.read_bytes())
    name = f"{Path(kernel.source).stem}-sm_{architecture}-{digest.hexdigest()[:24]}.cubin"
    return cache_folder() / "kernels" / name
