"""How much of the corpus of foreign kernels is read: `python -m tests.foreign_coverage FILE.ptx ...`.

Without files: the kernels of CUDA (cuda_corpus.cu, cuda_kernels.cu) and of Triton (triton_corpus.py, if
Triton is there) for several architectures.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from unittest import mock

import tensorcore_dsl as tc
from tensorcore_dsl.ptx.syntax import Statement
from tests import foreign_corpus
from tests.ptx_cases import SOURCE


def modules() -> Iterator[tuple[str, tc.ptx.Module]]:
    """Each source with its architecture, and its kernels."""
    for arch in ("sm_80", "sm_89", "sm_90", "sm_90a"):
        yield f"CUDA, {arch}", foreign_corpus.module(arch)
    for arch in ("sm_75", "sm_90a"):
        yield f"CUDA, {arch}", tc.ptx.from_cuda(SOURCE, arch)
    try:
        from tests import triton_corpus
    except ImportError:
        return
    for arch in ("sm_80", "sm_90a"):
        for name in triton_corpus.CASES:
            kernels: list[tc.ptx.PtxKernel] = []

            def kept(self: tc.ptx.PtxKernel, *rest: object, to: list[tc.ptx.PtxKernel] = kernels) -> None:
                to.append(self)

            with mock.patch.object(tc.ptx.PtxKernel, "_run", kept):
                try:
                    triton_corpus.run(name, arch)
                except Exception as error:  # nothing has run, or Triton refuses the type
                    if not kernels:
                        print(f"Triton, {name}, {arch}: {type(error).__name__}")
            for kernel in kernels[:1]:
                yield f"Triton, {name}, {arch}", kernel.module


def main(files: list[str]) -> int:
    loaded = ((file, tc.ptx.load(file)) for file in files) if files else modules()
    total, read, kernels = 0, 0, 0
    for where, module in loaded:
        for name in module:
            size = sum(isinstance(node, Statement) for node in module._functions[name].body)
            try:
                _ = module[name]
            except tc.TensorCoreError as error:
                print(f"{where}, {name}: {error}")
            else:
                read += size
            total, kernels = total + size, kernels + 1
    print(f"{read} of {total} instructions of {kernels} kernels are read: {100 * read / max(total, 1):.2f} %")
    return int(read < total)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
