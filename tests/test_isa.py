"""The table of instructions against the manual and the assembler."""

from __future__ import annotations

import random
import re
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import replace
from functools import reduce
from itertools import islice
from operator import or_
from typing import Any

import numpy as np
import pytest

from tensorcore_dsl import isa
from tensorcore_dsl.arch import ARCHS
from tensorcore_dsl.dtypes import bf16, e2m1, e3m2, e4m3, e5m2, f16, f32, f64, s8, s32, u8
from tensorcore_dsl.errors import EmulationError, LayoutError, UnknownInstruction
from tensorcore_dsl.isa import block_scale, classify, memory, sparse
from tensorcore_dsl.isa.effects import MEANINGS, PURE, VOLATILE, Effect
from tensorcore_dsl.isa.spec import Instruction, row
from tensorcore_dsl.layout import Layout
from tests import manual_tables as manual
from tests import nvjitlink12
from tests.assembler import ARCH_NAMES, assembles, module, newest_ptx, version_of

PTX_VERSIONS = [(6, 3), (6, 4), (6, 5), *((7, m) for m in range(9)), *((8, m) for m in range(9)), (9, 0)]

# What the assembler takes although the manual does not promise it there.
UNPROMISED = {("sm_100a", "kind::f8f6f4")}


def layouts() -> dict[str, Layout]:
    found = {}
    for instr in isa.instructions():
        for operand in (*instr.results, *instr.operands):
            if operand.layout is not None:
                found[operand.layout.name] = operand.layout
    return found


LAYOUTS = layouts()


# -- lookup ------------------------------------------------------------------------------------


def test_every_form_is_found_by_its_text():
    for instr in isa.instructions():
        assert isa.instruction(instr.mnemonic) is instr
        assert instr.opcode in isa.opcodes()
    assert isa.instruction(" add.rn.f32; ").mnemonic == "add.rn.f32"


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("frobnicate.b32", ["no instruction is called 'frobnicate'"]),
        ("ad.f32", ["nearest: ", "add"]),
        ("add.f33", [".f33 is not allowed", ".f32", ".bf16x2"]),
        ("setp.lt", ["after .lt one of", ".s32", "is missing"]),
        ("mul.rn.ftz.sat.sat.f32", [".sat is one too many"]),
        ("ld.global.v8.b8", [".b8 is not allowed; in its place: .b32"]),
        ("st.shared::cta.v2.f32", [".f32 is not allowed; in its place: .b8, .b16, .b32, .b64"]),
        ("cvt.rn.e4m3x2.f32", [".satfinite"]),
        ("mma.sync.aligned.m16n8k16.row.col.f32.f16.bf16.f32", [".f16 is not allowed", ".bf16"]),
    ],
)
def test_unknown_text_is_answered_with_what_exists(text, parts):
    with pytest.raises(UnknownInstruction) as caught:
        isa.instruction(text)
    for part in parts:
        assert part in str(caught.value)


def test_importing_and_expanding_load_no_numba():
    """The numerics are loaded when a form first runs."""
    script = """
import sys
import tensorcore_dsl.isa as isa
assert sum(1 for opcode in isa.opcodes() for _ in isa.instructions(opcode)) > 1000
print("numba" in sys.modules)
"""
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert run.stdout == "False\n"


