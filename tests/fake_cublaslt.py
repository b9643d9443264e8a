"""Fake cuBLASLt and cuBLAS in host memory, called through ctypes, and torch with a fake GPU.

The library follows cuBLAS' documentation (column-major matrices, ld, transposes) and rejects the
same s8 problems. A clock of its own gives the time that its algorithms take.
"""

from __future__ import annotations

import ctypes
from contextlib import contextmanager
from types import SimpleNamespace

import ml_dtypes
import numpy as np

from benchmarks.products.cublas import GROUPED_PROTOTYPES, LT_PROTOTYPES

NUMPY = {
    0: np.float32,
    1: np.float64,
    2: np.float16,
    3: np.int8,
    10: np.int32,
    14: ml_dtypes.bfloat16,
    28: ml_dtypes.float8_e4m3fn,
}
SUM = {68: np.float32, 70: np.float64, 72: np.int32, 77: np.float32}
NOT_SUPPORTED = 15


class FakeCuda:
    """torch.cuda with a clock that only `spend` advances; captured launches spend on replay."""

    def __init__(self, l2_bytes=1):
        self.now, self.graph, self.l2_bytes, self.captures = 0.0, None, l2_bytes, True

    def spend(self, ms):
        if self.graph is None:
            self.now += ms
        else:
            self.graph.cost += ms

    def is_available(self):
        return True

    def synchronize(self):
        assert self.graph is None, "a capture does not survive a synchronisation"

    def get_device_properties(self, device):
        return SimpleNamespace(L2_cache_size=self.l2_bytes)

    def current_stream(self):
        return SimpleNamespace(cuda_stream=7)

    def _sleep(self, cycles):
        pass

    Stream = staticmethod(lambda: None)

    @contextmanager
    def stream(self, stream):
        yield

    def Event(self, enable_timing):
        event = SimpleNamespace(at=None, synchronize=lambda: None)
        event.record = lambda: setattr(event, "at", self.now)
        event.elapsed_time = lambda end: end.at - event.at
        return event

    def CUDAGraph(self):
        graph = SimpleNamespace(cost=0.0)

        def begin(capture_error_mode):
            if not self.captures:
                raise RuntimeError("no captures here")
            self.graph = graph

        graph.capture_begin = begin
        graph.capture_end = lambda: setattr(self, "graph", None)
        graph.replay = lambda: self.spend(graph.cost)
        return graph


class FakeTorch:
    """torch, with the CPU as the GPU."""

    def __init__(self, cuda):
        import torch

        self._torch, self.cuda = torch, cuda

    def __getattr__(self, name):
        return getattr(self._torch, name)

    def Generator(self, device):
        assert device in ("cuda", "cpu")
        return self._torch.Generator("cpu")

    def empty(self, *size, device, **options):
        return self._torch.empty(*size, **options)


