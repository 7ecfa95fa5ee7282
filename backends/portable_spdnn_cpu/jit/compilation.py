"""What is compiled, how, and when what is kept on disk still serves.

Kernels are Python functions that Numba compiles for the processor at hand when they are first
called with arguments of some types. They run without the interpreter's lock, on raw arrays, and
check nothing: whoever calls them has. (`spmm.direct` and `layout.csc_to_csr` check the structure
that they read; those of `jit.array_objects` look at what they are given, and hold the lock for
that.) Python calls a `kernel`; a `job_kernel` runs by its address (see `jit.jobs`), and a
`kernel_part` within others. What Numba has no words for is an intrinsic, which emits LLVM code.

Loops over entries index by unsigned numbers, ``np.uint64(entry)``: of a signed one Numba asks at
each use whether it counts from the end of an array. The loop that packs weights takes a third of
the time so. Loops over dense items go over a slice, by ``range(slice.size)``: LLVM does not make
vector code of a loop whose signed index begins at a variable, and on a Zen 4 clamping 100,000
numbers of float32 took six times as long.
"""

from __future__ import annotations

import functools
import hashlib
import os
import pickle
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar, cast

import numba
import numba.extending
import numpy as np
from llvmlite.binding import parse_bitcode
from numba.core import types
from numba.core.codegen import JITCodeLibrary
from numba.core.compiler import Compiler, compile_result
from numba.core.compiler_lock import global_compiler_lock
from numba.core.typing.templates import Signature

from portable_spdnn.arrays import Array as Array

# What an intrinsic returns: the signature of a call, and the function that emits its code.
Emission = tuple[Signature, Callable[..., Any]]
Function = TypeVar("Function", bound=Callable[..., Any])


def kernel(function: Function, **options: Any) -> Function:
    """Compile a function that Python calls, by ``numba.njit``, and keep the machine code on disk.

    Machine code of a kernel holds that of the kernels that it calls by name, but Numba's key for it
    has the time and size of the kernel's own file alone. Here a digest of all modules of this
    package is part of the key, so that no version runs code of another.

    Numba numbers the files of a kernel's signatures by what its index holds: two processes that
    compile different ones at a time would take the same number, and one would load the other's
    code. Here a file is named by its signature.

    The wrapper for callers in C is left out: none calls, and it costs a tenth of the compilation.
    `options` are further ones of ``numba.njit``.

    To Numba a constant is of a type of its own, a literal type: what a kernel calls with 0 would be
    compiled for 0, and again for integers. Here a call replaces literal types by those of their
    values. So a kernel does not know an argument at compile time, but for the length of a tuple.
    """
    njit = cast(Any, numba.njit)  # its types do not know all options
    options = {
        "pipeline_class": _KernelCompiler,
        "nogil": True,
        "no_cfunc_wrapper": True,
        **options,
    }
    try:
        compiled = njit(cache=True, **options)(function)
    except RuntimeError:  # of the cache alone: nothing is compiled yet
        _warn_once("no folder may be written")
        compiled = njit(**options)(function)
    compiled.get_call_template = functools.partial(_template_of_any, compiled.get_call_template)
    kept = getattr(compiled._cache, "_cache_file", None)  # none where no folder may be written
    if kept is not None:
        kept._source_stamp = kept._source_stamp, sources_digest()
        kept.save, kept.load = functools.partial(_save, kept), functools.partial(_load, kept)
    return cast(Function, compiled)


def _template_of_any(
    template_of: Callable[..., Any], args: tuple[Any, ...], kws: dict[str, Any]
) -> Any:
    """Return what Numba finds the signature of a call by, for arguments without literal types."""
    any_kws = {name: types.unliteral(kind) for name, kind in kws.items()}
    return template_of(tuple(map(types.unliteral, args)), any_kws)


def _save(kept: Any, key: Any, data: Any) -> None:
    """Keep the machine code of a signature, and its digest in the index of the function.

    Else as `numba.core.caching.IndexDataCacheFile` does, of which `kept` is one.
    """
    stamped = repr((kept._source_stamp, key)).encode()
    name = kept._data_name(int.from_bytes(hashlib.blake2b(stamped, digest_size=8).digest()))
    code = kept._dump(data)
    try:
        index = _load_index(kept)
        index[key] = name, hashlib.blake2b(code).digest()
        with kept._open_for_write(kept._data_path(name)) as stream:
            stream.write(code)
        kept._save_index(index)
    except OSError as error:
        _warn_once(error.strerror or str(error))


def _load(kept: Any, key: Any) -> Any:
    """Return the machine code that was kept of a signature, None where there is none intact."""
    name, digest = _load_index(kept).get(key, ("", b""))
    try:
        code = Path(kept._data_path(name)).read_bytes() if name else b""
    except OSError:
        return None
    return pickle.loads(code) if code and hashlib.blake2b(code).digest() == digest else None


def _load_index(kept: Any) -> dict[Any, tuple[str, bytes]]:
    """Return what was kept of a function; nothing where the index is damaged or of old classes."""
    try:
        index: dict[Any, tuple[str, bytes]] = kept._load_index()
    except Exception:  # noqa: BLE001 - unpickling raises anything; what is lost is compiled anew
        return {}
    return index


# A child that is forked while another thread compiles would find Numba's lock taken for ever.
os.register_at_fork(
    before=global_compiler_lock.acquire,
    after_in_parent=global_compiler_lock.release,
    after_in_child=global_compiler_lock.release,
)


@functools.cache
def _warn_once(reason: str) -> None:
    warnings.warn(
        f"compiled kernels cannot be kept ({reason}) and will be compiled again by the next "
        "process; name another folder in NUMBA_CACHE_DIR",
        RuntimeWarning,
        stacklevel=2,
    )