# -- constructors ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: isa.mma.m16n8k16(bf16, bf16, f32), "m16n8k16.row.col.f32.bf16.bf16.f32"),
        (lambda: isa.mma.m8n8k4(f16, f16, f16, f32), "m8n8k4.row.col.f32.f16.f16.f16"),
        (lambda: isa.mma.m8n8k4(f16, f16, f32, layout="col.row"), "m8n8k4.col.row.f32.f16.f16.f32"),
        (lambda: isa.mma.m8n8k4(f64, f64, f64, rounding="rz"), "f64.f64.f64.f64.rz"),
        (lambda: isa.mma.m16n8k32(s8, u8, s32, satfinite=True), "satfinite.s32.s8.u8.s32"),
        (lambda: isa.mma.m16n8k32(e2m1, e3m2, f32), "kind::f8f6f4.f32.e2m1.e3m2.f32"),
        (lambda: isa.mma.m16n8k32(e4m3, e5m2, f32), "m16n8k32.row.col.f32.e4m3.e5m2.f32"),
        (lambda: isa.mma.m16n8k256("b1", "b1", "s32", operation="and"), "b1.b1.s32.and.popc"),
        (lambda: isa.mma.sp.m16n8k32(f16, f16, f32, ordered=True), "mma.sp::ordered_metadata.sync"),
        (lambda: isa.mma.block_scale.m16n8k64(e2m1, e2m1, f32, kind="mxf4"), "scale_vec::2X"),
        (lambda: isa.mma.block_scale(e4m3, e5m2, f32), "m16n8k32.row.col.kind::mxf8f6f4"),
        (lambda: isa.mma.sp.block_scale(e4m3, e5m2, f32), "m16n8k64.row.col.kind::mxf8f6f4"),
        (lambda: isa.wgmma.m64n256k16(bf16, bf16, f32), "wgmma.mma_async.sync.aligned.m64n256k16"),
        (lambda: isa.wgmma.m64n8k16(f16, f16, f16, source="registers"), "f16.f16.f16.registers"),
        (lambda: isa.wgmma.sp.m64n8k32(f16, f16, f32), "wgmma.mma_async.sp"),
        (lambda: isa.wmma.m16n16k16(f16, f16, f32), "wmma.mma.sync.aligned.row.col.m16n16k16.f32.f32"),
    ],
)
def test_constructors_give_forms(make, text):
    assert text in make().mnemonic


@pytest.mark.parametrize(
    ("make", "parts"),
    [
        (lambda: isa.mma.m16n8k17, ["mma has no shape m16n8k17", "m16n8k16", "block_scale"]),
        (lambda: isa.mma.m16n8k16(f16, bf16, f32), ["does not exist", "(bf16, bf16, f32)"]),
        (lambda: isa.mma.m16n8k16(f16, f16), ["takes the element types", "(f16, f16, f32)"]),
        (lambda: isa.mma.m16n8k256("b1", "b1", "s32"), ["say operation='xor' or 'and'"]),
        (lambda: isa.mma.m16n8k16(f16, f16, f32, satfinite=True), ["no option 'satfinite'"]),
        (lambda: isa.mma.m8n8k4(f64, f64, f64, rounding="up"), ["'rn'", "'rp'", "'up' was given"]),
        (lambda: isa.mma(f16, f16, f32), ["exists as m8n8k4, m16n8k8, m16n8k16", "choose one"]),
    ],
)
def test_constructors_answer_mistakes(make, parts):
    with pytest.raises(UnknownInstruction) as caught:
        make()
    for part in parts:
        assert part in str(caught.value)


def test_namespaces_list_their_shapes():
    assert {"m16n8k16", "m8n8k4", "sp", "block_scale"} <= set(dir(isa.mma))
    assert not hasattr(isa.mma, "m1n1k1")
    assert len([name for name in dir(isa.wgmma) if name.startswith("m64")]) == 3 * 32 + 18


# -- rows against the manual -------------------------------------------------------------------


def registers(instr: Instruction, names: str = "dabc") -> tuple[int, ...]:
    return tuple(instr.operand(name).registers for name in names)


def same_forms(found: Iterable[str], expected: Iterable[str]) -> None:
    """Both directions, and nothing twice."""
    found, expected = list(found), list(expected)
    assert len(set(expected)) == len(expected)
    assert sorted(found) == sorted(expected)


def members(opcode: str, *groups: str) -> list[Instruction]:
    every = isa.instructions(opcode)
    return [f for f in every if "a" in f.params and f.params.get("group", "") in groups]


def test_dense_mma_is_the_manuals():
    expected = dict(manual.mma_forms())
    same_forms((f.mnemonic for f in members("mma", "")), [m for m, _ in manual.mma_forms()])
    for mnemonic, counts in expected.items():
        assert registers(isa.instruction(mnemonic)) == counts, mnemonic


def test_sparse_mma_is_the_manuals():
    same_forms((f.mnemonic for f in members("mma", "sp")), [m for m, *_ in manual.sparse_forms()])
    for mnemonic, counts, selectors in manual.sparse_forms():
        instr = isa.instruction(mnemonic)
        assert registers(instr) == counts, mnemonic
        assert (instr.f.values, instr.e.register_bits) == (selectors, 32)