class FakeLibrary:
    """`costs`: milliseconds of each algorithm that the heuristic offers; None: it cannot run."""

    def __init__(self, cuda, costs=(3.0, 1.0, 2.0)):
        self.cuda, self.costs = cuda, costs
        self.objects, self.count, self.streams, self.preferences = {}, 0, [], {}
        self.fast = []  # fast accumulation of each fp8 problem
        for name, types in LT_PROTOTYPES.items():
            short = name.removeprefix("cublasLt")
            made = ctypes.CFUNCTYPE(ctypes.c_int, *types)(getattr(self, short, None) or self._of(short))
            setattr(self, name, made)
        self.cublasLtGetVersion = ctypes.CFUNCTYPE(ctypes.c_size_t)(lambda: 130204)

    def _of(self, name):
        if name.endswith("Destroy"):
            return lambda handle: int(self.objects.pop(handle, None) is None)
        if name.endswith("SetAttribute"):
            return self._set
        return lambda out, *values: self._create(out, values)

    def _create(self, out, values):
        self.count += 1
        out[0] = self.count
        self.objects[self.count] = {"values": values, "attributes": {}}
        return 0

    def _set(self, handle, attribute, buffer, size):
        value = int.from_bytes(ctypes.string_at(buffer, size), "little")
        self.objects[handle]["attributes"][attribute] = (value, size)
        return 0

    def _transposes(self, description):
        attributes = self.objects[description]["attributes"]
        sizes = {3: 4, 4: 4, 7: 4, 8: 8, 25: 1}  # transposes, epilogue, bias, fast accumulation
        assert all(size == sizes[name] for name, (_, size) in attributes.items())
        return attributes[3][0], attributes[4][0]

    def MatmulAlgoGetHeuristic(self, handle, desc, a, b, c, d, preference, most, found, count):
        assert handle in self.objects and c == d
        self.preferences = self.objects[preference]["attributes"]
        kind, rows, cols, _ = self.objects[a]["values"]
        if kind == 3 and (self._transposes(desc) != (1, 0) or rows % 4 or cols % 4):
            return NOT_SUPPORTED
        if kind == 28:
            attributes = self.objects[desc]["attributes"]
            if self._transposes(desc) != (1, 0) or rows % 16 or cols % 16:
                return NOT_SUPPORTED
            self.fast.append(attributes[25][0])
        count[0] = min(most, len(self.costs))
        for i in range(count[0]):
            found[i].algorithm.data[0] = i
            found[i].state = 0
        return 0

    def Matmul(
        self,
        handle,
        desc,
        alpha,
        a,
        a_form,
        b,
        b_form,
        beta,
        c,
        c_form,
        d,
        d_form,
        algorithm,
        workspace,
        workspace_bytes,
        stream,
    ):
        cost = self.costs[algorithm[0].data[0]]
        if cost is None:
            return NOT_SUPPORTED
        self.cuda.spend(cost)
        self.streams.append(stream)
        compute, scale = self.objects[desc]["values"]
        one = ctypes.string_at(alpha, NUMPY[scale]().itemsize)
        assert np.frombuffer(one, NUMPY[scale])[0] == 1 and (c, c_form) == (d, d_form)
        turn_a, turn_b = self._transposes(desc)
        for one in range(self._attribute(d_form, 5, 1)):
            left, right, result = (
                self._matrix(at, instr, one) for at, instr in ((a, a_form), (b, b_form), (d, d_form))
            )
            left, right = (left.T if turn_a else left), (right.T if turn_b else right)
            wide = SUM[compute]
            found = left.astype(wide) @ right.astype(wide)
            result[...] = self._epilogue(desc, found, d_form).astype(result.dtype)
        return 0

    def _attribute(self, handle, name, otherwise=0):
        return self.objects[handle]["attributes"].get(name, (otherwise,))[0]

    def _epilogue(self, desc, x, d_form):
        """GELU by the tanh formula, after adding a bias of one element a row."""
        if not self._attribute(desc, 7):
            return x
        assert self._attribute(desc, 7) == 36
        dtype = np.dtype(NUMPY[self.objects[d_form]["values"][0]])
        data = ctypes.string_at(self._attribute(desc, 8), x.shape[0] * dtype.itemsize)
        x = x + np.frombuffer(data, dtype).astype(x.dtype)[:, None]
        return x / 2 * (1 + np.tanh(0.7978845608 * (x + 0.044715 * x**3)))

    def _matrix(self, address, instr, one=0):
        kind, rows, cols, ld = self.objects[instr]["values"]
        dtype = np.dtype(NUMPY[kind])
        address += one * self._attribute(instr, 6) * dtype.itemsize
        data = (ctypes.c_char * (ld * cols * dtype.itemsize)).from_address(address)
        return np.frombuffer(data, dtype).reshape(cols, ld).T[:rows]


class FakeCublas:
    """cuBLAS' grouped GEMM in host memory, with arrays of addresses in host memory too."""

    def __init__(self):
        self.streams = []
        for name, types in GROUPED_PROTOTYPES.items():
            found = getattr(self, name.removeprefix("cublas").partition("_")[0])
            setattr(self, name, ctypes.CFUNCTYPE(ctypes.c_int, *types)(found))

    def Create(self, out):
        out[0] = 5
        return 0

    def GetVersion(self, handle, out):
        out[0] = 130102
        return 0

    def SetStream(self, handle, stream):
        self.streams.append(stream)
        return 0

    def GemmGroupedBatchedEx(
        self,
        handle,
        turn_a,
        turn_b,
        m,
        n,
        k,
        alpha,
        a,
        a_type,
        lda,
        b,
        b_type,
        ldb,
        beta,
        c,
        c_type,
        ldc,
        groups,
        sizes,
        compute,
    ):
        """Column-major, one GEMM a group."""
        assert handle == 5 and SUM[compute] is np.float32

        def numbers(address, dtype=np.int32):
            data = ctypes.string_at(address, groups * np.dtype(dtype).itemsize)
            return np.frombuffer(data, dtype).tolist()

        def matrix(address, kind, rows, cols, ld):
            dtype = np.dtype(NUMPY[kind])
            data = (ctypes.c_char * (ld * cols * dtype.itemsize)).from_address(address)
            return np.frombuffer(data, dtype).reshape(cols, ld).T[:rows]

        assert numbers(sizes) == [1] * groups
        assert numbers(alpha, np.float32) == [1] * groups and not any(numbers(beta, np.float32))
        assert numbers(turn_a) == [1] * groups and numbers(turn_b) == [0] * groups
        lists = [numbers(x) for x in (m, n, k, lda, ldb, ldc)]
        places = [numbers(x, np.int64) for x in (a, b, c)]
        for M, N, K, at_a, at_b, at_c, *ld in zip(*lists[:3], *places, *lists[3:], strict=True):
            left, right = matrix(at_a, a_type, K, M, ld[0]).T, matrix(at_b, b_type, K, N, ld[1])
            result = matrix(at_c, c_type, M, N, ld[2])
            result[...] = (left.astype(np.float32) @ right.astype(np.float32)).astype(result.dtype)
        return 0
