"""Convolutions with pruned weights: what users call, validated, and their handle.

Each is a cross-correlation, as ``Conv`` of ONNX. With P the image x[n] in its padding of zeros,
strides s, dilations d and output o in group g::

    z[n, o, i, j] = sum over c, u, v of weights[o, c, u, v] P[g C + c, i s0 + u d0, j s1 + v d1]

for c = 0 .. C - 1, C = channels / groups. Weights that are 0 are no part of the sum: NaN and
infinity do not pass through them. Zeros of the padding are: infinity times them is NaN.

Arrays of images are (batch, channels, height, width). Of those whose channels come last,
``x.transpose(0, 3, 1, 2)`` is one without a copy, and ``y.transpose(0, 2, 3, 1)`` turns a result
back.
"""

from __future__ import annotations

from typing import Literal

from portable_spdnn.epilogue import Epilogue
from portable_spdnn.operations.convolutions.geometry import Extents, Padding, checked_image_shape
from portable_spdnn.operations.convolutions.handle import ConvHandle
from portable_spdnn.operations.convolutions.hooks import ConvHooks
from portable_spdnn.operations.operands import AnyArray, DenseLike
from portable_spdnn.operations.optional import optional

CONVOLUTIONS = frozenset(("conv1d", "conv2d", "depthwise_conv2d"))


