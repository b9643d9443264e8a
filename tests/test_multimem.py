"""multimem instructions: which there are, by the tables of 9.7.9.14, and that none is emulated."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

import tensorcore_dsl as tc
from tensorcore_dsl import isa
from tensorcore_dsl.errors import EmulationError

BITS = {"f16": 16, "bf16": 16, "f16x2": 32, "bf16x2": 32, "f32": 32, "f64": 64}
PLAIN = {"f16x2", "bf16x2", "f32", "f64"}  # without .vec
VECTORS = {2: PLAIN - {"f64"} | {"f16", "bf16"}, 4: PLAIN - {"f64"} | {"f16", "bf16"}, 8: {"f16", "bf16"}}
WHOLE = {
    "add": {"u32", "s32", "u64"},
    "min": {"u32", "s32", "u64", "s64"},
    "max": {"u32", "s32", "u64", "s64"},
    **dict.fromkeys(("and", "or", "xor"), {"b32", "b64"}),
}


def reductions(floats: tuple[str, ...], precise: bool) -> set[str]:
    """`.op{.acc_prec}{.vec}.type` of sm_90, by the manual's two tables and its rule of sizes."""
    found = {f"{op}.{kind}" for op, kinds in WHOLE.items() for kind in kinds}
    for op, vector, kind in itertools.product(floats, (1, 2, 4, 8), BITS):
        allowed = PLAIN if vector == 1 else VECTORS[vector]
        if kind in allowed and vector * BITS[kind] in (32, 64, 128) and (op == "add" or "16" in kind):
            vec = f".v{vector}" if vector > 1 else ""
            found.add(f"{op}{vec}.{kind}")
            if precise and op == "add" and "16" in kind:
                found.add(f"add.acc::f32{vec}.{kind}")
    return found


@pytest.mark.parametrize(
    "name, orders, floats",
    [
        ("ld_reduce", ["", ".weak", ".acquire.cluster", ".relaxed.sys"], ("add", "min", "max")),
        ("red", ["", ".release.cta", ".relaxed.gpu"], ("add",)),
    ],
)
def test_reductions_are_the_manuals(name, orders, floats):
    for order in orders:
        start = f"multimem.{name}{order}.global."
        found = [i.mnemonic for i in isa.instructions("multimem") if i.mnemonic.startswith(start)]
        assert sorted(m.removeprefix(start) for m in found) == sorted(reductions(floats, name == "ld_reduce"))


@tc.kernel
def reduces(x: tc.Array, text: tc.Const):
    tc.emit(text, x.at(0))


@pytest.mark.parametrize(
    "text",
    ["multimem.ld_reduce.relaxed.sys.global.add.u32", "multimem.ld_reduce.global.add.acc::f32.v4.bf16x2"],
)
def test_they_are_printed_and_refused_in_emulation(text):
    x = np.zeros(32, np.uint32)
    assert text in reduces.ptx(x, text=text, arch="sm_90a")
    assert reduces.resources(x, text=text, arch="sm_90a").registers > 0
    with pytest.raises(EmulationError, match=r"needs a multimem address, .*\(9.7.9.14\)"):
        reduces.emulator("sm_90a")[1, 32](x, text=text)


@pytest.mark.parametrize(
    "text, operands",
    [
        ("multimem.cp.async.bulk.global.shared::cta.bulk_group", (1 << 40, 0, 16)),
        ("multimem.cp.reduce.async.bulk.global.shared::cta.bulk_group.add.noftz.f16", (1 << 40, 0, 16)),
        ("multimem.st.weak.global.u32", (1 << 40, 7)),
    ],
)
def test_all_are_refused(text, operands):
    with pytest.raises(EmulationError, match="needs a multimem address"):
        tc.emulate(text, *operands, arch="sm_90a")