def job_kernel(function: Function, **options: Any) -> Function:
    """Compile a function that runs by its address alone, as a `Job` does; Python cannot call it.

    `options` are further ones of ``numba.njit``.
    """
    return kernel(function, no_cpython_wrapper=True, **options)


def kernel_part(function: Function, **options: Any) -> Function:
    """Compile a function that other kernels alone call; for Python to call it is a crash.

    Its code is linked into each kernel that calls it, and kept on disk to be linked into others. No
    machine code of its own is made. `options` are further ones of ``numba.njit``.
    """
    part = kernel(function, no_cpython_wrapper=True, pipeline_class=_PartCompiler, **options)
    kept = getattr(cast(Any, part)._cache, "_impl", None)  # none where no folder may be written
    if kept is not None:
        kept.rebuild = _rebuild_part
    return part


def is_part(function: Any) -> bool:
    """Whether a function was compiled by `kernel_part`: it has no address."""
    return bool(function._compiler.pipeline_class is _PartCompiler)


class _KernelCompiler(Compiler):
    """Numba's compiler; the parts that it links find the Python objects that they use."""

    def compile_extra(self, func: Any) -> Any:
        """Compile, and set the environments of parts, as Numba does for what it loads from disk."""
        compiled = super().compile_extra(func)
        for environment in compiled._find_referenced_environments():
            compiled.codegen.set_env(environment.env_name, environment)
        return compiled


class _PartCompiler(Compiler):
    """Numba's compiler, with a library that makes no machine code."""

    def define_pipelines(self) -> Any:
        name = self.state.func_id.func_qualname
        self.state.library = _LinkedCode(self.state.targetctx.codegen(), name)
        return super().define_pipelines()


class _LinkedCode(JITCodeLibrary):
    """LLVM code that is linked into kernels, and which no engine runs by itself."""

    def _optimize_final_module(self) -> None:
        """Do nothing: kernels optimize all that they link.

        Parts link other parts, and each would optimize these again. Numba's passes on single
        functions have run before.
        """

    def _finalize_final_module(self) -> None:
        """Do as the base class does, but hand nothing to the engine."""
        self._finalize_dynamic_globals()
        self._verify_declare_only_symbols()
        self._finalized = True

    def serialize_using_object_code(self) -> Any:
        """Return what is kept on disk, for `_rebuild_part`."""
        return self.serialize_using_bitcode()

    @property
    def codegen(self) -> _LinkedCode:
        """What Numba calls `set_env` of, which elsewhere is the engine."""
        return self

    def set_env(self, name: str, environment: Any) -> None:
        """Set nothing: an engine knows it once a kernel has it; see `_KernelCompiler`."""


def _rebuild_part(context: Any, kept: Any) -> Any:
    """Return what Numba knows of a compiled part, from what was kept of it on disk.

    Else as `numba.core.compiler.CompileResult._rebuild` does, which would make machine code.
    """
    library_, described, environment, signature, object_mode, lifted, types_, starts, others = kept
    for start in starts:
        start()
    name, _, code = library_
    library = _LinkedCode(context.codegen(), name)
    library._final_module = parse_bitcode(code)
    library._finalize_final_module()
    return compile_result(
        typing_context=context.typing_context,
        target_context=context,
        library=library,
        environment=environment,
        entry_point=context.get_executable(library, described, environment),
        fndesc=described,
        signature=signature,
        objectmode=object_mode,
        lifted=lifted,
        type_annotation=types_,
        reload_init=starts,
        referenced_envs=others,  # of parts that it links; kernels find them while they are alive
    )


def entry_point(function: Callable[..., Any], *types: Any) -> Callable[..., Any]:
    """Return what Python calls of a kernel, compiled for arguments of some types.

    The kernel itself would look up the types of its arguments, which takes a third of a
    microsecond. Here whoever calls has looked at the type and the dimensions of each array, but of
    those that go as `jit.array_objects`.
    """
    dispatcher = cast(Any, function)
    dispatcher.compile(types)
    found: Callable[..., Any] = dispatcher.overloads[types].entry_point
    return found


def array_types(dtype: np.dtype[Any], dimensions: int) -> tuple[Any, Any]:
    """Return Numba's types of arrays of any strides and alignment: one is read, one written."""
    item = numba.from_dtype(dtype)
    read, written = (
        types.Array(item, dimensions, "A", readonly, aligned=False) for readonly in (True, False)
    )
    return read, written


@functools.cache
def sources_digest() -> str:
    """Return a digest of all modules of the package that holds this folder."""
    digest = hashlib.blake2b(digest_size=16)
    for file in sorted(Path(__file__).parent.parent.rglob("*.py")):
        digest.update(file.read_bytes())
    return digest.hexdigest()


def intrinsic(function: Callable[..., Emission]) -> Callable[..., Any]:
    """Register a function that emits the LLVM code of a call.

    Parameters
    ----------
    function : callable
        Takes Numba's typing context and the types of the arguments; returns the signature of the
        call and a function that emits its code.

    Returns
    -------
    callable
        What kernels call, with the arguments alone.
    """
    return cast(Callable[..., Any], numba.extending.intrinsic(function))


def read_only(array: Array) -> Array:
    """Return a read-only view.

    To Numba an array that may be written is of another type than one that may not, and each
    type compiles its own code. Operands are passed read-only, so that a memory-mapped file or a
    user's frozen array never starts a compilation in the middle of a run.
    """
    view = array.view()
    view.flags.writeable = False
    return view