class Convolutions(ConvHooks):
    """What users call on a backend; the module's text has the mathematics."""

    @optional("conv2d")
    def conv2d(
        self,
        x: DenseLike,
        weights: DenseLike,
        stride: Extents = 1,
        padding: Padding = 0,
        dilation: Extents = 1,
        groups: int = 1,
        epilogue: Epilogue | None = None,
        residual: DenseLike | None = None,
    ) -> AnyArray:
        """Convolve images with weights that hold zeros, finished by an epilogue.

        Parameters
        ----------
        x : dense, shape (batch, channels, height, width)
        weights : dense, shape (outputs, channels / groups, kernel height, kernel width)
            In host memory. Those that are 0 are pruned.
        stride, dilation : int or pair of int
            A pair is (vertical, horizontal).
        padding : int, pair of int, ((above, below), (left, right)), "same" or "valid"
            Zeros around the image; a pair is (above and below, left and right). With "same" the
            result's height is that of the image divided by the stride, rounded up, and its width
            the like; of an odd number of zeros, one more is below and on the right. "valid": none.
        groups : int
            Into which channels and outputs are divided, each group apart from the others.
        epilogue : Epilogue, optional
            Its bias is one number, or one for each output.
        residual : dense, of the result's shape, optional
            Added before the activation.

        Returns
        -------
        dense, shape (batch, outputs, height', width')
            With height' = (height + padding - dilation (kernel height - 1) - 1) // stride + 1, and
            the like for width'. float64 where an operand needs it, else float32.

        Raises
        ------
        InputError
            If shapes do not fit, the kernel is larger than the padded image, or an operand is not
            real.
        NotImplementedError
            If the backend has no convolutions; the message names those that have.

        Examples
        --------
        >>> import numpy as np, portable_spdnn as ps
        >>> image, cross = np.ones((1, 1, 3, 3)), np.array([[[[0, 1, 0], [1, 1, 1], [0, 1, 0]]]])
        >>> ps.get_backend("scipy").conv2d(image, cross, padding=1)[0, 0].tolist()
        [[3.0, 4.0, 3.0], [4.0, 5.0, 4.0], [3.0, 4.0, 3.0]]
        """
        shape = stride, padding, dilation, groups
        return self.convolve("conv2d", x, weights, shape, epilogue, residual)

    @optional("conv2d")
    def conv2d_handle(
        self,
        weights: DenseLike,
        input_shape: tuple[int, ...],
        stride: Extents = 1,
        padding: Padding = 0,
        dilation: Extents = 1,
        groups: int = 1,
        epilogue: Epilogue | None = None,
    ) -> ConvHandle:
        """Prepare weights once, for images of shape `input_shape`; the batch of calls may differ.

        Takes the arguments of `conv2d`, and raises what it raises. The backend may try its
        variants now on images of that shape, and keep the fastest.

        Examples
        --------
        >>> import numpy as np, portable_spdnn as ps
        >>> weights = np.zeros((2, 1, 3, 3))
        >>> weights[0, 0, 1, 1], weights[1, 0, 0, 0] = 1, 2
        >>> relu = ps.Epilogue(bias=[-1, 0], activation="relu")
        >>> handle = ps.get_backend("scipy").conv2d_handle(
        ...     weights, (1, 1, 2, 2), padding=1, epilogue=relu
        ... )
        >>> handle.apply(np.array([[[[1, 2], [3, 4]]]])).tolist()
        [[[[0.0, 1.0], [2.0, 3.0]], [[0.0, 0.0], [0.0, 2.0]]]]
        """
        shape = stride, padding, dilation, groups
        return self.prepare_conv("conv2d", weights, input_shape, shape, epilogue)

    @optional("conv1d")
    def conv1d(
        self,
        x: DenseLike,
        weights: DenseLike,
        stride: int = 1,
        padding: int | tuple[int, int] | Literal["same", "valid"] = 0,
        dilation: int = 1,
        groups: int = 1,
        epilogue: Epilogue | None = None,
        residual: DenseLike | None = None,
    ) -> AnyArray:
        """Convolve signals, x of shape (batch, channels, length), as `conv2d` does images.

        The weights' shape is (outputs, channels / groups, kernel length); a pair of paddings is
        (before, after); the result's shape is (batch, outputs, length').

        Examples
        --------
        >>> import numpy as np, portable_spdnn as ps
        >>> x = np.array([[[1.0, 2.0, 4.0]]])
        >>> ps.get_backend("scipy").conv1d(x, [[[1.0, 0.0, 3.0]]], padding=(2, 0)).tolist()
        [[[3.0, 6.0, 13.0]]]
        """
        shape = stride, padding, dilation, groups
        return self.convolve("conv1d", x, weights, shape, epilogue, residual)

    @optional("conv1d")
    def conv1d_handle(
        self,
        weights: DenseLike,
        input_shape: tuple[int, ...],
        stride: int = 1,
        padding: int | tuple[int, int] | Literal["same", "valid"] = 0,
        dilation: int = 1,
        groups: int = 1,
        epilogue: Epilogue | None = None,
    ) -> ConvHandle:
        """Prepare weights for signals of shape `input_shape`; see `conv1d` and `conv2d_handle`.

        Examples
        --------
        >>> import numpy as np, portable_spdnn as ps
        >>> handle = ps.get_backend("scipy").conv1d_handle([[[0.0, 2.0]]], (1, 1, 3), stride=2)
        >>> handle.apply(np.array([[[1.0, 2.0, 4.0]]])).tolist()
        [[[4.0]]]
        """
        shape = stride, padding, dilation, groups
        return self.prepare_conv("conv1d", weights, input_shape, shape, epilogue)

    @optional("depthwise_conv2d")
    def depthwise_conv2d(
        self,
        x: DenseLike,
        weights: DenseLike,
        stride: Extents = 1,
        padding: Padding = 0,
        dilation: Extents = 1,
        epilogue: Epilogue | None = None,
        residual: DenseLike | None = None,
    ) -> AnyArray:
        """Convolve each channel by itself: `conv2d` with as many groups as channels.

        The weights' shape is that of ONNX, (channels x multiplier, 1, kernel height, kernel
        width): outputs c multiplier .. (c + 1) multiplier - 1 are those of channel c.

        Examples
        --------
        >>> import numpy as np, portable_spdnn as ps
        >>> x, weights = np.ones((1, 2, 1, 3)), np.array([[[[1.0, 1.0]]], [[[0.0, 5.0]]]])
        >>> ps.get_backend("scipy").depthwise_conv2d(x, weights).tolist()
        [[[[2.0, 2.0]], [[5.0, 5.0]]]]
        """
        images = self.tensor_operand("depthwise_conv2d: x", x, 2)
        shape = stride, padding, dilation, max(images.shape[1], 1)
        return self.convolve("depthwise_conv2d", images, weights, shape, epilogue, residual)

    @optional("depthwise_conv2d")
    def depthwise_conv2d_handle(
        self,
        weights: DenseLike,
        input_shape: tuple[int, ...],
        stride: Extents = 1,
        padding: Padding = 0,
        dilation: Extents = 1,
        epilogue: Epilogue | None = None,
    ) -> ConvHandle:
        """Prepare weights for images of `input_shape`; see `depthwise_conv2d`, `conv2d_handle`.

        Examples
        --------
        >>> import numpy as np, portable_spdnn as ps
        >>> weights = np.array([[[[1.0, 1.0]]], [[[0.0, 5.0]]]])
        >>> handle = ps.get_backend("scipy").depthwise_conv2d_handle(weights, (1, 2, 1, 3))
        >>> handle.apply(np.ones((1, 2, 1, 3))).tolist()
        [[[[2.0, 2.0]], [[5.0, 5.0]]]]
        """
        channels = checked_image_shape("depthwise_conv2d: input_shape", input_shape, 2)[1]
        shape = stride, padding, dilation, max(channels, 1)
        return self.prepare_conv("depthwise_conv2d", weights, input_shape, shape, epilogue)
