"""The generated function of a product, in any form."""

from __future__ import annotations

from typing import Any

from llvmlite import ir

from portable_spdnn_cpu.spmm.emitter import WORD
from portable_spdnn_cpu.spmm.few_columns.operands import ARGUMENTS
from portable_spdnn_cpu.spmm.few_columns.row_kernels import RowsProduct
from portable_spdnn_cpu.spmm.few_columns.slice_kernels import LanesProduct, SlicedProduct
from portable_spdnn_cpu.spmm.few_columns.specs import LanesSpec, RowsSpec, SlicedSpec, Spec


def define_product(module: Any, name: str, spec: Spec) -> Any:
    """Add the function of a product to a module of LLVM code.

    Parameters
    ----------
    module : llvmlite.ir.Module
    name : str
    spec : LanesSpec, SlicedSpec or RowsSpec

    Returns
    -------
    llvmlite.ir.Function
        Takes what `operands.ARGUMENTS` lists.
    """
    function = _declare(module, name)
    emitters = {LanesSpec: LanesProduct, SlicedSpec: SlicedProduct, RowsSpec: RowsProduct}
    product: Any = emitters[type(spec)](function, spec)
    product.emit()
    product.builder.ret_void()
    return function


def _declare(module: Any, name: str) -> Any:
    """Add the function of a product to a module, without a body; others do not see it."""
    function = ir.Function(module, ir.FunctionType(ir.VoidType(), [WORD] * len(ARGUMENTS)), name)
    for argument, word in zip(function.args, ARGUMENTS, strict=True):
        argument.name = word
    return function
