"""Kernels of sums, differences and products with carries (9.7.2)."""

from __future__ import annotations

import tensorcore_dsl as tc


@tc.kernel
def long_sums(a, b, sums, differences, sign: tc.Const):
    """Numbers of four words each, (words, threads), the lowest first; the fifth is the carry."""
    t, kind = tc.threadIdx.x, f"{sign}{8 * a.dtype.itemsize}"
    for op, out in (("add", sums), ("sub", differences)):
        for i in tc.static_range(4):
            name = f"{op}.cc" if i == 0 else f"{op}c.cc"
            word = tc.emit(f"{name}.{kind}", a[i, t].bits(kind), b[i, t].bits(kind))
            out[i, t] = word.bits(a.dtype)
        out[4, t] = tc.emit(f"{op}c.{kind}", 0, 0).bits(a.dtype)


@tc.kernel
def long_products(a, b, out):
    """Products of two words by two, as the manual's example computes them (9.7.2.6)."""
    t, kind = tc.threadIdx.x, a.dtype
    a0, a1, b0, b1 = a[0, t], a[1, t], b[0, t], b[1, t]
    r0 = tc.emit(f"mul.lo.{kind}", a0, b0)
    r1 = tc.emit(f"mul.hi.{kind}", a0, b0)
    r1 = tc.emit(f"mad.lo.cc.{kind}", a1, b0, r1)
    r2 = tc.emit(f"madc.hi.{kind}", a1, b0, 0)
    r1 = tc.emit(f"mad.lo.cc.{kind}", a0, b1, r1)
    r2 = tc.emit(f"madc.hi.cc.{kind}", a0, b1, r2)
    r3 = tc.emit(f"addc.{kind}", 0, 0)
    r2 = tc.emit(f"mad.lo.cc.{kind}", a1, b1, r2)
    r3 = tc.emit(f"madc.hi.{kind}", a1, b1, r3)
    for i, word in enumerate((r0, r1, r2, r3)):
        out[i, t] = word


@tc.kernel
def carries_apart(a, out):
    """Only even threads add a second time; all read their own carry, after a barrier."""
    t = tc.threadIdx.x
    tc.emit("add.cc.u32", 0xFFFFFFFF, 1)
    if t % 2 == 0:
        tc.emit("add.cc.u32", a[t], a[t])
    tc.barrier()
    out[t] = tc.emit("addc.u32", 0, 0)


@tc.kernel
def reads_nothing(out):
    out[tc.threadIdx.x] = tc.emit("addc.u32", 0, 0)


@tc.kernel
def mixed_carries(a, b, out):
    """A borrow that a sum reads, and a carry that a difference reads."""
    t = tc.threadIdx.x
    out[0, t] = tc.emit("sub.cc.u32", a[0, t], b[0, t])
    out[1, t] = tc.emit("addc.u32", 0, 0)
    out[2, t] = tc.emit("add.cc.u32", a[0, t], b[0, t])
    out[3, t] = tc.emit("subc.u32", 0, 0)
