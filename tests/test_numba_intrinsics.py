"""The table's instructions under @cuda.jit: text, types, errors, machine code, and the GPU's bits."""

import re
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("numba.cuda.extending", reason="needs numba-cuda")

from numba import cuda
from numba.core.errors import NumbaError
from numba.cuda import types

import tensorcore_dsl as tc
from tensorcore_dsl import isa
from tensorcore_dsl import numba as tn
from tensorcore_dsl.arch import ARCHS
from tensorcore_dsl.codegen import assemble
from tensorcore_dsl.errors import OperandError, UnknownInstruction
from tensorcore_dsl.layout import Layout
from tensorcore_dsl.numba import assembly, registers
from tensorcore_dsl.numba.intrinsics import _fixed
from tensorcore_dsl.runtime import driver
from tests.assembler import assembles, newest_ptx
from tests.numba_kernels import (
    compiled,
    evaluated,
    kernel_of,
    pattern_of,
    register_images,
    register_kernel,
    sample,
    statements,
)

ROOT = Path(__file__).parent.parent

# -- forms ---------------------------------------------------------------------------------------


PRODUCTS = [
    ("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32", "sm_80"),
    ("mma.sync.aligned.m16n8k16.row.col.f16.f16.f16.f16", "sm_80"),
    ("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32", "sm_80"),
    ("mma.sync.aligned.m8n8k4.row.col.f64.f64.f64.f64.rn", "sm_80"),
    ("mma.sync.aligned.m16n8k32.row.col.satfinite.s32.s8.u8.s32", "sm_80"),
    ("mma.sync.aligned.m16n8k256.row.col.s32.b1.b1.s32.and.popc", "sm_80"),
    ("mma.sync.aligned.m16n8k32.row.col.f32.e4m3.e5m2.f32", "sm_89"),
    ("mma.sp::ordered_metadata.sync.aligned.m16n8k32.row.col.f32.f16.f16.f32", "sm_80"),
    ("mma.sync.aligned.m16n8k64.row.col.kind::mxf4.block_scale.scale_vec::2X.f32.e2m1.e2m1.f32.ue8m0", "sm_120a"),
    ("wmma.mma.sync.aligned.row.col.m16n16k16.f32.f32", "sm_80"),
    ("wgmma.mma_async.sync.aligned.m64n256k16.f32.bf16.bf16", "sm_90a"),
    ("wgmma.mma_async.sync.aligned.m64n8k32.s32.s8.s8.registers", "sm_90a"),
    ("wgmma.mma_async.sp.sync.aligned.m64n16k32.f16.f16.f16", "sm_90a"),
]  # fmt: skip


@pytest.mark.parametrize("name, arch", PRODUCTS)
def test_a_product_is_one_statement(name, arch):
    """One instruction for one call, with the operands of its row, in the kernel's own code."""
    instr = isa.instruction(name)
    function, arguments = kernel_of([instr])
    text = compiled(function, *arguments, arch=arch)
    actual = statements(text, re.escape(instr.ptx))
    assert len(actual) == 1
    if "wgmma" in name:  # names the registers that it writes alone
        many = "{" + ", ".join(re.findall(r"%\w+", actual[0])[: instr.d.registers]) + "}"
        assert actual[0].startswith(f"{instr.ptx} {many}, ")
    else:
        assert re.fullmatch(pattern_of(instr), actual[0]), actual[0]


def test_the_pattern_refuses_other_texts():
    instr = isa.instruction("mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32")
    good = f"{instr.ptx} {{%f1, %f2, %f3, %f4}}, {{%r1, %r2}}, {{%r3}}, {{%f1, %f2, %f3, %f4}}"
    assert re.fullmatch(pattern_of(instr), good)
    for bad in (
        good.replace("{%r3}", "%r3"),
        good.replace(", %f4}", "}", 1),
        good.replace("f32.f16", "f16.f16"),
    ):
        assert not re.fullmatch(pattern_of(instr), bad)


