"""Run the forms of `scalar_forms` on a GPU and write golden/scalar_h200.txt.

    python tests/capture_scalar.py [file]

Needs cuda.bindings and a driver. A form that the driver's assembler refuses is an error: the forms
are those of sm_90.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
from cuda.bindings import driver
from scalar_forms import GOLDEN, Form, bits_of, checksum, forms, inputs

REGISTERS = ".reg .pred %p, %q; .reg .b16 %h; .reg .b32 %x, %y, %i, %n, %t<4>; .reg .b64 %z, %o, %ix, %at;"


def check(answer: tuple[Any, ...]) -> Any:
    if int(answer[0]):
        raise RuntimeError(f"driver: {answer[0]!r}")
    return answer[1] if len(answer) == 2 else answer[1:]


def width(kind: str) -> int:
    return max(16, bits_of(kind))


def text(form: Form) -> str:
    """A kernel: one thread for each element; parameters are pointers to d, a, b, c and a count."""
    d = width(form.result)
    lines = [".version 8.7", ".target sm_90a", ".address_size 64", ".visible .entry k("]
    lines += [".param .u64 pd, .param .u64 pa, .param .u64 pb, .param .u64 pc, .param .u32 pn) {"]
    lines += [REGISTERS, f".reg .b{d} %d;"]
    lines += ["mov.u32 %t1, %ctaid.x; mov.u32 %t2, %ntid.x; mov.u32 %t3, %tid.x;"]
    lines += ["mad.lo.u32 %i, %t1, %t2, %t3; ld.param.u32 %n, [pn]; setp.ge.u32 %q, %i, %n;"]
    lines += ["@%q bra done; cvt.u64.u32 %ix, %i;"]
    for name, kind in zip("abc", form.inputs, strict=False):
        w = width(kind)
        lines += [f".reg .b{w} %{name}; ld.param.u64 %at, [p{name}];"]
        lines += [f"mad.lo.u64 %at, %ix, {w // 8}, %at; ld.global.b{w} %{name}, [%at];"]
    lines += [form.ptx, f"ld.param.u64 %o, [pd]; mad.lo.u64 %o, %ix, {d // 8}, %o;"]
    return "\n".join([*lines, f"st.global.b{d} [%o], %d;", "done: ret;", "}"])


def run(form: Form) -> np.ndarray:
    module = check(driver.cuModuleLoadData(text(form).encode() + b"\0"))
    function = check(driver.cuModuleGetFunction(module, b"k"))
    columns = inputs(form)
    n = len(columns[0])
    out = np.zeros(n, {16: np.uint16, 32: np.uint32, 64: np.uint64}[width(form.result)])
    device = [check(driver.cuMemAlloc(x.nbytes)) for x in (out, *columns)]
    for pointer, column in zip(device[1:], columns, strict=True):
        check(driver.cuMemcpyHtoD(pointer, column.ctypes.data, column.nbytes))
    pointers = [np.array([int(p)], np.uint64) for p in (*device, *[0] * (4 - len(device)))]
    values = [*pointers, np.array([n], np.uint32)]
    addresses = np.array([v.ctypes.data for v in values], np.uint64)
    grid = (-(-n // 128), 1, 1, 128, 1, 1)
    check(driver.cuLaunchKernel(function, *grid, 0, 0, addresses.ctypes.data, 0))
    check(driver.cuMemcpyDtoH(out.ctypes.data, device[0], out.nbytes))
    for pointer in device:
        check(driver.cuMemFree(pointer))
    check(driver.cuModuleUnload(module))
    return out


def main() -> None:
    check(driver.cuInit(0))
    device = check(driver.cuDeviceGet(0))
    check(driver.cuCtxSetCurrent(check(driver.cuDevicePrimaryCtxRetain(device))))
    name = check(driver.cuDeviceGetName(100, device)).split(b"\0")[0].decode()
    lines = [f"# {name}, CRC-32 of the results of each form of tests/scalar_forms.py"]
    lines += [f"{checksum(run(form)):08x} {form.ptx}" for form in forms()]
    path = Path(sys.argv[1]) if len(sys.argv) > 1 else GOLDEN
    path.write_text("\n".join(lines) + "\n")
    print(len(lines) - 1, "forms of", name)


if __name__ == "__main__":
    main()