def test_block_scaled_mma_is_the_manuals():
    family = members("mma", "block_scale", "sp.block_scale")
    same_forms((f.mnemonic for f in family), [m for m, *_ in manual.scaled_forms()])
    for mnemonic, counts, values in manual.scaled_forms():
        instr = isa.instruction(mnemonic)
        assert registers(instr) == counts, mnemonic
        names = ("byte_a", "thread_a", "byte_b", "thread_b")
        assert tuple(instr.operand(name).values for name in names) == values


def test_wmma_is_the_manuals():
    same_forms((f.mnemonic for f in members("wmma", "")), [m for m, _ in manual.wmma_forms()])
    for mnemonic, counts in manual.wmma_forms():
        assert registers(isa.instruction(mnemonic)) == counts, mnemonic
    for kind, shapes in manual.WMMA_AB.items():
        for shape, counts in shapes.items():
            order = ("row", "col")
            for role, count, way in zip("ab", counts, order, strict=True):
                text = f"wmma.load.{role}.sync.aligned.{way}.{shape}.global.{kind}"
                assert isa.instruction(text).results[0].registers == count


def test_wgmma_is_the_manuals():
    family = members("wgmma", "", "sp")
    expected = dict(manual.wgmma_forms())
    for source in ("", "registers"):
        these = [f for f in family if f.params.get("source", "") == source]
        same_forms((f.ptx for f in these), [m for m, _ in manual.wgmma_forms()])
        for instr in these:
            assert registers(instr, "d") == registers(instr, "c") == (expected[instr.ptx],)
            assert not source or instr.a.registers == 4
    for instr in family:
        assert instr.requires.archs() == ["sm_90a"]


def same_places(layout: Layout, element: manual.Element) -> None:
    for lane in range(layout.threads):
        for i in range(layout.slots):
            assert tuple(layout.coords[lane, i]) == element(lane, i), (layout.name, lane, i)


def test_fragments_are_where_the_manual_says():
    seen = set()
    for instr in members("mma", ""):
        bits = instr.a.layout.container or instr.a.dtype.storage_bits
        if instr.a.dtype == f16 and instr.params["shape"] == "m8n8k4":
            continue
        key = (instr.params["shape"], bits)
        a, b = manual.FRAGMENTS[key]
        small = instr.params["shape"].startswith("m8")
        c = manual.SMALL_ACCUMULATOR if small else manual.ACCUMULATOR
        for operand, element in ((instr.a, a), (instr.b, b), (instr.c, c), (instr.d, c)):
            if operand.layout.name not in seen:
                same_places(operand.layout, element)
                seen.add(operand.layout.name)
    assert len(seen) > 40


@pytest.mark.parametrize("order", ["row.row", "row.col", "col.row", "col.col"])
@pytest.mark.parametrize(("d", "c"), [("f16", "f16"), ("f32", "f16"), ("f32", "f32")])
def test_quad_fragments_are_where_the_manual_says(order, d, c):
    instr = isa.instruction(f"mma.sync.aligned.m8n8k4.{order}.{d}.f16.f16.{c}")
    a, b = order.split(".")
    for operand, key in ((instr.a, ("a", a)), (instr.b, ("b", b)), (instr.c, ("c", c)), (instr.d, ("c", d))):
        same_places(operand.layout, manual.QUADS[key])