@pytest.mark.quick(lambda arch: arch)
@pytest.mark.parametrize("arch, instrs", sample(), ids=lambda x: x if isinstance(x, str) else len(x))
def test_forms_of_the_table_assemble(arch, instrs):
    """Each opcode, with each kind of operands, prints as its row says."""
    instrs = [instr for instr in instrs if instr.version <= newest_ptx()]
    function, arguments = kernel_of(instrs)
    text, _ = cuda.compile_ptx(function, tuple(arguments), cc=ARCHS[arch].cc)
    assert not assembles(text.rstrip("\0"), arch)
    missing = [f.mnemonic for f in instrs if f.opcode != "wgmma" and not re.search(pattern_of(f), text)]
    assert not missing


def test_threads_that_meet_are_not_parted():
    """Warp-wide forms are convergent, so that no optimiser moves them into a branch."""
    function, arguments = kernel_of([isa.instruction(PRODUCTS[0][0])])
    dispatcher = cuda.jit(function)
    from numba.cuda.compiler import compile_cuda

    made = compile_cuda(dispatcher.py_func, types.void, arguments, cc=(8, 0))
    line = next(x for x in made.library.get_llvm_str().splitlines() if "asm sideeffect" in x)
    assert "convergent" in line and "~{memory}" not in line


@pytest.mark.parametrize(
    "name, orders_memory",
    [
        ("ldmatrix.sync.aligned.m8n8.x4.shared.b16", True),
        ("cp.async.commit_group", True),
        ("fence.proxy.async", True),
        ("wgmma.mma_async.sync.aligned.m64n8k16.f32.f16.f16", True),
        ("mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32", False),
        ("shfl.sync.bfly.b32", False),
        ("ex2.approx.f32", False),
    ],
)
def test_who_orders_memory(name, orders_memory):
    """Stores stay above what reads memory, and move freely past what does not."""
    instr = isa.instruction(name)
    assert ("~{memory}" in assembly.assembly(instr, _fixed(instr, {})).constraints) == orders_memory


@pytest.mark.parametrize("source", ["", ".registers"])
def test_wgmma_adds_to_the_registers_it_is_given(source):
    """D's registers hold C: its inputs are tied to the outputs, in order."""
    instr = isa.instruction(f"wgmma.mma_async.sync.aligned.m64n16k16.f32.f16.f16{source}")
    actual = assembly.assembly(instr, _fixed(instr, {})).constraints.split(",")
    assert actual[:8] == ["=f"] * 8 and actual[8:16] == [str(i) for i in range(8)]
    assert actual[16:] == ["r"] * 4 * bool(source) + ["l"] * (1 if source else 2) + ["r", "~{memory}"]


# -- memory --------------------------------------------------------------------------------------

PRODUCT = tn.mma.m16n8k16(tc.f16, tc.f16, tc.f32)
ZERO = tn.zeros(PRODUCT.c)


