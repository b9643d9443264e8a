"""Mnemonics of the instructions that the language's functions and operators emit.

All code outside `isa/` takes the text of an instruction from here, so that only the table spells
instructions. A constant is a complete mnemonic; a function builds one from types and modifiers. Section
numbers refer to the PTX manual.
"""

from __future__ import annotations

from contextlib import suppress
from functools import cache

from tensorcore_dsl.dtypes import DType
from tensorcore_dsl.errors import UnknownInstruction
from tensorcore_dsl.isa.lookup import instruction, instructions

# -- arithmetic, logic and comparison (9.7.1 to 9.7.8) ----------------------------------------

EXPENSIVE_OPCODES = frozenset({"div", "rem", "sqrt"})  # dozens of machine instructions each
PERMUTE_BYTES = "prmt.b32"
INTEGER_PRODUCTS = tuple(f"mul.{part}.{sign}" for part in ("lo", "wide") for sign in "su")
INDEX_PRODUCT = "mul.lo.s32"
INDEX_CHOICE = "selp.b32"
INDEX_ARITHMETIC = frozenset(
    {INDEX_PRODUCT, INDEX_CHOICE, "neg.s32", "cvt.s64.s32", "cvt.u64.s32", "mul.wide.s32", "mul.lo.u32"}
    | {f"{operation}.{sign}{bits}" for operation in ("add", "sub") for sign in "su" for bits in (32, 64)}
)
MOVE = "mov"  # opcode, of special registers, too
LEFT_SHIFT, BITWISE_AND, LOOKUP_LOGIC = "shl", "and", "lop3"  # opcodes
# Their results keep divisors that all operands share.
KEEPING_DIVISORS = frozenset({"add", "sub", "min", "max", "cvt"})


def binary(operation: str, dtype: DType) -> str:
    """add, sub, mul, div or rem: floats round to nearest, mul of integers gives the low half."""
    if dtype.is_float:
        return f"{operation}.rn.{dtype}"
    return f"{operation}.lo.{dtype}" if operation == "mul" else f"{operation}.{dtype}"


def unary(operation: str, dtype: DType) -> str:
    """neg or abs."""
    return f"{operation}.{dtype}"


def extreme(operation: str, dtype: DType, nan: str = "") -> str:
    """min or max; with nan=".NaN", a NaN operand gives NaN."""
    return f"{operation}{nan}.{dtype}"


def multiply_wide(dtype: DType) -> str:
    """The full product of two integers, twice as wide as its operands."""
    return f"mul.wide.{dtype}"


def multiply_add(dtype: DType, rounding: str = "rn") -> str:
    """a * b + c: floats are rounded once, integers give the low half of the product plus c."""
    return f"fma.{rounding}.{dtype}" if dtype.is_float else f"mad.lo.{dtype}"


def bitwise(operation: str, dtype: DType) -> str:
    """and, or, xor or not, of predicates or of the bits of registers."""
    return f"{operation}.{_bits(dtype)}"


def shift_left(dtype: DType) -> str:
    return f"shl.b{dtype.bits}"


def shift_right(dtype: DType) -> str:
    """Signed integers shift in copies of the sign."""
    return f"shr.{dtype}"


def extract_field(dtype: DType) -> str:
    """A bit field as an integer, sign-extended if `dtype` is signed."""
    return f"bfe.{dtype}"


def compare(relation: str, dtype: DType | str) -> str:
    """A predicate: eq, ne, lt, le, gt, ge, neu (not equal, or unordered) or nan (unordered)."""
    return f"setp.{relation}.{dtype}"


def select(bits: int) -> str:
    """One of two registers of this width, by a predicate."""
    return f"selp.b{bits}"


def test_float(property: str, dtype: DType) -> str:
    """A predicate: finite, infinite or notanumber."""
    return f"testp.{property}.{dtype}"


def copy_sign(dtype: DType) -> str:
    """(sign, magnitude)."""
    return f"copysign.{dtype}"


# -- functions of floats (9.7.3) --------------------------------------------------------------

