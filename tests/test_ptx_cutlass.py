"""GEMMs of CUTLASS, compiled with the headers of its wheel and run on the CPU through their PTX."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import tensorcore_dsl as tc
from tests.foreign_corpus import headers

library = pytest.importorskip("cutlass_library")
pathfinder = pytest.importorskip("cuda.pathfinder")
pytestmark = pytest.mark.thorough  # NVRTC takes half a minute

HERE, HEADERS = Path(__file__).parent, Path(library.__file__).parent / "source" / "include"
# CUTLASS 4.2 declares templates of libcu++ in another way than CCCL 13.3 does, and so both have `get` of an
# integer_sequence: these texts are removed from copies of the headers.
DECLARED = r"template <(class\.\.\. _Tp|size_t _Ip, class\.\.\. _Tp)>\s*struct tuple_(size|element);"
GET = r"template <size_t _Ip, class _Tp, _Tp\.\.\. _Indices>\n[^{;]*\bget\([^{;]*\{.*?\n\}\n"
# NVRTC has neither the driver's queries nor its encoder of tensor maps; the text in its place notes the arguments.
QUERY = r"sm_count = KernelHardwareInfo::query_device_multiprocessor_count\([^;]*;"
ENCODED = """TmaDescriptor tma_desc{};
    uint64_t* word = reinterpret_cast<uint64_t*>(&tma_desc);
    word[0] = reinterpret_cast<uint64_t>(gmem_address);
    for (int i = 0; i < 5; i++) {
      word[1 + i] = gmem_prob_shape[i];
      word[6 + i] = i ? gmem_prob_stride[i] : sizeof(TmaInternalType);
      reinterpret_cast<uint16_t*>(word + 11)[i] = smem_box_shape[i];
    }
    word[13] = tma_dim;
    word[14] = B ? 16 << B : 0;
