"""Kernels with a mistake, each beside a correct twin: `bad` is true in the one, false in the other."""

from __future__ import annotations

import linecache
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

import tensorcore_dsl as tc


@dataclass
class Twin:
    """A kernel with arguments; a tuple stands for an array of ones of this shape."""

    kernel: Any
    args: tuple[Any, ...]
    error: type[tc.TensorCoreError]
    message: str
    grid: Any = 1
    block: int = 32
    dtype: Any = np.float32
    arch: str = "sm_90a"
    bytes: int = 0  # of dynamic shared memory

    def __str__(self) -> str:
        return str(self.kernel.__name__)

    def run(self, bad: bool, **options: Any) -> None:
        args = [np.ones(a, self.dtype) if isinstance(a, tuple) else a for a in self.args]
        emulator = self.kernel.emulator(self.arch, **options)
        emulator[self.grid, self.block, None, self.bytes](*args, bad=bad)

    def check_bad(self) -> None:
        """The mistake is reported with its message, at the line that ends in `# here`."""
        with pytest.raises(self.error) as error:
            self.run(True)
        assert self.message in error.value.message
        loc = error.value.loc
        assert loc is not None
        assert linecache.getline(loc.filename, loc.line).rstrip().endswith("# here")

    def check_good(self) -> None:
        """The twin runs to its end, in any order."""
        self.run(False)
        self.run(False, order=1)


class Twins(list[Twin]):
    """The twins of a file of tests."""

    def __call__(self, error: type[tc.TensorCoreError], message: str, *args: Any, **options: Any) -> Any:
        def note(function: Any) -> Any:
            self.append(Twin(tc.kernel(function), args, error, message, **options))
            return function

        return note