EXP2, LOG2 = "ex2.approx.f32", "lg2.approx.f32"
EXP2_FTZ = "ex2.approx.ftz.f32"
RECIPROCAL, RECIPROCAL_SQRT = "rcp.approx.f32", "rsqrt.approx.f32"
SIN, COS, TANH = "sin.approx.f32", "cos.approx.f32", "tanh.approx.f32"


def square_root(dtype: DType) -> str:
    """Rounded to nearest."""
    return f"sqrt.rn.{dtype}"


# -- moves and conversions (9.7.9) ------------------------------------------------------------


def move(dtype: DType | str) -> str:
    """A copy of a register, or a constant in one."""
    return f"mov.{dtype if isinstance(dtype, str) else _bits(dtype)}"


def pack(bits: int) -> str:
    """Two registers of half the width as one."""
    return f"mov.b{bits}.pack"


def unpack(bits: int) -> str:
    """One register as two of half the width."""
    return f"mov.b{bits}.unpack"


def convert(dtype: DType | str, source: DType | str, modifiers: str = "") -> str:
    """`modifiers` are the rounding, `.relu` and `.satfinite`, with their dots."""
    return f"cvt{modifiers}.{dtype}.{source}"


@cache
def special(register: str) -> str:
    """The move from a special register (chapter 10), such as "laneid", in the register's type."""
    for dtype in ("u32", "u64", "pred"):
        text = f"mov.{dtype}.%{register}"
        with suppress(UnknownInstruction):
            return instruction(text).mnemonic
    known = sorted(f.mnemonic.split("%")[1] for f in instructions("mov") if "%" in f.mnemonic)
    raise UnknownInstruction(f"no special register is called {register!r}; there are {', '.join(known)}")


def _bits(dtype: DType) -> str:
    return "pred" if dtype.kind == "p" else f"b{dtype.register_bits}"


# -- memory (9.7.9, 9.7.13) -------------------------------------------------------------------

SHARED_OPCODE = "shared"  # opcode of the two pseudo-instructions below
STATIC_SHARED, DYNAMIC_SHARED = "shared.base", "shared.dynamic"
CP_ASYNC = "cp.async"
CP_ASYNC_COMMIT, CP_ASYNC_WAIT = "cp.async.commit_group", "cp.async.wait_group"


def load(space: str, bits: int, count: int = 1, cache: str = "") -> str:
    """`count` registers; `cache` holds the cache modifiers with their dots."""
    return f"ld.{space}{cache}{_vector(count)}.b{bits}"


def store(space: str, bits: int, count: int = 1, cache: str = "") -> str:
    """`count` registers; `cache` holds the cache modifiers with their dots."""
    return f"st.{space}{cache}{_vector(count)}.b{bits}"


def store_async(bits: int, count: int) -> str:
    """`count` registers to a CTA of the cluster, whose mbarrier counts their bytes."""
    return f"st.async.weak.shared::cluster.mbarrier::complete_tx::bytes{_vector(count)}.b{bits}"


def reduction_async(operation: str, dtype: DType) -> str:
    """An atomic operation in another CTA of the cluster, whose mbarrier counts the bytes."""
    space = "red.async.relaxed.cluster.shared::cluster.mbarrier::complete_tx::bytes"
    return f"{space}.{_atomic_operation(operation, dtype)}"


def load_parameter(dtype: str) -> str:
    return f"ld.param.{dtype}"


GENERIC_OF_SHARED = "cvta.shared.u64"
ADDRESS_OF_PARAMETER = "cvta.param.u64"  # converts an address in the space of parameters


def _vector(count: int) -> str:
    return "" if count == 1 else f".v{count}"


def cp_async(cache: str, zero_fill: bool) -> str:
    """Global to shared memory; with `zero_fill`, an operand says how many bytes are read."""
    return f"cp.async.{cache}.shared.global{'.zfill' if zero_fill else ''}"