def test_stored_elements_of_sparse_a_stay_in_their_columns():
    """The dense layout of k/2 columns, each standing for twice as many, is the manual's."""
    for instr in members("mma", "sp"):
        layout = instr.a.layout
        bits = layout.container or instr.a.dtype.storage_bits
        if layout.registers != 4:
            continue
        for lane in range(32):
            for i in range(layout.slots):
                row_, col = layout.coords[lane, i]
                e = 32 // bits
                first, last = manual.sparse_columns(bits, i // (2 * e) * (2 * e), lane % 4)
                group = 2 if bits != 32 else 1
                assert first <= 2 * (col // group * group) <= last
                assert row_ == lane // 4 + 8 * (i // e % 2)


def test_wgmma_results_are_where_the_manual_says():
    for n in (8, 104, 256):
        for kind in ("f16", "f32"):
            same_places(isa.wgmma.__getattr__(f"m64n{n}k16")(f16, f16, kind).d.layout, manual.wgmma_d)


@pytest.mark.parametrize("name", sorted(LAYOUTS))
def test_layouts_hold_every_element(name):
    layout = LAYOUTS[name]
    layout.check()
    held = np.bincount(layout.coords[..., 0].ravel() * layout.cols + layout.coords[..., 1].ravel())
    assert (held == layout.copies).all()


def test_operands_have_the_registers_of_their_layouts():
    for instr in isa.instructions():
        for operand in (*instr.results, *instr.operands):
            if operand.layout is not None:
                assert operand.registers == operand.layout.registers
                assert operand.dtype is operand.layout.dtype
        assert instr.tied is None or registers(instr, instr.tied) == (instr.results[0].registers,)


# -- what rows declare of their addresses --------------------------------------------------------


def word_in_text(mnemonic: str) -> tuple[str, int, int, str, str]:
    """Space, bytes, bytes of a scalar, order and scope of ld, st, atom and red, by the manual's
    grammar (9.7.9.8, .11, 9.7.13.5, .6)."""
    opcode, *parts = mnemonic.split(".")
    bits, packed = re.fullmatch(r"(?:b|u|s|f|bf)(\d+)(x2)?", parts[-1]).groups()
    vector = next((int(part[1:]) for part in parts if re.fullmatch(r"v[248]", part)), 1)
    space = next(part for part in parts if part.split("::")[0] in ("global", "shared"))
    default = ("relaxed", "gpu") if opcode in ("atom", "red") else ("", "")
    default = ("volatile", "sys") if "volatile" in parts else default
    orders = [part for part in parts if part in ("relaxed", "acquire", "release", "acq_rel")]
    scopes = [part for part in parts if part in ("cta", "cluster", "gpu", "sys")]
    scalar = int(bits) // 8
    size = scalar * vector * (2 if packed else 1)
    return space, size, scalar, (*orders, default[0])[0], (*scopes, default[1])[0]


def test_words_have_the_bytes_order_and_scope_of_their_text():
    count = 0
    for instr in isa.instructions():
        special = "async" in instr.mnemonic or "bulk" in instr.mnemonic
        if instr.opcode not in ("ld", "st", "atom", "red") or special:
            continue
        (access,) = instr.accesses
        declared = access.space, access.bytes, access.scalar, access.order, access.scope
        assert declared == word_in_text(instr.mnemonic), instr
        verb = {"ld": "load", "st": "store"}.get(instr.opcode, "update")
        assert (access.verb, access.operand, access.completion) == (verb, "p", "")
        assert classify.is_strong(instr) == bool(access.order) == (Effect.VOLATILE in instr.effects)
        count += 1
    assert count > 4000


def test_matrices_are_rows_of_16_bytes_or_16_elements_at_one_lane_each():
    for instr in isa.instructions():
        if instr.opcode in ("ldmatrix", "stmatrix"):
            shape, number = re.search(r"\.(m\d+n\d+)\.x([124])", instr.mnemonic).groups()
            rows = 16 if instr.opcode == "ldmatrix" and shape == "m16n16" else 8
            (access,) = instr.accesses
            size = 8 if instr.mnemonic.endswith(".s8.s4") else 16
            assert (access.bytes, access.lanes) == (size, rows * int(number)), instr


def test_copies_name_what_completes_them():
    for instr in isa.instructions():
        parts = instr.mnemonic.split(".")
        moving = [access for access in instr.accesses if access.moves]
        if parts[0] != "cp" or not moving or "prefetch" in parts:
            continue
        group = "bulk_group" if "bulk_group" in parts else "async_group"
        completion = "mbarrier" if "mbarrier::complete_tx::bytes" in parts else group
        assert {access.completion for access in moving} == {completion}, instr
        spaces = [part for part in parts if part.split("::")[0] in ("global", "shared")]
        assert [access.space for access in moving] == spaces
        writes = [access.writes for access in moving]
        assert writes == [True, False] and not classify.is_strong(instr)


def test_every_address_is_declared():
    for instr in isa.instructions():
        addresses = {operand.name for operand in instr.operands if operand.kind == "addr"}
        assert addresses <= {access.operand for access in instr.accesses}, instr
        verbs = reduce(or_, (access.effects for access in instr.accesses), PURE)
        waits = instr.mnemonic.startswith("cp.async.wait") or "wgmma" in instr.mnemonic
        assert waits or instr.effects & (Effect.LOAD | Effect.STORE) in verbs, instr


ASYNC_STORE = "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.b32"


def test_asynchronous_stores_name_what_they_write():
    """By the grammar of 9.7.9.12 and 9.7.13.7."""
    found = [i for o in ("st", "red") for i in isa.instructions(o) if ".async." in i.mnemonic]
    assert len(found) == 10 + 12
    for instr in found:
        data, counted = instr.accesses
        parts = instr.mnemonic.split(".")
        vector = next((int(part[1:]) for part in parts if part in ("v2", "v4")), 1)
        assert data.space == counted.space == "shared::cluster" and data.completion == "mbarrier"
        assert data.bytes == vector * int(parts[-1][1:]) // 8 <= 16
        assert data.verb == ("store" if instr.opcode == "st" else "update")
        assert (data.order, data.scope) == (("", "") if instr.opcode == "st" else ("relaxed", "cluster"))
        assert (
            not classify.is_strong(instr)
            and classify.is_async_operation(instr)
            and classify.completes_on_mbarrier(instr)
            and classify.word_access(instr) is None
        )


def instruction_of(**declared: Any) -> Instruction:
    made = row(ASYNC_STORE, "p:[u32], b:b32, bar:[u32]", "9.7.9.12", memory.no_effect, **declared)
    return next(made.instructions())


@pytest.mark.parametrize(
    ("declared", "message"),
    [
        ({"effects": VOLATILE | Effect.STORE}, "does not say what it accesses"),
        ({"access": "store p shared::cluster 1*b32 mbarrier"}, "does not say what it accesses"),
        ({"access": "store p shared::cluster 1*b32 strong"}, "bad access"),
        ({"access": "store p nowhere 1*b32"}, "bad access"),
    ],
)
def test_a_row_says_what_it_accesses(declared, message):
    with pytest.raises(AssertionError, match=message):
        instruction_of(**declared)


def test_a_store_that_completes_later_is_not_strong():
    instr = instruction_of(access="store p shared::cluster 1*b32 mbarrier; sync bar shared::cluster 8")
    assert (
        not classify.is_strong(instr)
        and classify.is_async_operation(instr)
        and classify.completes_on_mbarrier(instr)
        and classify.word_access(instr) is None
    )
    assert instr.effects == Effect.STORE | Effect.VOLATILE and instr.accesses[0].bytes == 4


# -- rows against the assembler ----------------------------------------------------------------


def having(arch: str) -> dict[tuple[int, int], list[Instruction]]:
    """The forms an architecture has, by the lowest PTX version that may print them."""
    found = defaultdict(list)
    for instr in isa.instructions():
        if instr.requires.met_by(ARCHS[arch]):
            found[version_of([instr], arch)].append(instr)
    return found


def parts(arch: str, size: int = 250) -> Iterable[Any]:
    for version, instrs in having(arch).items():
        every = iter(instrs)
        while part := list(islice(every, size)):
            name = f"{arch}-{part[0].opcode}-{version[0]}.{version[1]}"
            yield pytest.param(arch, version, part, id=name)


@pytest.mark.quick(lambda instrs: instrs[0].opcode)
@pytest.mark.parametrize(("arch", "version", "instrs"), [part for arch in ARCH_NAMES for part in parts(arch)])
def test_every_form_assembles(arch, version, instrs):
    if version > newest_ptx():
        pytest.skip(f"this nvJitLink does not know PTX {version[0]}.{version[1]}")
    assert not assembles(module(instrs, arch, version), arch)


@pytest.mark.parametrize(("arch", "version", "instrs"), list(parts("sm_70")))
def test_every_form_of_sm_70_assembles(arch, version, instrs):
    """By nvJitLink 12: that of CUDA 13, which Numba uses, knows no architecture before sm_75."""
    if nvjitlink12.library() is None:
        pytest.skip(f"no {nvjitlink12.NAME} is installed (pip install nvidia-nvjitlink-cu12)")
    assert not nvjitlink12.assembles(module(instrs, arch, version), arch)


def groups(opcode: str, *more: str) -> dict[tuple[Any, ...], list[Instruction]]:
    """Forms that a line of the table makes, nearly: same section, demands, number of modifiers.

    `more` params tell further lines apart.
    """
    found = defaultdict(list)
    for instr in isa.instructions(opcode):
        kinds = (instr.section, instr.mnemonic.count("."), instr.params.get("kind"))
        extra = tuple(instr.params.get(name) for name in more)
        found[(instr.requires.text, instr.version, kinds, extra)].append(instr)
    return found


def skip_if_lenient(opcode: str) -> None:
    """nvJitLink of CUDA 13.0, which ends at PTX 9.0, takes fences that later ones refuse."""
    if opcode == "fence" and newest_ptx() < (9, 1):
        pytest.skip("this nvJitLink takes fences that the manual does not promise")


@pytest.mark.parametrize("opcode", isa.opcodes())
def test_forms_are_refused_where_the_table_lacks_them(opcode):
    skip_if_lenient(opcode)
    for instrs in groups(opcode).values():
        for arch in ARCH_NAMES:
            instr = instrs[len(instrs) // 2]
            if instr.requires.met_by(ARCHS[arch]):
                continue
            if any(a == arch and part in instr.mnemonic for a, part in UNPROMISED):
                continue
            assert assembles(module([instr], arch), arch), f"{arch} takes {instr.mnemonic}"


@pytest.mark.parametrize("opcode", isa.opcodes())
def test_no_lower_ptx_version_will_do(opcode):
    skip_if_lenient(opcode)
    more = () if opcode == "wgmma" else ("shape", "a", "c")
    for instrs in groups(opcode, *more).values():
        instr = instrs[len(instrs) // 2]
        arch = min((a for a in ARCH_NAMES if instr.requires.met_by(ARCHS[a])), key=lambda a: ARCHS[a].ptx)
        lower = [v for v in PTX_VERSIONS if ARCHS[arch].ptx <= v < instr.version]
        if lower:
            assert assembles(module([instr], arch, lower[-1]), arch), f"{instr.mnemonic} at {lower[-1]}"


def test_a_layout_holds_each_element_once():
    layout = isa.mma.m16n8k16(f16, f16, f32).a.layout
    outside = replace(layout, formula=lambda lane, slot: (lane // 4 + 8 * slot, slot * 0))
    twice = replace(layout, formula=lambda lane, slot: (lane // 4, 2 * (lane % 4) + slot % 2))
    for broken in (outside, twice):
        with pytest.raises(LayoutError):
            broken.check()


def test_a_row_with_one_name_for_two_things_is_an_error():
    with pytest.raises(AssertionError, match="both an axis and an operand"):
        list(row("x.{d}", "d:u32 =", "", lambda ctx, instr: None, d="a", template="{d}").instructions())


# -- semantics stated by the manual -----------------------------------------------------------


class Warps:
    """Has the parts of the machine that warp-wide forms need: 64 threads."""

    arch, threads, exited = "sm_90a", 64, None

    def __init__(self, active: np.ndarray | None = None) -> None:
        self.active = active

    def whole_warps(self) -> None:
        return None


@pytest.mark.parametrize(
    ("nibbles", "wide", "selector"),
    [(4, True, 0), (4, True, 3), (8, True, 0), (8, True, 1), (8, False, 0), (8, False, 1), (16, False, 0)],
)
def test_metadata_reach_their_rows(nibbles, wide, selector):
    """Written to the lanes that the manual's figures 119 to 147 name, and read back."""
    rows = np.random.default_rng(1).integers(0, 16, (16, nibbles))
    bits = [sum(int(n) << 4 * i for i, n in enumerate(line)) for line in rows]
    lanes = np.zeros(32, np.uint32)
    for g in range(8):
        low, high = bits[g], bits[g + 8]
        quad: dict[int, int] = {}
        if nibbles == 4:
            quad[selector] = low | high << 16
        elif nibbles == 8 and wide:
            for half in range(2):
                part = slice(16 * half, None)
                quad[2 * selector + half] = (low >> part.start & 0xFFFF) | (high >> part.start & 0xFFFF) << 16
        elif nibbles == 8:
            quad = {2 * selector: low, 2 * selector + 1: high}
        else:
            quad = {0: low & 0xFFFFFFFF, 1: high & 0xFFFFFFFF, 2: low >> 32, 3: high >> 32}
        for lane, word in quad.items():
            lanes[4 * g + lane] = word
    places = sparse.metadata_bits(selector, nibbles, wide)
    assert (lanes[places >> 5] >> (places & 31).astype(np.uint32) & 15 == rows).all()


def test_metadata_that_mean_nothing_are_reported():
    instr = isa.mma.sp.m16n8k16(f16, f16, f32)
    with pytest.raises(EmulationError, match="metadata 0b0101 mean nothing"):
        sparse.selection(Warps(), instr, np.full(64, 0x5555_5555, np.uint32), 0)
    assert sparse.selection(Warps(), instr, np.full(64, 0x1111_1111, np.uint32), 0)[0, 0, :2].tolist() == [
        1,
        0,
    ]
    ordered = isa.mma.sp.m16n8k16(f16, f16, f32, ordered=True)
    with pytest.raises(EmulationError, match="0b0001 mean nothing"):
        sparse.selection(Warps(), ordered, np.full(64, 0x1111_1111, np.uint32), 0)


def test_scales_come_from_the_lanes_and_bytes_that_selectors_name():
    lanes = np.arange(32, dtype=np.uint32)
    words = np.tile((lanes * 4) | (lanes * 4 + 1) << 8 | (lanes * 4 + 2) << 16 | (lanes * 4 + 3) << 24, 2)
    actual = block_scale.scales(Warps(), 2, words, 2, 1, words, 0, 3)
    for line in range(16):
        lane = 4 * (line % 8) + 2 + line // 8
        assert actual["scale_a"][0, line].tolist() == [4 * lane + 2, 4 * lane + 3]
    for column in range(8):
        lane = 4 * column + 3
        assert actual["scale_b"][1, :, column].tolist() == [4 * lane, 4 * lane + 1]


def shuffled(mode: str, b: int, c: int, lane: int) -> tuple[int, bool]:
    """The pseudocode of 9.7.9.6."""
    bval, cval, segmask = b & 31, c & 31, c >> 8 & 31
    most = (lane & segmask) | (cval & ~segmask & 31)
    least = lane & segmask
    j, inside = {
        "up": (lane - bval, lane - bval >= most),
        "down": (lane + bval, lane + bval <= most),
        "bfly": (lane ^ bval, lane ^ bval <= most),
        "idx": (least | (bval & ~segmask & 31), (least | (bval & ~segmask & 31)) <= most),
    }[mode]
    return (j if inside else lane), inside


@pytest.mark.parametrize("mode", ["up", "down", "bfly", "idx"])
def test_shuffles_follow_the_pseudocode(mode):
    rng = np.random.default_rng(3)
    instr = isa.instruction(f"shfl.sync.{mode}.b32.pred")
    values = rng.integers(0, 2**32, 64, dtype=np.uint32)
    whole = np.full(64, 0xFFFFFFFF, np.uint32)
    for _ in range(40):
        b = np.full(64, rng.integers(0, 64), np.uint32)
        c = np.full(64, rng.integers(0, 1 << 13), np.uint32)
        d, p = instr.execute(Warps(), instr, values, b, c, whole)
        for thread in range(64):
            source, inside = shuffled(mode, int(b[0]), int(c[0]), thread % 32)
            assert (d[thread], p[thread]) == (values[thread // 32 * 32 + source], inside)


# -- other words for an instruction ------------------------------------------------------------

REORDERED = [
    ("ldmatrix.sync.aligned.m8n8.x4.shared.trans.b16", "ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16"),
    ("ldmatrix.sync.aligned.m8n8.x4.trans.shared::cta.b16", "ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16"),
    ("stmatrix.sync.aligned.m8n8.x1.shared::cta.b16", "stmatrix.sync.aligned.m8n8.x1.shared.b16"),
    ("wmma.load.a.sync.aligned.row.m16n16k16.shared::cta.f16", "wmma.load.a.sync.aligned.row.m16n16k16.shared.f16"),
    ("wmma.mma.sync.aligned.m16n16k16.row.col.f32.f16", "wmma.mma.sync.aligned.row.col.m16n16k16.f32.f16"),
    ("wgmma.mma_async.sync.aligned.m64n8k32.s32.s8.u8.satfinite", "wgmma.mma_async.sync.aligned.m64n8k32.satfinite.s32.s8.u8"),
    ("mbarrier.init.shared.b64", "mbarrier.init.shared::cta.b64"),
    ("ld.v4.global.b32", "ld.global.v4.b32"),
]  # fmt: skip


@pytest.mark.parametrize("modifiers, canonical", REORDERED)
def test_modifiers_may_have_another_order(modifiers, canonical):
    assert isa.instruction(modifiers) is isa.instruction(canonical)
    assert isa.instruction(modifiers).mnemonic == canonical


@pytest.mark.parametrize(
    "text",
    [
        "cvt.rn.s32.f32",
        "mma.sync.aligned.m16n8k16.row.col.f16.f16.f16.f32",
        "wgmma.sync.mma_async.aligned.m64n8k16.f32.f16.f16",
        "createpolicy.fractional.L2::evict_unchanged.L2::evict_last.b64",
    ],
)
def test_types_and_names_keep_their_order(text):
    with pytest.raises(UnknownInstruction):
        isa.instruction(text)


def test_examples_without_aligned_are_told_what_to_write():
    """Example of 9.7.14.4.5, which ptxas refuses from PTX 6.3 on."""
    with pytest.raises(
        UnknownInstruction,
        match=r"\.aligned is missing; write wmma\.mma\.sync\.aligned\.row\.col\.m16n16k16\.f32\.f32$",
    ):
        isa.instruction("wmma.mma.sync.m16n16k16.row.col.f32.f32")


MATRIX_OPCODES = ("ldmatrix", "stmatrix", "movmatrix", "mma", "wmma", "wgmma")


def moved(instr: Instruction, draw: random.Random) -> str:
    """The text with a modifier that is not a type, layout or part of the name at another place."""
    opcode, *words = instr.ptx.split(".")
    named = 1 if opcode.startswith("w") else 0
    named += words[:1] in (["load"], ["store"])
    fixed = [
        w
        for w in words[named:]
        if w in ("row", "col") or re.fullmatch(r"[a-z]{1,2}\d+\w*", w) and w[0] not in "mxn"
    ]
    free = [w for w in words[named:] if w not in fixed]
    draw.shuffle(free)
    places = sorted(draw.sample(range(len(fixed) + len(free)), len(fixed)))
    parts: list[str] = []
    for i in range(len(fixed) + len(free)):
        parts.append(fixed.pop(0) if i in places else free.pop(0))
    return ".".join([opcode, *words[:named], *parts])


@pytest.mark.parametrize("opcode", MATRIX_OPCODES)
def test_the_assembler_takes_what_the_lookup_takes(opcode):
    """Texts with modifiers in random order: the table knows them, and so does the assembler."""
    draw = random.Random(opcode)
    every = [i for i in isa.instructions(opcode) if i.ptx == i.mnemonic and "popc" not in i.mnemonic]
    for instr in draw.sample(every, min(len(every), 6)):
        text = moved(instr, draw)
        assert isa.instruction(text) is instr
        arch = next(a for a in ARCH_NAMES if instr.requires.met_by(ARCHS[a]))
        version = version_of([instr], arch)
        if version <= newest_ptx():
            assert not assembles(module([instr], arch, version).replace(instr.ptx, text), arch), text


def test_each_effect_has_a_meaning_and_an_instruction():
    used = reduce(or_, (instr.effects for instr in isa.instructions()), Effect.PRINT)
    assert [*MEANINGS] == [*Effect]  # prints are made for each format, and not in the table
    assert all(effect in used for effect in Effect)