def moves(target, source):
    tile = cuda.shared.array((16, 40), np.float16, 16)
    lane = cuda.threadIdx.x
    tn.cp_async(tile, (lane // 2, lane % 2 * 8), source, (lane // 2, 0), 16)
    tn.cp_async(tile, (lane // 2, lane % 2 * 8), source, (lane // 2, 8), 4)
    tn.cp_async(tile, (lane // 2, lane % 2 * 8), source, (lane // 2, 16), 16, 8)
    tn.cp_async_commit()
    tn.cp_async_wait(0)
    cuda.syncthreads()
    four = tn.ldmatrix(tile, (lane % 16, lane // 16 * 8), 4)
    two = tn.ldmatrix(tile, (lane % 16, 0), count=2, trans=True)
    one = tn.ldmatrix(tile, (lane % 8, 0), 1)
    turned = tn.movmatrix(one[0])
    tn.stmatrix(tile, (lane % 16, lane // 16 * 8), four)
    tn.stmatrix(tile, (lane % 16, 0), two, True)
    tn.stmatrix(tile, (lane % 8, 0), (turned,))
    cuda.syncthreads()
    target[lane] = tile[lane % 16, lane // 16]
    target[32 + lane] = tn.shared_address((tile, (2, 5))) - tn.shared_address(tile)


def test_matrices_and_copies():
    text = compiled(moves, types.float32[::1], types.float16[:, ::1], arch="sm_90a")
    found = [x.split(" ")[0] for x in statements(text, r"(?:ldmatrix|stmatrix|movmatrix|cp\.async)\.")]
    assert found == [
        "cp.async.cg.shared.global",
        "cp.async.ca.shared.global",
        "cp.async.cg.shared.global",
        "cp.async.commit_group",
        "cp.async.wait_group",
        "ldmatrix.sync.aligned.m8n8.x4.shared.b16",
        "ldmatrix.sync.aligned.m8n8.x2.trans.shared.b16",
        "ldmatrix.sync.aligned.m8n8.x1.shared.b16",
        "movmatrix.sync.aligned.m8n8.trans.b16",
        "stmatrix.sync.aligned.m8n8.x4.shared.b16",
        "stmatrix.sync.aligned.m8n8.x2.trans.shared.b16",
        "stmatrix.sync.aligned.m8n8.x1.shared.b16",
    ]
    sizes = [re.findall(r", (\d+|%r\d+)", x) for x in statements(text, r"cp\.async\.c[ag]")]
    assert [len(x) for x in sizes] == [1, 1, 2] and [x[0] for x in sizes] == ["16", "4", "16"]


def test_addresses_of_elements():
    """[2, 5] of rows of 40 f16 is 170 bytes behind the start."""
    text = compiled(moves, types.float32[::1], types.float16[:, ::1], arch="sm_90a")
    assert len(re.findall(r"add\.s64\s+%rd\d+, %rd\d+, 170;", text)) == 1


def test_generic_forms_take_arrays_and_pairs():
    vector = tn.intrinsic("ld.global.v4.b32")
    write = tn.intrinsic("st.shared.v2.b32")

    def kernel(x, y):
        tile = cuda.shared.array(64, np.uint32)
        found = vector((x, 4 * cuda.threadIdx.x))
        write((tile, 2), (found[0], found[3]))
        y[0] = vector(x)[1] + tile[cuda.threadIdx.x]

    text = compiled(kernel, types.uint32[::1], types.uint32[::1])
    assert len(statements(text, r"ld\.global\.v4\.b32")) == 2
    assert len(statements(text, r"st\.shared\.v2\.b32")) == 1


# -- wgmma ---------------------------------------------------------------------------------------

WIDE = tn.wgmma.m64n128k16(tc.bf16, tc.bf16, tc.f32)
WIDE_ZERO = tn.zeros(WIDE.c)
store_wide = tn.store_elements(WIDE.d)


def pipeline(out, n):
    tile_a = cuda.shared.array(64 * 64, np.uint16, 128)
    tile_b = cuda.shared.array(128 * 64, np.uint16, 128)
    acc = WIDE_ZERO
    for _ in range(n):
        acc = tn.wgmma_fence(acc)
        for k in range(4):
            a = tn.wgmma_descriptor((tile_a, 16 * k), 16, 1024, 128)
            acc = WIDE(acc, a, tn.wgmma_descriptor((tile_b, 16 * k), 16, 1024, 128), True)
        tn.wgmma_commit()
        acc = tn.wgmma_wait(0, acc)
    store_wide(out, 0, 0, cuda.threadIdx.x, acc)


def careless(out, n):
    tile = cuda.shared.array(128 * 64, np.uint16, 128)
    acc = WIDE_ZERO
    for _ in range(n):
        acc = tn.wgmma_fence(acc)
        place = tn.wgmma_descriptor(tile, 16, 1024, 128)
        acc = WIDE(acc, place, place, True)
        tn.wgmma_commit()
    store_wide(out, 0, 0, cuda.threadIdx.x, acc)


@pytest.mark.parametrize("kernel, remarks", [(pipeline, False), (careless, True)])
def test_wgmma_is_not_serialised(kernel, remarks):
    """The assembler remarks upon a loop without its wait, and says nothing of one with it."""
    text, _ = cuda.compile_ptx(kernel, (types.float32[:, ::1], types.int32), cc=(9, 0, "a"))
    text = text.rstrip("\0")
    name = re.search(r"\.entry (\w+)", text)[1]
    log = assemble.assemble(text, "sm_90a", name).resources.warnings
    assert bool(log) == remarks, log
    assert len(statements(text, r"wgmma\.mma_async")) >= 1


def test_wgmma_waits_before_the_registers_are_read():
    """No store of an accumulator stands above the wait."""
    text = compiled(pipeline, types.float32[:, ::1], types.int32, arch="sm_90a")
    assert text.index("wgmma.fence") < text.index("wgmma.mma_async") < text.index("wgmma.wait_group")
    assert text.index("wgmma.wait_group") < text.index("st.global.f32")
    assert len(re.findall(r"st\.global\.f32", text)) == 64


@pytest.mark.parametrize("swizzle, code", [(0, 0), (128, 1), (64, 2), (32, 3)])
def test_descriptor_bits(swizzle, code):
    """9.7.15.5.1.2.2: start, leading and stride in units of 16 bytes, swizzle at bit 62."""
    source = f"def kernel(out):\n    out[0] = wgmma_descriptor(0x1230, 128, 1024, {swizzle})\n"
    namespace = {"wgmma_descriptor": tn.wgmma_descriptor}
    exec(source, namespace)
    text = compiled(namespace["kernel"], types.uint64[::1], arch="sm_90a")
    bits = 0x123 | 8 << 16 | 64 << 32 | code << 62
    signed = bits - (1 << 64) if bits >> 63 else bits
    assert re.search(rf"mov\.u64\s+%rd\d+, {signed};", text)


def test_link_time_optimisation_keeps_the_instructions():
    """Numba's launches link LTO-IR."""
    from numba.cuda.cudadrv.driver import _Linker

    code, _ = cuda.compile(
        pipeline,
        (types.float32[:, ::1], types.int32),
        cc=(9, 0, "a"),
        output="ltoir",
        device=False,
        abi="numba",
    )
    linker = _Linker(cc=(9, 0, "a"), lto=True)
    linker.add_ltoir(code)
    assert linker.complete().code[:4] == b"\x7fELF"


# -- layouts -------------------------------------------------------------------------------------


@pytest.mark.parametrize("name, _", PRODUCTS)
def test_layouts_in_kernels_are_the_table_s(name, _):
    instr = isa.instruction(name)
    layouts = {o.layout.name: o.layout for o in (*instr.results, *instr.operands) if o.is_fragment}
    for layout in layouts.values():
        assert np.array_equal(evaluated(layout), layout.coords)


def test_every_operation_of_a_formula():
    def formula(thread, slot):
        return (40 - thread) % 7 + 3 * slot + (thread - thread % 4), 2 + slot * 5 // 3 - 1

    layout = Layout("made up", 16, 16, tc.f32, formula, threads=32)
    assert np.array_equal(evaluated(layout), layout.coords)


@pytest.mark.parametrize(
    "instr, array, loads, width",
    [
        (PRODUCT, types.float16[:, ::1], 8, "16"),
        (PRODUCT, types.uint16[:, :], 8, "16"),
        (tn.mma.m16n8k32(tc.s8, tc.s8, tc.s32), types.int8[:, ::1], 16, "8"),
        (tn.mma.m16n8k8(tc.tf32, tc.tf32, tc.f32), types.float32[:, ::1], 4, "32"),
        (tn.mma.m8n8k4(tc.f64, tc.f64, tc.f64), types.float64[:, ::1], 1, "64"),
    ],
)
def test_elements_are_loaded_once(instr, array, loads, width):
    load = tn.load_elements(instr.a)

    def kernel(x, out):
        found = load(x, 16, 8, cuda.threadIdx.x)
        for i in range(len(found)):
            out[cuda.threadIdx.x, i] = found[i]

    kind = registers.element_type(instr.a)
    text = compiled(kernel, array, kind[:, ::1])
    assert len(re.findall(rf"ld(?:\.global)?\.[a-z]{width}\b", text)) == loads


def test_fragments_are_stored_as_the_array_s_type():
    wide = tn.mma.m16n8k16(tc.f16, tc.f16, tc.f16)
    store, store_packed = tn.store_elements(PRODUCT.d), tn.store_elements(wide.d)

    def kernel(x, f, d, h):
        lane = cuda.threadIdx.x
        store(f, 0, 0, lane, (x[0], x[1], x[2], x[3]))
        store(d, 0, 0, lane, (x[0], x[1], x[2], x[3]))
        store_packed(h, 0, 0, lane, (lane, lane + 1))

    arrays = (types.float32[:, ::1], types.float64[:, ::1], types.float16[:, ::1])
    text = compiled(kernel, types.float32[::1], *arrays)
    assert [len(re.findall(rf"st\.global\.{t}", text)) for t in ("f32", "f64", "u16")] == [4, 4, 4]


# -- names and errors ----------------------------------------------------------------------------


def test_intrinsics_describe_themselves():
    assert PRODUCT.instruction is isa.instruction(PRODUCT.ptx) and PRODUCT.a is PRODUCT.instruction.a
    assert tn.mma.m16n8k16(tc.f16, tc.f16, tc.f32) is PRODUCT is tn.intrinsic(PRODUCT.ptx)
    assert set(dir(tn.mma)) == set(dir(tc.mma)) and "m16n8k16" in repr(tn.mma)
    assert tn.mma.sp.m16n8k32(tc.f16, tc.f16, tc.f32, f=1) is not tn.mma.sp.m16n8k32(tc.f16, tc.f16, tc.f32)
    assert ZERO == (0.0,) * 4 and all(type(z) is np.float32 for z in ZERO)
    with pytest.raises(NotImplementedError, match="pure-python"):
        PRODUCT((), (), ())


def test_sparse_products_with_their_selector_fixed():
    fixed = tn.mma.sp.m16n8k32(tc.f16, tc.f16, tc.f32, f=1)

    def kernel(out, x):
        out[0] = fixed((x, x, x, x), (x, x, x, x), c=ZERO, e=x)[0]

    text = compiled(kernel, types.float32[::1], types.uint32)
    (found,) = statements(text, r"mma\.sp")
    assert found.endswith(", 1")


MISTAKES = [
    ("PRODUCT((x, x), (x, x), ZERO)", r"a is UniTuple\(int32 x 2\); allowed is a tuple of 4 x uint32 or another integer, fragment mma.A"),
    ("PRODUCT((x, x, x, x), (f, f), ZERO)", r"b is UniTuple\(float32 x 2\); allowed is a tuple of 2 x uint32"),
    ("PRODUCT((x, x, x, x), (x, x), (0.0, 0.0, 0.0, 0.0))", r"c is UniTuple\(float64 x 4\); allowed is a tuple of 4 x float32, fragment mma.C"),
    ("PRODUCT((x, x, x, x), (x, x))", r"takes \(a, b, c\); 2 arguments were given"),
    ("PRODUCT((x, x, x, x), (x, x), d=ZERO)", r"takes \(a, b, c\); 2 arguments, d= were given"),
    ("exponential(x)", r"a is int32; allowed is float32"),
    ("sparse((x, x, x, x), (x, x, x, x), ZERO, x, x)", r"f is int32; it stands in the instruction, so it must be a constant: 0, 1"),
    ("sparse((x, x, x, x), (x, x, x, x), ZERO, x, 7)", r"f is 7; allowed is 0, 1"),
    ("read(f)", r"p is float32; allowed is an address: an integer, an array, or a pair"),
    ("read((y, (0, 0)))", r"p is Tuple\(array.*\); allowed is an address"),
    ("tn.ldmatrix(y, (0, 0), 4)", r"ldmatrix takes an array and an index of as many integers as it has dimensions"),
    ("tn.ldmatrix(y, 0, x)", r"count is int32; it must be a constant, one of \(1, 2, 4\)"),
    ("tn.ldmatrix(y, 0, 3)", r"count is .*3.*; it must be a constant"),
    ("tn.stmatrix(y, 0, (x, x, x))", r"the length of fragment is 3"),
    ("tn.stmatrix(y, 0, (f, f))", r"fragment is float32; allowed is uint32"),
    ("tn.cp_async(y, 0, y, 0, 12)", r"bytes is .*12.*; it must be a constant, one of 4, 8, 16"),
    ("tn.cp_async(y, 0, x, 0, 16)", r"is not an index of int32"),
    ("tn.wgmma_descriptor(y, 24, 128)", r"leading is Literal.*24.*; it must be a constant, a multiple of 16 up to 262128"),
    ("tn.wgmma_descriptor(y, 16, x)", r"stride is int32; it must be a constant"),
    ("tn.wgmma_descriptor(y, 16, 128, 48)", r"swizzle is .*48.*; it must be a constant, one of 0, 128, 64, 32"),
    ("tn.wgmma_wait(x, ZERO)", r"pending is int32; it must be a constant"),
    ("tn.wgmma_fence(f)", r"accumulator is float32; allowed is the tuple"),
    ("load(y, 0, 0, x)", r"array is array\(float32, 1d, C\); allowed are two-dimensional arrays of float16"),
    ("place(f, 0)", r"thread is float32; allowed is an integer"),
]  # fmt: skip


@pytest.mark.parametrize("call, message", MISTAKES)
def test_mistakes_are_explained(call, message):
    namespace = {
        "PRODUCT": PRODUCT, "ZERO": ZERO, "tn": tn,
        "exponential": tn.intrinsic("ex2.approx.f32"),
        "sparse": tn.mma.sp.m16n8k32(tc.f16, tc.f16, tc.f32),
        "read": tn.intrinsic("ld.global.b32"),
        "load": tn.load_elements(PRODUCT.a),
        "place": tn.coordinates(PRODUCT.a),
    }  # fmt: skip
    exec(f"def kernel(x, f, y):\n    {call}\n", namespace)
    with pytest.raises(NumbaError, match=message):
        cuda.compile_ptx(
            namespace["kernel"], (types.int32, types.float32, types.float32[::1]), cc=(9, 0, "a")
        )


@pytest.mark.parametrize(
    "instr, cc, message",
    [
        (WIDE, (8, 0), r"sm_80 has no wgmma.*; it exists on sm_90a"),
        (WIDE, (10, 0, "a"), r"sm_100a has no wgmma"),
        (tn.mma.m16n8k32(tc.e4m3, tc.e4m3, tc.f32), (8, 6), r"sm_86 has no mma.*; it exists on sm_89, sm_90"),
    ],
)
def test_architectures_that_lack_a_form(instr, cc, message):
    function, arguments = kernel_of([instr.instruction])
    with pytest.raises(Exception, match=message):
        cuda.compile_ptx(function, tuple(arguments), cc=cc)


def test_forms_that_cannot_be():
    with pytest.raises(OperandError, match="has no immediate 'g'; it has f"):
        tn.mma.sp.m16n8k32(tc.f16, tc.f16, tc.f32)
        tn.intrinsic("mma.sp.sync.aligned.m16n8k32.row.col.f32.f16.f16.f32", g=0)
    with pytest.raises(OperandError, match="f is 2; allowed is 0, 1"):
        tn.mma.sp.m16n8k32(tc.f16, tc.f16, tc.f32, f=2)
    with pytest.raises(UnknownInstruction, match="no instruction is called 'mna'"):
        tn.intrinsic("mna.sync")
    with pytest.raises(UnknownInstruction, match="has no shape m16n8k17"):
        tn.mma.m16n8k17(tc.f16, tc.f16, tc.f32)
    with pytest.raises(OperandError, match="take the address of a cuda.shared.array"):
        tn.intrinsic("shared.base")
    with pytest.raises(OperandError, match="is not a fragment"):
        tn.load_elements(tn.intrinsic("ex2.approx.f32").a)
    with pytest.raises(OperandError, match="smaller than a byte"):
        tn.load_elements(tn.mma.m16n8k32(tc.s4, tc.s4, tc.s32).a)


# -- on the GPU ----------------------------------------------------------------------------------

gpu = pytest.mark.skipif(not driver.cuda_available(), reason="there is no GPU")
CC = (0, 0)
if driver.cuda_available():
    CC = tuple(cuda.get_current_device().compute_capability)
ON_HOPPER = [name for name, arch in PRODUCTS if arch != "sm_120a" and not name.startswith("wgmma")]


def consistent(operand, image):
    """The image with every copy of an element equal to its first one (wmma holds A and B twice)."""
    if operand.layout is None or operand.layout.copies == 1:
        return image
    bits = 32 // operand.layout.per_register
    shifts = np.arange(operand.layout.per_register, dtype=np.uint32) * bits
    elements = (image[..., None] >> shifts & np.uint32(2**bits - 1)).reshape(len(image), -1)
    places = operand.layout.coords @ (operand.layout.cols, 1)
    _, first = np.unique(places, return_index=True)
    table = elements.reshape(-1)[first]
    return np.bitwise_or.reduce(table[places].reshape(*image.shape, -1) << shifts, axis=-1)


@gpu
@pytest.mark.gpu
@pytest.mark.parametrize("name", ON_HOPPER)
def test_gpu_gives_the_emulator_s_bits(name):
    instr = isa.instruction(name)
    arch = "sm_90a" if CC == (9, 0) else f"sm_{CC[0]}{CC[1]}"
    if arch not in instr.requires.archs():
        pytest.skip(f"{arch} has no {name}")
    given = register_images(instr, np.random.default_rng(7))
    given = [consistent(o, g) for o, g in zip(instr.operands, given)]
    views = []
    for operand, image in zip(instr.operands, given):
        if operand.kind != "imm":
            views.append(cuda.to_device(image.view(str(registers.element_type(operand)))))
    out = np.zeros((32, instr.d.registers), str(registers.element_type(instr.d)))
    held = cuda.to_device(out)
    register_kernel(instr)[1, 32](*views, held)
    flat = [
        g if isinstance(g, int) else (g[:, 0] if not o.is_fragment else g)
        for o, g in zip(instr.operands, given)
    ]
    wanted = tc.emulate(instr.mnemonic, *flat, arch=arch)
    assert np.array_equal(held.copy_to_host().view(wanted.dtype), wanted)


@gpu
@pytest.mark.gpu
def test_gpu_moves_matrices():
    """ldmatrix, stmatrix, movmatrix and cp.async against what they mean."""
    if CC < (9, 0):
        pytest.skip("stmatrix is of sm_90")
    load, store = tn.load_elements(PRODUCT.a), tn.store_elements(tn.mma.m16n8k16(tc.f16, tc.f16, tc.f16).d)

    @cuda.jit
    def kernel(source, same, copied, turned):
        tile = cuda.shared.array((16, 24), np.float16, 16)
        back = cuda.shared.array((16, 24), np.float16, 16)
        lane = cuda.threadIdx.x
        i, j = lane // 2, lane % 2 * 8
        tn.cp_async(tile, (i, j), source, (i, j), 16)
        tn.cp_async_commit()
        tn.cp_async_wait(0)
        cuda.syncthreads()
        found = tn.ldmatrix(tile, (lane % 16, lane // 16 * 8), 4)
        wanted = load(source, 0, 0, lane)
        for k in range(4):
            same[lane, k] = found[k] == wanted[k]
        tn.stmatrix(back, (lane % 16, lane // 16 * 8), found)
        cuda.syncthreads()
        for k in range(8):
            copied[i, j + k] = back[i, j + k]
        flipped = tn.ldmatrix(tile, (lane % 16, 0), 2, True)
        store(turned, 0, 0, lane, (tn.movmatrix(flipped[0]), tn.movmatrix(flipped[1])))

    source = np.random.default_rng(3).standard_normal((16, 16)).astype(np.float16)
    same = cuda.to_device(np.zeros((32, 4), np.int32))
    copied = cuda.to_device(np.zeros((16, 16), np.float16))
    turned = cuda.to_device(np.zeros((16, 8), np.float16))
    kernel[1, 32](cuda.to_device(source), same, copied, turned)
    assert same.copy_to_host().all()
    assert np.array_equal(copied.copy_to_host(), source)
    assert np.array_equal(turned.copy_to_host(), source[:, :8])


@gpu
@pytest.mark.gpu
@pytest.mark.parametrize(
    "kind", [(tc.f16, tc.f32), (tc.tf32, tc.f32), (tc.s8, tc.s32), (tc.f64, tc.f64)], ids=str
)
def test_gpu_multiplies_by_elements(kind):
    """A product of matrices with each type, B stored by columns, against NumPy."""
    shape = {"f16": "m16n8k16", "tf32": "m16n8k8", "s8": "m16n8k32", "f64": "m8n8k4"}[kind[0].name]
    instr = getattr(tn.mma, shape)(kind[0], kind[0], kind[1])
    m, n, k = instr.instruction.shape
    la, lb, sd, zero = (
        tn.load_elements(instr.a),
        tn.load_elements(instr.b),
        tn.store_elements(instr.d),
        tn.zeros(instr.c),
    )

    @cuda.jit
    def kernel(a, b, d):
        lane, row, col = cuda.threadIdx.x, m * cuda.blockIdx.x, n * cuda.blockIdx.y
        acc = zero
        for step in range(0, a.shape[1], k):
            acc = instr(la(a, row, step, lane), lb(b.T, step, col, lane), acc)
        sd(d, row, col, lane, acc)

    rng = np.random.default_rng(1)
    a, b = (rng.integers(-4, 5, (size, 64)).astype(kind[0].numpy) for size in (32, 16))
    d = cuda.to_device(np.zeros((32, 16), kind[1].numpy))
    kernel[(32 // m, 16 // n), 32](cuda.to_device(a), cuda.to_device(b), d)
    assert np.array_equal(d.copy_to_host(), a.astype(np.float64) @ b.T.astype(np.float64))


def page():
    return re.findall(r"^```python\n(.*?)^```$", (ROOT / "docs" / "numba.md").read_text(), re.M | re.S)


def test_the_tutorial_runs_its_kernels_where_there_is_a_gpu():
    """What the next test relies on: the page compares each of its kernels with NumPy."""
    text = "".join(page())
    kernels = re.findall(r"@cuda\.jit\ndef (\w+)", text)
    assert len(kernels) == 4 and "cuda.is_available()" in text
    assert set(re.findall(r"run\((\w+), \(", text)) == set(kernels)


@gpu
@pytest.mark.gpu
def test_gpu_runs_the_tutorial():
    namespace = {"__name__": "__main__"}
    for block in page():
        exec(compile(block, "docs/numba.md", "exec"), namespace)