def atomic(space: str, operation: str, dtype: DType, order: str, scope: str) -> str:
    return f"atom{_semantics(order, scope)}.{space}.{_atomic_operation(operation, dtype)}"


def reduction(space: str, operation: str, dtype: DType, order: str, scope: str) -> str:
    """An atomic operation without its old value."""
    return f"red{_semantics(order, scope)}.{space}.{_atomic_operation(operation, dtype)}"


def acquire(bits: int, scope: str) -> str:
    """A load of global memory that acquires."""
    return f"ld.acquire.{scope}.global.b{bits}"


def _semantics(order: str, scope: str) -> str:
    """The modifiers of an order and a scope. PTX spells none for relaxed operations of gpu scope."""
    return "" if (order, scope) == ("relaxed", "gpu") else f".{order}.{scope}"


def _atomic_operation(operation: str, dtype: DType) -> str:
    if operation in ("and", "or", "xor", "exch", "cas"):
        return f"{operation}.b{dtype.bits}"
    if operation == "add" and dtype.name == "s64":
        return "add.u64"
    if dtype.is_float and (dtype.bits == 16 or dtype.lanes == 2):
        return f"{operation}.noftz.{dtype}"
    return f"{operation}.{dtype}"


# -- 8x8 matrices in shared memory (9.7.14.5.15 to .17) ---------------------------------------

LDMATRIX, STMATRIX = "ldmatrix", "stmatrix"
MOVMATRIX = "movmatrix.sync.aligned.m8n8.trans.b16"


def ldmatrix(count: int, transposed: bool) -> str:
    return f"ldmatrix.sync.aligned.m8n8.x{count}{_transposed(transposed)}.shared.b16"


def stmatrix(count: int, transposed: bool) -> str:
    return f"stmatrix.sync.aligned.m8n8.x{count}{_transposed(transposed)}.shared.b16"


def _transposed(transposed: bool) -> str:
    return ".trans" if transposed else ""


# -- warps and barriers of a CTA (9.7.9.6, 9.7.13) --------------------------------------------

BAR_SYNC, BAR_SYNC_COUNT, BAR_ARRIVE = "bar.sync", "bar.sync.count", "bar.arrive"
WARP_SYNC, ELECT, TRAP = "bar.warp.sync", "elect.sync", "trap"


def shuffle(mode: str) -> str:
    """idx, up, down or bfly."""
    return f"shfl.sync.{mode}.b32"


def vote(mode: str) -> str:
    """all, any and uni give a predicate, ballot 32 bits."""
    return f"vote.sync.{mode}.{'b32' if mode == 'ballot' else 'pred'}"


def match_any(bits: int) -> str:
    return f"match.any.sync.b{bits}"


def warp_reduction(operation: str, dtype: DType) -> str:
    """add, min or max of integers; and, or, xor of bits."""
    return f"redux.sync.{operation}.{'b32' if operation in ('and', 'or', 'xor') else dtype}"


# -- mbarriers (9.7.13.15) --------------------------------------------------------------------

MBARRIER_INIT = "mbarrier.init.shared::cta.b64"
MBARRIER_ARRIVE_EXPECT_TX = "mbarrier.arrive.expect_tx.shared::cta.b64"
MBARRIER_TEST_WAIT = "mbarrier.test_wait.parity.shared::cta.b64"
MBARRIER_TRY_WAIT = "mbarrier.try_wait.parity.shared::cta.b64"


def mbarrier_arrive(remote: bool, counted: bool, drops: bool = False) -> str:
    """remote: at an mbarrier of another CTA. counted: an operand says how many arrivals. drops: later
    phases expect fewer."""
    space, drop = "cluster" if remote else "cta", "_drop" if drops else ""
    return f"mbarrier.arrive{drop}.shared::{space}.b64{'.count' if counted else ''}"


def mbarrier_complete_tx(remote: bool) -> str:
    """remote: at an mbarrier of another CTA."""
    return f"mbarrier.complete_tx.shared::{'cluster' if remote else 'cta'}.b64"


