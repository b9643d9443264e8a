"""Bits of foreign kernels on a GPU and in emulation.

`python -m tests.foreign_bits record FILE` runs the kernels of CUDA (tests/foreign_corpus.py,
cuda_kernels.cu) and of Triton (tests/triton_corpus.py, if Triton is there) in emulation for sm_90a, and
writes machine code, arguments and results. `python tests/foreign_bits.py compare FILE` launches them on a
GPU and says where bits differ; it needs NumPy and the driver alone.
"""

from __future__ import annotations

import ctypes
import gzip
import os
import pickle
import sys
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

ARCH = "sm_90a"
TYPES = {"uint8": 0, "int8": 0, "uint16": 1, "int16": 1, "uint32": 2, "int32": 3, "float16": 6, "float32": 7}


def record(path: str) -> None:
    """Emulate all kernels and write what a GPU needs to run them."""
    from unittest import mock

    import tensorcore_dsl as tc
    from tests import foreign_corpus, test_ptx_nvrtc

    launches: list[dict[str, Any]] = []
    run = tc.ptx.PtxKernel._run

    def noted(self: Any, config: Any, *arguments: Any) -> Any:
        entry = _launch(self, config, arguments)
        report = run(self, config, *arguments)
        for parameter in entry["parameters"]:
            for part in (parameter, *parameter.get("fields", {}).values()):
                if part["kind"] == "array":
                    part["wanted"] = part.pop("source").copy()
        launches.append(entry)
        return report

    with mock.patch.object(tc.ptx.PtxKernel, "_run", noted):
        for name in foreign_corpus.CASES:
            foreign_corpus.run(name, ARCH, checks=False)
        cuda = tc.ptx.from_cuda(test_ptx_nvrtc.SOURCE, ARCH)
        for test in (t for n, t in vars(test_ptx_nvrtc).items() if n.startswith("test_") and _takes_cuda(t)):
            if "error" not in test.__name__:
                test(cuda)
        try:
            from tests import triton_corpus
        except ImportError:
            print("Triton is not installed")
        else:
            for name in triton_corpus.CASES:
                triton_corpus.run(name, ARCH, checks=False)
    Path(path).write_bytes(gzip.compress(pickle.dumps(launches)))
    print(f"{len(launches)} launches of {len({entry['name'] for entry in launches})} kernels")


def _takes_cuda(test: Any) -> bool:
    return bool(test.__code__.co_varnames[: test.__code__.co_argcount] == ("cuda",))


@cache
def _code(ptx: str) -> bytes:
    from tensorcore_dsl.codegen.assemble import assemble

    return assemble(ptx.replace(".target sm_90\n", f".target {ARCH}\n"), ARCH, "foreign").code


def _launch(kernel: Any, config: Any, arguments: Any) -> dict[str, Any]:
    config = config.of_kernel(threads=kernel.ir.threads, cluster=kernel.ir.cluster)
    return {
        "name": kernel.name,
        "code": _code(kernel.module.ptx),
        "grid": config.grid,
        "block": config.block,
        "shared": config.shared_bytes,
        "cluster": config.cluster,
        "parameters": [_parameter(*pair) for pair in zip(kernel.function.params, arguments, strict=True)],
    }


def _parameter(declared: Any, x: Any) -> dict[str, Any]:
    if hasattr(x, "box"):
        return {**_parameter(declared, x.array), "map": (x.box, x.swizzle)}
    if isinstance(x, np.ndarray):
        x, dtype = np.asarray(x), str(x.dtype)
        x = x.view(f"u{x.itemsize}") if x.dtype.kind == "V" else x  # NumPy alone may read it
        return {"kind": "array", "before": x.copy(), "source": x, "dtype": dtype}
    if isinstance(x, dict):
        fields = {at: _parameter(None, value) for at, value in x.items()}
        return {"kind": "struct", "size": declared.size, "fields": fields}
    real = isinstance(x, (float, np.floating))
    kind = (np.float64 if declared is not None and declared.size == 8 else np.float32) if real else None
    size = declared.size if declared is not None else 4
    return {
        "kind": "bytes",
        "data": kind(x).tobytes() if kind else (int(x) % 256**size).to_bytes(size, "little"),
    }


# -- on the GPU: NumPy and the driver alone ------------------------------------------------------------


