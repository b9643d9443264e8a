"""GEMMs of CUTLASS, compiled with the headers of its wheel and run on the CPU through their PTX."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

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
COPIES = {
    "cute/container/array.hpp": DECLARED,
    "cute/container/array_subbyte.hpp": DECLARED,
    "cute/container/tuple.hpp": DECLARED,
    "cute/container/type_list.hpp": DECLARED,
    "cute/numeric/arithmetic_tuple.hpp": DECLARED,
    "cuda/std/__utility/integer_sequence.h": GET,
}


def compiled(name: str, arch: str, folder: Path) -> tc.ptx.Module:
    cccl = Path(pathfinder.find_nvidia_header_directory("cccl"))
    for path, text in COPIES.items():
        copy = folder / path
        copy.parent.mkdir(parents=True, exist_ok=True)
        source = (HEADERS if (HEADERS / path).exists() else cccl) / path
        copy.write_text(re.sub(text, "", source.read_text(), flags=re.DOTALL))
    options = ["-std=c++17", "-default-device"]
    return tc.ptx.from_cuda(HERE / name, arch, include=[folder, HEADERS, *headers()], options=options)


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