def cp_async_arrive(counted: bool) -> str:
    """counted: the phase expects the arrival already."""
    return f"cp.async.mbarrier.arrive{'.noinc' if counted else ''}.shared::cta.b64"


# -- TMA: bulk and tensor copies (9.7.9.25.4, .5) ---------------------------------------------

PREFETCH_TENSOR_MAP = "prefetch.tensormap"
BULK_COMMIT = "cp.async.bulk.commit_group"
BULK_COPY_TO_CLUSTER = "cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes"
FENCE_PROXY_ASYNC = "fence.proxy.async.shared::cta"
FENCE_PROXY_ASYNC_GLOBAL = "fence.proxy.async.global"
FENCE_MBARRIER_INIT = "fence.mbarrier_init.release.cluster"


def bulk_wait(reading: bool) -> str:
    """reading: until the sources have been read, not until the results are written."""
    return f"cp.async.bulk.wait_group{'.read' if reading else ''}"


def tensor_prefetch(rank: int, im2col: bool) -> str:
    """A box of a tensor of `rank` dimensions into the L2 cache."""
    return f"cp.async.bulk.prefetch.tensor.{rank}d.L2.global.{'im2col' if im2col else 'tile'}"


def tensor_load(rank: int, im2col: bool, multicast: bool, cache_hint: bool) -> str:
    """A box to shared memory, counted by an mbarrier."""
    box = f"cp.async.bulk.tensor.{rank}d.shared::cluster.global.{'im2col' if im2col else 'tile'}"
    modifiers = (".multicast::cluster" if multicast else "") + (".L2::cache_hint" if cache_hint else "")
    return f"{box}.mbarrier::complete_tx::bytes{modifiers}"


def tensor_store(rank: int, im2col: bool, operation: str | None) -> str:
    """A box to global memory; with an operation, a reduction into global memory."""
    mode = "im2col_no_offs" if im2col else "tile"
    if operation is None:
        return f"cp.async.bulk.tensor.{rank}d.global.shared::cta.{mode}.bulk_group"
    return f"cp.reduce.async.bulk.tensor.{rank}d.global.shared::cta.{operation}.{mode}.bulk_group"


# -- matrix products (9.7.14, 9.7.15) ---------------------------------------------------------

MMA, WMMA, WGMMA = "mma", "wmma", "wgmma"  # opcodes
WGMMA_MMA = "wgmma.mma_async"
WGMMA_FENCE = "wgmma.fence.sync.aligned"
WGMMA_COMMIT = "wgmma.commit_group.sync.aligned"
WGMMA_WAIT = "wgmma.wait_group.sync.aligned"

# -- clusters, registers, dependent grids (9.7.13.3, 9.7.13.16, 9.7.19) -----------------------

CLUSTER_ARRIVE = "barrier.cluster.arrive.release.aligned"
CLUSTER_WAIT = "barrier.cluster.wait.acquire.aligned"
MAP_SHARED = "mapa.shared::cluster.u32"  # an address of this CTA in another CTA of the cluster
GRIDDEP_WAIT = "griddepcontrol.wait"
GRIDDEP_LAUNCH_DEPENDENTS = "griddepcontrol.launch_dependents"
SETMAXNREG = "setmaxnreg"


def setmaxnreg(grow: bool) -> str:
    return f"setmaxnreg.{'inc' if grow else 'dec'}.sync.aligned.u32"


# -- printing ---------------------------------------------------------------------------------


PRINT_OPCODE = "vprintf"


def printf(dtypes: list[DType]) -> str:
    """A format string and one operand of each type."""
    return ".".join([PRINT_OPCODE, *(dtype.name for dtype in dtypes)])


# -- checked builds ---------------------------------------------------------------------------


CHECK_OPCODE = "check"


def check_index(dtype: DType) -> str:
    """A check of an index of s32, u32 or s64; see `isa.bounds`."""
    return f"check.index.{dtype}"


# -- operands in messages ---------------------------------------------------------------------

FRAGMENT_EXAMPLE = "mma.a"  # an operand with a layout, as a kernel names it
