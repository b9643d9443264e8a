"""Sequences without calls, for instructions that the assembler implements as calls.

The assembler calls a routine for a rounded quotient or root, and serialises every `wgmma` of a
kernel with a call (C7509). Such kernels get these sequences. Their results have the same bits.
All targets of `wgmma` have fast f64.

Quotient: f64 holds a and b, and its exponents reach every quotient, so nothing overflows there.
`rcp.approx` of b, scaled by 2**64 or 2**-64, has 22 good bits; one step of Newton's method makes
them 44, and the residual of the quotient, which fma computes without error, 53. A quotient of
two f32 is a tie of f32 (subnormal ones too), which f64 holds, or at least 2**-49 of its size away
from every tie. So the second rounding, to f32, is right. Where `q + q != q` fails (a or b is zero,
infinite or NaN), the product with the approximate reciprocal is the exact result.

Root: `rsqrt.approx` with two residuals. A root is at least 2**-51 of its size away from every tie.
"""

from __future__ import annotations

# Computed once for all quotients with divisor b: -b and 1 / b in f64, and `rcp.approx` of the scaled b.
DIVISOR = """.reg .f32 %part{n};
    .reg .f64 %d{n}, %inverse{n};
    {{
        .reg .pred %small;
        .reg .f32 %scale;
        .reg .f64 %rest;
        abs.f32 %part{n}, {b};
        setp.lt.f32 %small, %part{n}, 0f3F800000;
        selp.f32 %scale, 0f5F800000, 0f1F800000, %small;
        mul.rn.f32 %part{n}, {b}, %scale;
        rcp.approx.ftz.f32 %part{n}, %part{n};
        cvt.f64.f32 %inverse{n}, %part{n};
        selp.f64 %rest, 0d43F0000000000000, 0d3BF0000000000000, %small;
        mul.rn.f64 %inverse{n}, %inverse{n}, %rest;
        cvt.f64.f32 %d{n}, {b};
        neg.f64 %d{n}, %d{n};
        fma.rn.f64 %rest, %d{n}, %inverse{n}, 0d3FF0000000000000;
        fma.rn.f64 %inverse{n}, %inverse{n}, %rest, %inverse{n};
    }}"""

_QUOTIENT = """!{{
        .reg .pred %plain;
        .reg .f32 %narrow, %special;
        .reg .f64 %x, %rest, %q;
        cvt.f64.f32 %x, {a};
        mul.rn.f64 %q, %x, %inverse{n};
        fma.rn.f64 %rest, %d{n}, %q, %x;
        fma.rn.f64 %q, %rest, %inverse{n}, %q;
        add.rn.f64 %rest, %q, %q;
        setp.ne.f64 %plain, %rest, %q;
        mul.rn.f32 %special, {a}, %part{n};
        cvt.rn.f32.f64 %narrow, %q;
        selp.f32 {d}, %narrow, %special, %plain;
    }}"""

_ROOT = """!{{
        .reg .pred %plain;
        .reg .f32 %part, %narrow;
        .reg .f64 %x, %half, %rest, %root;
        rsqrt.approx.f32 %part, {a};
        cvt.f64.f32 %half, %part;
        cvt.f64.f32 %x, {a};
        mul.rn.f64 %root, %x, %half;
        mul.rn.f64 %half, %half, 0d3FE0000000000000;
        neg.f64 %rest, %root;
        fma.rn.f64 %rest, %rest, %root, %x;
        fma.rn.f64 %root, %rest, %half, %root;
        neg.f64 %rest, %root;
        fma.rn.f64 %rest, %rest, %root, %x;
        fma.rn.f64 %root, %rest, %half, %root;
        setp.num.f64 %plain, %root, %root;
        sqrt.approx.f32 %part, {a};
        cvt.rn.f32.f64 %narrow, %root;
        selp.f32 {d}, %narrow, %part, %plain;
    }}"""

# The text of an instruction, as `Row.template`; {n} is the number of a divisor, its last operand.
CALL_FREE = {
    "div.rn.f32": _QUOTIENT,
    "rcp.rn.f32": _QUOTIENT.replace("{a}", "0f3F800000"),
    "sqrt.rn.f32": _ROOT,
}