"""
COPIES = {
    "cute/container/array.hpp": DECLARED,
    "cute/container/array_subbyte.hpp": DECLARED,
    "cute/container/tuple.hpp": DECLARED,
    "cute/container/type_list.hpp": DECLARED,
    "cute/numeric/arithmetic_tuple.hpp": DECLARED,
    "cuda/std/__utility/integer_sequence.h": GET,
    "cute/atom/copy_traits_sm90_tma.hpp": r"TmaDescriptor tma_desc\{\};",
    **dict.fromkeys(
        [f"cutlass/gemm/kernel/sm90_gemm_tma_warpspecialized_{x}.hpp" for x in ("cooperative", "pingpong")],
        QUERY,
    ),
    "cutlass/gemm/kernel/tile_scheduler_params.h": r"(new_)?hw_info\." + QUERY,
}


def compiled(name: str, arch: str, folder: Path, *options: str) -> tc.ptx.Module:
    cccl = Path(pathfinder.find_nvidia_header_directory("cccl"))
    for path, text in COPIES.items():
        copy = folder / path
        copy.parent.mkdir(parents=True, exist_ok=True)
        source = (HEADERS if (HEADERS / path).exists() else cccl) / path
        replaced = ENCODED if "tma_desc" in text else ""
        copy.write_text(re.sub(text, lambda _: replaced, source.read_text(), flags=re.DOTALL))
    flags = ["-std=c++17", "-default-device", *options]
    return tc.ptx.from_cuda(HERE / name, arch, include=[folder, HEADERS, *headers()], options=flags)


def operands(m: int, n: int, k: int, kind: Any) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    return rng.integers(-8, 8, (m, k)).astype(kind), rng.integers(-8, 8, (n, k)).astype(kind)


def test_gemms_of_sm_80(tmp_path):
    kernels = compiled("cutlass_sm80.cu", "sm_80", tmp_path)
    for name, kind, result in (("gemm_f16", np.float16, np.float32), ("gemm_s8", np.int8, np.int32)):
        m, n, k = 256, 128, 192
        a, b = operands(m, n, k, kind)
        c = np.zeros((m, n), result)
        kernels[name][(2, 1), 128, None, 98304](a, b, c, m, n, k)
        assert np.array_equal(c, a.astype(int) @ b.T.astype(int))


def test_a_warp_specialised_gemm(tmp_path):
    module = compiled("cutlass_sm90.cu", "sm_90a", tmp_path)
    m, n, k, shared = 256, 128, 320, 3 * 2 * 128 * 64 * 2 + 2048
    a, b = operands(m, n, k, np.float16)

    def run(module: tc.ptx.Module) -> np.ndarray:
        maps, c = (tc.ptx.tensor_map(x, (128, 64), 128) for x in (a, b)), np.zeros((m, n), np.float32)
        module.gemm_ws[(2, 1), 256, None, shared](*maps, c, n, k)
        return c

    assert np.array_equal(run(module), a.astype(int) @ b.T.astype(int))
    unfinished = re.sub(r"wgmma\.wait_group\.sync\.aligned 0;", "", module.ptx)
    assert unfinished != module.ptx
    with pytest.raises(tc.EmulationError):
        run(tc.ptx.load(unfinished))


LAUNCH = np.dtype([("size", "i4"), ("shared", "i4"), ("threads", "i4"), ("grid", "i4", 3), ("maps", "i4", 5),
                   ("unused", "V20"), ("params", "V2048")])  # fmt: skip
MAP = np.dtype([("address", "u8"), ("shape", "u8", 5), ("strides", "u8", 5), ("box", "u2", 8), ("rank", "u8"),
                ("swizzle", "u8"), ("unused", "u8")])  # fmt: skip


def launched(module: tc.ptx.Module, name: str, *arguments: Any, cluster: Any = None) -> None:
    """Run a GEMM with the parameters that CUTLASS makes, in emulation too. arguments: a, b, d, e, m, n, k."""
    facts = np.zeros(1, LAUNCH)
    module[name + "_params"][1, 1](facts.view(np.uint8), *arguments)
    (launch,) = facts
    params = launch["params"].tobytes()[: launch["size"]]
    arrays, fields = arguments[:4], dict[int, Any]({0: params})
    for at in filter(None, launch["maps"].tolist()):
        described, rank = (
            np.frombuffer(params, MAP, 1, at)[0],
            int(np.frombuffer(params, MAP, 1, at)[0]["rank"]),
        )
        x = arrays[(int(described["address"]) >> 40) - 2].view(f"V{described['strides'][0]}")
        shape, strides = described["shape"][rank - 1 :: -1], described["strides"][rank - 1 :: -1]
        x = np.lib.stride_tricks.as_strided(x, shape, strides).view(f"u{x.itemsize}")
        fields[at] = tc.ptx.tensor_map(x, described["box"][rank - 1 :: -1], int(described["swizzle"]))
    grid, threads, shared = (launch[key].tolist() for key in ("grid", "threads", "shared"))
    with pytest.warns(tc.RaceWarning, match="both write the same value"):  # all lanes of a warp store one box
        module[name].configured(grid, threads, shared_bytes=shared, cluster=cluster)(fields)


DENSE = {
    "fp8": (ml_dtypes.float8_e4m3fn, np.float16, (1, 2, 1)),
    "s8": (np.int8, np.int32, None),
    "tf32": (np.float32, np.float32, None),
}


def test_gemms_of_sm_90(tmp_path):
    """Both schedules, with tiles that reach beyond the matrices and with more tiles than CTAs."""
    module = compiled("cutlass_gemms.cu", "sm_90a", tmp_path, "-DDENSE")
    for name, (kind, result, cluster) in DENSE.items():
        m, n, k = (
            248,
            240,
            272,
        )  # numbers of tiles that are powers of two: FastDivmodU64 needs the host for others
        a, b = operands(m, n, k, kind)
        d = np.zeros((m, n), result)
        launched(module, name, a, b, d, 0, m, n, k, cluster=cluster)
        assert np.array_equal(d.astype(float), a.astype(float) @ b.astype(float).T), name


def test_a_sparse_gemm(tmp_path):
    module = compiled("cutlass_gemms.cu", "sm_90a", tmp_path)
    m, n, k = 256, 128, 256
    a, b = operands(m, n, k, np.float16)
    a[a == 0] = 1  # of a group of zeros, CUTLASS's compressor makes metadata that the manual leaves undefined
    dropped = np.argsort(np.random.default_rng(1).random((m, k // 4, 4)))[..., :2]
    np.put_along_axis(a.reshape(m, k // 4, 4), dropped, 0, -1)
    values, metadata = np.zeros((m, k // 2), np.float16), np.zeros(m * k // 8, np.uint8)
    module.compress[(m // 64, k // 128), 64, None, 40960](a, values, metadata, m, k)
    d = np.zeros((m, n), np.float16)
    launched(module, "sparse", values, b, d, metadata, m, n, k)
    assert np.array_equal(d.astype(float), a.astype(float) @ b.astype(float).T)
