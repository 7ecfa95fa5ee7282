"""What is found once and kept on disk: machine code, and measured choices.

A file holds a digest and then its content: one that was cut short or changed is made again. Its
name depends on everything that the content depends on.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
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
    code = read_kept(path)
    if not code:
        code, _ = compile_source(kernel, architecture)
        keep(path, code)  # or it is compiled again the next time
    return code


def code_path(kernel: Kernel, architecture: int) -> Path:
    """Return where the machine code of the file of a kernel is kept."""
    parts = [f"sm_{architecture}", compiler_version(), *kernel.options]
    name = f"{Path(kernel.source).stem}-sm_{architecture}-{digest_of(parts, [kernel.source])}.cubin"
    return cache_folder() / "kernels" / name


def digest_of(parts: Sequence[str], sources: Sequence[str]) -> str:
    """Return a digest of texts, and of files of kernels with the headers that they include."""
    folder = kernel_folder()
    digest = hashlib.sha256("\0".join(parts).encode())
    for file in (*(folder / source for source in sources), *headers(folder)):
        digest.update(file.read_bytes())
    return digest.hexdigest()[:24]


def read_kept(path: Path) -> bytes:
    """Return the content of a file of the cache; nothing where it is absent or damaged."""
    try:
        kept = path.read_bytes()
    except OSError:
        return b""
    digest, content = kept[:DIGEST], kept[DIGEST:]
    return content if hashlib.sha256(content).digest() == digest else b""


def keep(path: Path, content: bytes) -> str:
    """Write a file of the cache; return why it could not be written, or nothing."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with atomic_output(path) as stream:
            stream.write(hashlib.sha256(content).digest() + content)
    except (OSError, InputError) as error:
        return str(error)
    return ""
