"""2:4 sparse matrices: `compress` prunes and packs them for `wgmma.sp`, `decompress` unpacks.

At most two of every four elements of a row are nonzero (f32, multiplied as tf32: one of two).
hopper/sparse_packing.py defines the order of the metadata, and packs on a GPU.
"""

from __future__ import annotations

from dataclasses import dataclass
from reprlib import repr as brief
from typing import Any

import numpy as np

import tensorcore_dsl as tc
from tensorcore_dsl.host import describe
from tensorcore_dsl.kernels.hopper import sparse_packing
from tensorcore_dsl.kernels.hopper.sparse_packing import FORMATS, NIBBLES, ROWS, THREADS, Format
from tensorcore_dsl.kernels.host.arguments import described
from tensorcore_dsl.kernels.host.arrays import empty_like
from tensorcore_dsl.kernels.sizes import cdiv

NO_CHUNK = 2**31 - 1  # index of the first chunk with too many nonzeros, if there is none


@dataclass(frozen=True, eq=False)
class SparseMatrix:
    """A 2:4 sparse matrix: half of the elements, and metadata.

    Attributes
    ----------
    values : array
        The stored half of each row, and zeros up to a multiple of 16 bytes.
    metadata : array
        s32, (blocks of 64 rows, stages of 128 bytes of K, 128 threads x words); see
        hopper/sparse_packing.py.
    shape : tuple of int
        Shape of the whole matrix.

    See Also
    --------
    compress : Makes one, with an example.
    """

    values: Any
    metadata: Any
    shape: tuple[int, int]

    def __post_init__(self) -> None:
        is_pair = isinstance(self.shape, tuple) and len(self.shape) == 2
        if not is_pair or not all(isinstance(n, (int, np.integer)) and n >= 0 for n in self.shape):
            raise tc.ArgumentError(
                f"shape is {brief(self.shape)}; it must be the rows and columns of the matrix"
            )
        values, metadata = described(values=self.values, metadata=self.metadata).values()
        format = format_of(values.type.dtype)
        for name, actual, expected in (
            ("values have", values.shape, values_shape(self.shape, format)),
            ("metadata have", metadata.shape, metadata_shape(self.shape, format)),
        ):
            if actual != expected:
                raise tc.ArgumentError(
                    f"the {name} shape {actual}; a sparse {format.dtype} matrix of {self.shape} "
                    f"needs {expected}"
                )
        if metadata.type.dtype != tc.s32:
            raise tc.ArgumentError(f"the metadata hold {metadata.type.dtype}; they must be s32")

    @property
    def dtype(self) -> tc.DType:
        """Element type."""
        return describe(self.values, "values").type.dtype

    @property
    def format(self) -> Format:
        """Format of the packing."""
        return format_of(self.dtype)

    def __repr__(self) -> str:
        rows, cols = self.shape
        format = self.format
        return f"<a {format.kept}:{format.chunk} sparse {rows}x{cols} {self.dtype} matrix>"


def format_of(dtype: tc.DType) -> Format:
    if dtype not in FORMATS:
        allowed = ", ".join(map(str, FORMATS))
        raise tc.ArgumentError(f"sparse matrices hold {allowed}; {dtype} was given")
    return FORMATS[dtype]


def values_shape(shape: tuple[int, int], format: Format) -> tuple[int, int]:
    """Rows, and stored columns up to a multiple of 16 bytes."""
    kept = cdiv(shape[1], format.chunk) * format.kept
    return shape[0], cdiv(kept, format.line) * format.line


def metadata_shape(shape: tuple[int, int], format: Format) -> tuple[int, int, int]:
    """Blocks of rows, stages, words."""
    return cdiv(shape[0], ROWS), cdiv(shape[1], format.depth), THREADS * format.words


def compress(a: Any, *, prune: bool = False) -> SparseMatrix:
    """Pack `a` as a sparse matrix, on its device.

    Parameters
    ----------
    a : array
        A matrix of NumPy, torch, CuPy or Numba: f16, bf16, tf32 as f32, e4m3, e5m2 or s8.
    prune : bool
        Keep the two largest magnitudes of every four elements of a row (f32: one of two), the first
        of equal ones. Without it, a chunk with more non-zeros is an error.

    Returns
    -------
    SparseMatrix
        What `gemm` takes as A.

    Raises
    ------
    ArgumentError
        No matrix, a type that sparse products do not have, too many non-zeros.

    Examples
    --------
    >>> a = np.tile(np.array([1, 2, 3, 4], np.float16), (64, 16))
    >>> sparse = kernels.compress(a, prune=True)
    >>> kernels.decompress(sparse)[0, :4]
    array([0., 0., 3., 4.], dtype=float16)
    """
    kind = described(a=a)["a"]
    if not isinstance(prune, (bool, np.bool_)):
        raise tc.ArgumentError(f"prune is {prune!r}; it must be True or False")
    if len(kind.shape) != 2:
        raise tc.ArgumentError(f"a has shape {kind.shape}; a matrix is needed")
    format, (rows, cols) = format_of(kind.type.dtype), kind.shape
    if 0 in kind.shape:
        metadata = empty_like(a, metadata_shape(kind.shape, format), tc.s32)
        values = empty_like(a, values_shape(kind.shape, format), format.dtype)
        return SparseMatrix(values, metadata, kind.shape)
    pack = _pack if isinstance(a, np.ndarray) else _pack_by_kernel
    (values, metadata), excess = pack(a, format)
    if excess < NO_CHUNK and not prune:
        row, chunk = divmod(excess, cdiv(cols, format.chunk))
        first = chunk * format.chunk
        elements = f"a[{row}, {first}:{first + format.chunk}]"
        raise tc.ArgumentError(
            f"a is not {format.kept}:{format.chunk} sparse: of {elements} more than {format.kept} "
            f"differ{'s' if format.kept == 1 else ''} from zero. prune=True keeps the largest"
        )
    return SparseMatrix(values, metadata, (rows, cols))


