"""Weights of 4 or 8 bits with scales: `pack` arranges them for the kernels of `gemm`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import tensorcore_dsl as tc
from tensorcore_dsl.host import Description
from tensorcore_dsl.kernels.ampere.packed_gemm import CHUNK, WeightFormat
from tensorcore_dsl.kernels.ampere.weight_packing import THREADS, pack_weights
from tensorcore_dsl.kernels.host.arguments import described, element_type, present, shown, vector_bytes
from tensorcore_dsl.kernels.host.arrays import empty_like
from tensorcore_dsl.kernels.sizes import cdiv

TILE = 16  # columns of a block
# Type of the weights -> element types of the array that has them, one number each.
SOURCES: dict[Any, tuple[Any, ...]] = {
    tc.s4: (tc.s8,),
    tc.u4: (tc.u8, tc.s8),
    tc.s8: (tc.s8,),
    tc.e4m3: (tc.e4m3,),
}
SCALES = (tc.f16, tc.bf16, tc.f32)
GROUPS = (32, 64)  # elements along K of a scale; multiples of CHUNK are allowed, too


@dataclass(frozen=True, eq=False)
class PackedWeights:
    """Weights of 4 or 8 bits in the order of the kernels, with scales.

    Attributes
    ----------
    words : array
        s32, (N / 16, words of 16 columns); see ampere/weight_packing.py.
    scales : array
        f16, bf16 or f32, (groups along K, N).
    zeros : array or None
        u8, (groups along K, N): zero points of u4.
    shape : tuple of int
        Shape of the whole matrix B, (K, N).
    dtype : DType
        Type of the weights: s4, u4, s8 or e4m3.

    See Also
    --------
    pack : Makes one, with an example.
    """

    words: Any
    scales: Any
    zeros: Any
    shape: tuple[int, int]
    dtype: tc.DType

    @property
    def group(self) -> int:
        """Elements along K that share a scale."""
        return self.shape[0] // int(self.scales.shape[0])

    @property
    def format(self) -> WeightFormat:
        """Format of the packing."""
        group = 0 if self.scales.shape[0] == 1 else self.group
        return WeightFormat(self.dtype, group, self.zeros is not None)

    @property
    def operands(self) -> tuple[Any, Any, Any]:
        """Words, scales and zero points, as the kernel takes them: without zero points the scales again."""
        return self.words, self.scales, self.scales if self.zeros is None else self.zeros

    def __repr__(self) -> str:
        rows, cols = self.shape
        zeros = " and zero points" if self.zeros is not None else ""
        return f"<packed {rows}x{cols} {self.dtype} weights with scales{zeros} of {self.group} along K>"


def pack(b: Any, scales: Any, zeros: Any = None, *, dtype: Any = None) -> PackedWeights:
    """Pack weights of 4 or 8 bits for `gemm`, on their device.

    The matrix is scales[k // group, n] * (b[k, n] - zeros[k // group, n]).

    Parameters
    ----------
    b : array
        K x N, one number in each element, of any strides: the transpose of the weight of a linear
        layer in torch. K is a multiple of 128 and N of 16. s8 has the numbers of s4, u4 and s8, u8
        those of u4; e4m3 without NaN.
    scales : array
        f16, bf16 or f32, (K / group, N), or (N,) for one group. A group has 32 or 64 along K, or a
        multiple of 128.
    zeros : array, optional
        Zero points of u4: integers from 0 to 15 of 8 bits, of the shape of `scales`. None: 0.
    dtype : dtype, optional
        tc.s4, tc.u4, tc.s8 or tc.e4m3. None: that of `b`.

    Returns
    -------
    PackedWeights
        What `gemm` takes as B. It has copies of scales and zero points.

    Raises
    ------
    ArgumentError
        Other sizes, types and groups; numbers beyond the range of `dtype`, NaN.

    Examples
    --------
    >>> q = np.tile(np.arange(-8, 8, dtype=np.int8), (128, 1))
    >>> weights = kernels.pack(q, np.full((2, 16), 0.5, np.float16), dtype=tc.s4)
    >>> weights
    <packed 128x16 s4 weights with scales of 64 along K>
    >>> kernels.gemm(np.ones((1, 128), np.float16), weights)[0, :3]
    array([-512., -448., -384.], dtype=float16)
    """
    read = described(b=b, scales=scales, **present(zeros=zeros))
    in_b, in_scales = read["b"], read["scales"]
    dtype = _checked_type(in_b, dtype)
    _check_shape(in_b)
    K, N = in_b.shape
    shape = _group_shape(in_scales, K, N)
    if in_scales.type.dtype not in SCALES:
        raise tc.ArgumentError(f"scales hold {in_scales.type.dtype}; allowed are f16, bf16 and f32")
    words = empty_like(b, words_shape((K, N), dtype), tc.s32)
    refused = empty_like(b, (1,), tc.s32)
    refused[:] = 0
    grid = cdiv(words.shape[1], 4 * THREADS), words.shape[0]
    if 0 not in in_b.shape:
        pack_weights[grid, THREADS](b, words, refused, dtype=dtype)
    if int(refused[0]):
        allowed = {tc.s4: "from -8 to 7", tc.u4: "from 0 to 15"}.get(dtype, "no NaN")
        raise tc.ArgumentError(f"b has numbers that are not weights of {dtype}: these are {allowed}")
    new_scales = _copied(b, scales, shape, in_scales.type.dtype)
    return PackedWeights(words, new_scales, _zero_points(b, zeros, read, shape, dtype), (K, N), dtype)


def describe_weights(b: PackedWeights) -> dict[str, Description]:
    """Describe the arrays of packed weights; refuse what `pack` does not make."""
    read = described(**{"b.words": b.words, "b.scales": b.scales}, **present(**{"b.zeros": b.zeros}))
    if not (isinstance(b.dtype, tc.DType) and b.dtype in SOURCES and _is_size(b.shape)):
        raise tc.ArgumentError(
            f"b is PackedWeights of {shown(b.dtype)} and shape {shown(b.shape)}; packed are "
            f"{', '.join(map(str, SOURCES))} and K x N, K a multiple of {CHUNK} and N of {TILE}"
        )
    K, N = b.shape
    words, scales, zeros = read["b.words"], read["b.scales"], read.get("b.zeros")
    expected: list[tuple[str, Description, tuple[int, ...], tuple[Any, ...]]] = [
        ("b.words", words, words_shape(b.shape, b.dtype), (tc.s32,)),
        ("b.scales", scales, _group_shape(scales, K, N), SCALES),
    ]
    if zeros is not None:
        expected.append(("b.zeros", zeros, scales.shape, (tc.u8,) if b.dtype == tc.u4 else ()))
    for name, array, shape, types in expected:
        # The kernels read vectors of 16 bytes.
        if array.shape != shape or array.type.dtype not in types or vector_bytes(array) != 16:
            raise tc.ArgumentError(
                f"{name} has {array.type.dtype} and shape {array.shape}, which do not belong to "
                f"{b.dtype} of shape {b.shape}: `pack` makes PackedWeights"
            )
    return read


def words_shape(shape: tuple[int, int], dtype: tc.DType) -> tuple[int, int]:
    """Shape of the words that hold a K x N matrix."""
    K, N = shape
    return N // TILE, K * TILE * dtype.bits // 32


def matrix_shape(words: tuple[int, ...], dtype: tc.DType) -> tuple[int, int]:
    """K x N of the matrix that words of this shape hold."""
    return 32 * words[1] // (TILE * dtype.bits), TILE * words[0]


def _is_size(shape: Any) -> bool:
    """Tell whether it is a K x N that can be packed."""
    positive = isinstance(shape, tuple) and len(shape) == 2 and all(type(n) is int and n > 0 for n in shape)
    return positive and shape[0] % CHUNK == 0 and shape[1] % TILE == 0


def _checked_type(b: Description, asked: Any) -> tc.DType:
    """Type of the weights; refuses arrays that do not hold it."""
    dtype = b.type.dtype if asked is None else element_type(asked)
    if not isinstance(dtype, tc.DType) or b.type.dtype not in SOURCES.get(dtype, ()):
        pairs = "; ".join(f"{x} in {' or '.join(map(str, of))}" for x, of in SOURCES.items())
        shown = dtype if isinstance(dtype, tc.DType) else repr(asked)
        raise tc.ArgumentError(f"b holds {b.type.dtype} and dtype is {shown}; packed are {pairs}")
    return dtype


def _check_shape(b: Description) -> None:
    if not _is_size(b.shape):
        raise tc.ArgumentError(
            f"b has shape {b.shape}; it must be (K, N), K a multiple of {CHUNK} and N of {TILE}: add rows "
            f"and columns of zeros"
        )


def _group_shape(scales: Description, K: int, N: int) -> tuple[int, int]:
    """(groups, N); refuses scales that do not divide K into groups that the kernels have."""
    shape = (1, N) if scales.shape == (N,) else scales.shape
    if len(shape) == 2 and shape[1] == N and shape[0] and K % shape[0] == 0:
        group = K // shape[0]
        if group in GROUPS or group % CHUNK == 0:
            return shape
    raise tc.ArgumentError(
        f"scales have shape {scales.shape}; it must be ({N},) or (K / group, {N}) with K {K} and a group "
        f"of {', '.join(map(str, GROUPS))} or a multiple of {CHUNK}"
    )


def _zero_points(
    b: Any, zeros: Any, read: dict[str, Description], shape: tuple[int, int], dtype: tc.DType
) -> Any:
    """A copy of the zero points as u8, or None."""
    if zeros is None:
        return None
    kind = read["zeros"]
    if dtype != tc.u4:
        raise tc.ArgumentError(f"zeros are zero points of u4; weights of {dtype} have none")
    if kind.shape != read["scales"].shape or kind.type.dtype not in (tc.u8, tc.s8):
        raise tc.ArgumentError(
            f"zeros have shape {kind.shape} and type {kind.type.dtype}; they must be u8 or s8 of the shape "
            f"of scales, {read['scales'].shape}"
        )
    copy = _copied(b, zeros, shape, tc.u8)
    on_host = copy.copy_to_host() if hasattr(copy, "copy_to_host") else copy
    if int(on_host.max()) > 15:  # a negative one has become 128 or more
        raise tc.ArgumentError("zeros are from 0 to 15; other numbers were given")
    return copy


def _copied(like: Any, x: Any, shape: tuple[int, int], dtype: tc.DType) -> Any:
    """A row-major copy with rows at multiples of 16 bytes."""
    copy = empty_like(like, shape, dtype)
    copy[:] = x if len(x.shape) == 2 else x[None]
    return copy