class Driver:
    """The driver; every function raises what it returns."""

    def __init__(self) -> None:
        self.library = ctypes.CDLL("libcuda.so.1")
        self("cuInit", 0)
        device, context = ctypes.c_int(), ctypes.c_void_p()
        self("cuDeviceGet", ctypes.byref(device), 0)
        self("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
        self("cuCtxSetCurrent", context)

    def __call__(self, name: str, *arguments: Any) -> None:
        status = getattr(self.library, name)(*arguments)
        if status:
            raise RuntimeError(f"{name}: {status}")


class Config(ctypes.Structure):
    _fields_ = [
        *((name, ctypes.c_uint) for name in ("gx", "gy", "gz", "bx", "by", "bz", "shared")),
        *((name, ctypes.c_void_p) for name in ("stream", "attributes")),
        ("count", ctypes.c_uint),
    ]


class Attribute(ctypes.Structure):
    _fields_ = [("id", ctypes.c_uint), ("pad", ctypes.c_uint), ("value", ctypes.c_uint * 16)]


class Launch:
    """One launch on the GPU; arrays: (pointer, what emulation left there)."""

    def __init__(self, driver: Driver, entry: dict[str, Any]) -> None:
        self.driver, self.entry = driver, entry
        self.arrays: list[tuple[int, np.ndarray]] = []

    def run(self) -> None:
        entry, driver = self.entry, self.driver
        module, function = ctypes.c_void_p(), ctypes.c_void_p()
        driver("cuModuleLoadData", ctypes.byref(module), entry["code"])
        driver("cuModuleGetFunction", ctypes.byref(function), module, entry["name"].encode())
        driver("cuFuncSetAttribute", function, 8, ctypes.c_int(entry["shared"]))
        values = [self.value(parameter) for parameter in entry["parameters"]]
        buffers = [_aligned(value) for value in values]
        pointers = (ctypes.c_void_p * len(buffers))(*(array.ctypes.data for array in buffers))
        cluster = (Attribute * 1)(Attribute(4, 0, (*(entry["cluster"] or (1, 1, 1)), *[0] * 13)))
        config = Config(*entry["grid"], *entry["block"], entry["shared"], None, ctypes.addressof(cluster))
        config.count = 1 if entry["cluster"] else 0
        driver("cuLaunchKernelEx", ctypes.byref(config), function, pointers, None)
        driver("cuCtxSynchronize")

    def value(self, parameter: dict[str, Any]) -> bytes:
        if parameter["kind"] == "bytes":
            return bytes(parameter["data"])
        if parameter["kind"] == "struct":
            data = bytearray(parameter["size"])
            for at, field in parameter["fields"].items():
                content = self.value(field)
                data[at : at + len(content)] = content
            return bytes(data)
        before, pointer = np.ascontiguousarray(parameter["before"]), ctypes.c_uint64()
        self.driver("cuMemAlloc_v2", ctypes.byref(pointer), ctypes.c_size_t(max(before.nbytes, 16)))
        self.driver(
            "cuMemcpyHtoD_v2", pointer, before.ctypes.data_as(ctypes.c_void_p), ctypes.c_size_t(before.nbytes)
        )
        self.arrays.append((pointer.value, parameter["wanted"]))
        if "map" in parameter:
            return self.tensor_map(pointer.value, before, *parameter["map"])
        return pointer.value.to_bytes(8, "little")

    def tensor_map(self, pointer: int, x: np.ndarray, box: Any, swizzle: int) -> bytes:
        place = _aligned(bytes(128))
        rank = x.ndim
        dims, strides = (ctypes.c_uint64 * rank)(*x.shape[::-1]), (ctypes.c_uint64 * rank)(*x.strides[-2::-1])
        boxes, steps = (ctypes.c_uint32 * rank)(*box[::-1]), (ctypes.c_uint32 * rank)(*[1] * rank)
        way = (0, 32, 64, 128).index(swizzle)
        self.driver(
            "cuTensorMapEncodeTiled", ctypes.c_void_p(place.ctypes.data), TYPES[str(x.dtype)], rank,
            ctypes.c_void_p(pointer), dims, strides, boxes, steps, 0, way, 0, 0,
        )  # fmt: skip
        return place.tobytes()

    def differences(self) -> str:
        """Where bits differ: the number of elements, and the first."""
        texts = []
        for i, (pointer, wanted) in enumerate(self.arrays):
            actual = np.empty_like(wanted)
            size = ctypes.c_size_t(actual.nbytes)
            self.driver(
                "cuMemcpyDtoH_v2", actual.ctypes.data_as(ctypes.c_void_p), ctypes.c_uint64(pointer), size
            )
            self.driver("cuMemFree_v2", ctypes.c_uint64(pointer))
            words = [
                x.reshape(-1).view(f"u{x.itemsize}") if x.itemsize < 16 else x.reshape(-1)
                for x in (actual, wanted)
            ]
            mismatches = np.flatnonzero(words[0] != words[1])
            if len(mismatches):
                first = int(mismatches[0])
                gpu, here = actual.reshape(-1)[first], wanted.reshape(-1)[first]
                texts.append(
                    f"array {i}: {len(mismatches)} of {actual.size}, first [{first}] GPU {gpu!r}, emulated {here!r}"
                )
        return "; ".join(texts)


def _aligned(data: bytes) -> np.ndarray:
    """The bytes at a multiple of 128."""
    room = np.zeros(len(data) + 128, np.uint8)
    start = -room.ctypes.data % 128
    room[start : start + len(data)] = np.frombuffer(data, np.uint8)
    return room[start : start + len(data)]


def compare(path: str, first: str = "0", equal: str = "0") -> int:
    """Launch all on the GPU and print the differences. After an error, which ends the use of the GPU, the
    program starts again at the next launch."""
    driver, same = Driver(), int(equal)
    entries = pickle.loads(gzip.decompress(Path(path).read_bytes()))
    for number in range(int(first), len(entries)):
        entry, text = entries[number], ""
        launch = Launch(driver, entry)
        try:
            launch.run()
            text = launch.differences()
        except RuntimeError as error:
            print(f"{entry['name']}: {error}", flush=True)
            os.execv(sys.executable, [sys.executable, *sys.argv[:3], str(number + 1), str(same)])
        same += not text
        if text:
            print(f"{entry['name']} {entry['grid']}x{entry['block']}: {text}", flush=True)
    kernels = len({entry["name"] for entry in entries})
    print(f"{same} of {len(entries)} launches of {kernels} kernels have equal bits")
    return int(same < len(entries))


if __name__ == "__main__":
    sys.exit({"record": record, "compare": compare}[sys.argv[1]](*sys.argv[2:]) or 0)