def decompress(sparse: SparseMatrix) -> Any:
    """Unpack the matrix, zeros included.

    Parameters
    ----------
    sparse : SparseMatrix
        A result of `compress`.

    Returns
    -------
    array
        On the device of the sparse matrix.

    Raises
    ------
    ArgumentError
        Something else than a SparseMatrix.

    See Also
    --------
    compress : With an example.
    """
    if not isinstance(sparse, SparseMatrix):
        raise tc.ArgumentError(
            f"decompress takes what compress gives, a SparseMatrix, not a {type(sparse).__name__}"
        )
    dense = empty_like(sparse.values, sparse.shape, sparse.dtype)
    if 0 in sparse.shape:
        return dense
    if isinstance(sparse.values, np.ndarray):
        return _unpack(sparse)
    blocks, stages, _ = sparse.metadata.shape
    unpack = sparse_packing.unpack[blocks * stages, THREADS]
    unpack(sparse.values, sparse.metadata, dense, format=sparse.format)
    return dense


def _pack_by_kernel(a: Any, format: Format) -> tuple[tuple[Any, Any], int]:
    """Pack by a kernel: (values, metadata), and the first chunk with too many nonzeros."""
    values = empty_like(a, values_shape(a.shape, format), format.dtype)
    shape = metadata_shape(a.shape, format)
    metadata = empty_like(a, shape, tc.s32)
    excess = empty_like(a, (1,), tc.s32)
    excess[:] = NO_CHUNK
    pack = sparse_packing.pack[shape[0] * shape[1], THREADS]
    pack(a, values, metadata, excess, format=format)
    return (values, metadata), int(excess[0])


# NumPy arrays are packed on the host


def _pack(a: np.ndarray, format: Format) -> tuple[tuple[np.ndarray, np.ndarray], int]:
    bits = np.ascontiguousarray(a).view(sparse_packing.UNSIGNED[format.dtype.bits].numpy)
    to_whole_stages = (0, -bits.shape[1] % format.depth)
    chunks = np.pad(bits, ((0, 0), to_whole_stages)).reshape(len(a), -1, format.chunk)
    if format.dtype.is_float:  # clear the signs, like `magnitude` of the kernel
        sizes = chunks & chunks.dtype.type((1 << (format.dtype.bits - 1)) - 1)
    else:
        sizes = np.abs(chunks.view(np.int8).astype(np.int16))
    order = np.argsort(~sizes, axis=2, kind="stable")  # ~x falls as x grows
    positions = np.sort(order[:, :, : format.kept], axis=2)
    values = np.take_along_axis(chunks, positions, 2).reshape(len(a), -1)
    lost: Any = np.take_along_axis(sizes, order[:, :, format.kept :], 2).any(axis=2)
    existing = cdiv(a.shape[1], format.chunk)
    excess = int(np.argmax(lost[:, :existing])) if lost.any() else NO_CHUNK
    wanted = values_shape(a.shape, format)
    values = np.ascontiguousarray(values[:, : wanted[1]]).view(a.dtype)
    return (values, _words(positions, metadata_shape(a.shape, format), format)), excess


def _unpack(sparse: SparseMatrix) -> np.ndarray:
    format, (rows, cols) = sparse.format, sparse.shape
    row, chunk = _nibble_table(sparse.metadata.shape, format)
    words = sparse.metadata.view(np.uint32)[..., None]
    nibbles = np.empty((row.max() + 1, chunk.max() + 1), np.uint32)
    nibbles[row, chunk] = words >> np.arange(0, 4 * NIBBLES, 4, dtype=np.uint32) & np.uint32(15)
    stored = sparse.values.shape[1] // format.kept
    positions = np.stack(sparse_packing.positions_of(nibbles[:rows, :stored], format.kept), axis=2)
    values = sparse.values.reshape(rows, stored, format.kept)
    dense = np.zeros((rows, stored, format.chunk), values.dtype)
    np.put_along_axis(dense, positions.astype(np.int64), values, 2)
    return dense.reshape(rows, -1)[:, :cols].copy()


def _words(positions: np.ndarray, shape: tuple[int, int, int], format: Format) -> np.ndarray:
    """Pack metadata words from positions (rows, chunks, kept)."""
    if format.kept == 2:
        nibbles = positions[..., 0] | positions[..., 1] << 2
    else:
        nibbles = np.where(positions[..., 0] == 0, 0x4, 0xE)
    nibbles = np.pad(nibbles, ((0, shape[0] * ROWS - len(nibbles)), (0, 0)), constant_values=0x4)
    ordered = nibbles[_nibble_table(shape, format)].astype(np.uint32)
    shifts = np.arange(0, 4 * NIBBLES, 4, dtype=np.uint32)
    return np.bitwise_or.reduce(ordered << shifts, axis=3).view(np.int32)


def _nibble_table(shape: tuple[int, ...], format: Format) -> tuple[np.ndarray, np.ndarray]:
    """Rows and chunks of all nibbles: (blocks, stages, threads x words, nibbles)."""
    block, stage, word, number = np.ix_(*map(np.arange, (*shape, NIBBLES)))
    row, chunk = sparse_packing.nibble_at(word // format.words, number, format.dtype.bits)
    unit = stage * format.words + word % format.words
    return block * ROWS + row, unit * sparse_packing.CHUNKS + chunk
