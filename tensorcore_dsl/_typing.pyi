"""Element types and instructions as type checkers and editors see them.

Written by `make docs` from the table of instructions; there is no module of this name at run time.
"""

from collections.abc import Callable
from typing import Annotated, Any, ClassVar, Protocol, TypeAlias, overload
from typing_extensions import TypeVar

from tensorcore_dsl.dtypes import DType, DTypeLike
from tensorcore_dsl.isa.spec import Instruction, Operand
from tensorcore_dsl.layout import Layout
from tensorcore_dsl.lang.local import Local
from tensorcore_dsl.values.values import RegisterGroup, RuntimeValue, Struct

_T = TypeVar("_T", default=Any)

Const: TypeAlias = Annotated[_T, "known at compile time"]
"""Annotation of a parameter whose value is known at compile time: `Const`, or `Const[int]`."""

class Operators:
    """Python's operators on values of a kernel.

    Results are Any: their types are promoted, and what they go to may be a Python number before.
    """

    def __add__(self, other: Any, /) -> Any: ...
    def __radd__(self, other: Any, /) -> Any: ...
    def __sub__(self, other: Any, /) -> Any: ...
    def __rsub__(self, other: Any, /) -> Any: ...
    def __mul__(self, other: Any, /) -> Any: ...
    def __rmul__(self, other: Any, /) -> Any: ...
    def __truediv__(self, other: Any, /) -> Any: ...
    def __rtruediv__(self, other: Any, /) -> Any: ...
    def __floordiv__(self, other: Any, /) -> Any: ...
    def __rfloordiv__(self, other: Any, /) -> Any: ...
    def __mod__(self, other: Any, /) -> Any: ...
    def __rmod__(self, other: Any, /) -> Any: ...
    def __divmod__(self, other: Any, /) -> Any: ...
    def __rdivmod__(self, other: Any, /) -> Any: ...
    def __and__(self, other: Any, /) -> Any: ...
    def __rand__(self, other: Any, /) -> Any: ...
    def __or__(self, other: Any, /) -> Any: ...
    def __ror__(self, other: Any, /) -> Any: ...
    def __xor__(self, other: Any, /) -> Any: ...
    def __rxor__(self, other: Any, /) -> Any: ...
    def __lshift__(self, other: Any, /) -> Any: ...
    def __rlshift__(self, other: Any, /) -> Any: ...
    def __rshift__(self, other: Any, /) -> Any: ...
    def __rrshift__(self, other: Any, /) -> Any: ...
    def __pow__(self, exponent: Any, /) -> Any: ...
    def __lt__(self, other: Any, /) -> Any: ...
    def __le__(self, other: Any, /) -> Any: ...
    def __gt__(self, other: Any, /) -> Any: ...
    def __ge__(self, other: Any, /) -> Any: ...
    def __eq__(self, other: Any, /) -> Any: ...  # type: ignore[override]
    def __ne__(self, other: Any, /) -> Any: ...  # type: ignore[override]
    def __neg__(self) -> Any: ...
    def __pos__(self) -> Any: ...
    def __abs__(self) -> Any: ...
    def __invert__(self) -> Any: ...
    def __round__(self) -> Any: ...
    def __floor__(self) -> Any: ...
    def __ceil__(self) -> Any: ...
    def __trunc__(self) -> Any: ...
    def __bool__(self) -> bool: ...
    def __int__(self) -> int: ...
    def __float__(self) -> float: ...
    def __index__(self) -> int: ...
    def __hash__(self) -> int: ...

class AnyDType(DType, Any):  # type: ignore[misc]
    """The element type of an array or tile: any of them, also where a dict has `tc.f32` as a key."""

class _ElementType(DType, type):  # type: ignore[misc]
    """The class of the class Element, so that `tc.f32` is a DType and `x: tc.f32` an annotation."""

class _Bits:
    """`x.bits(dtype)` of a value, and `tc.f32.bits`, the width of an element type."""

    @overload
    def __get__(self, instance: None, owner: Any) -> int: ...
    @overload
    def __get__(self, instance: Element, owner: Any) -> _Reinterpret: ...

class _Reinterpret:
    def __call__(self, dtype: DTypeLike) -> Element:
        """Read the register as another type of its size."""

class Element(Operators, metaclass=_ElementType):
    """A value in one register of each thread, of the element type that the annotation names."""

    dtype: DType
    bits: _Bits

    def __init__(self, value: Any) -> None:
        """Convert a value of a kernel to this type, or make a typed constant."""

    def to(
        self, dtype: DTypeLike, *, rounding: str | None = None, relu: bool = False,
        satfinite: bool = False,
    ) -> Any:
        """Converted to `dtype`; options: rounding="rn|rz|rm|rp|rna", relu, satfinite."""

pred: TypeAlias = Element
"""pred: a predicate."""
f64: TypeAlias = Element
"""f64: a float, 64 bits."""
f32: TypeAlias = Element
"""f32: a float, 32 bits."""
tf32: TypeAlias = Element
"""tf32: a float, 32 bits."""
f16: TypeAlias = Element
"""f16: a float, 16 bits."""
bf16: TypeAlias = Element
"""bf16: a float, 16 bits."""
e4m3: TypeAlias = Element
"""e4m3: a float, 8 bits."""
e5m2: TypeAlias = Element
"""e5m2: a float, 8 bits."""
e3m2: TypeAlias = Element
"""e3m2: a float, 6 bits."""
e2m3: TypeAlias = Element
"""e2m3: a float, 6 bits."""
e2m1: TypeAlias = Element
"""e2m1: a float, 4 bits."""
ue8m0: TypeAlias = Element
"""ue8m0: a float, 8 bits."""
ue4m3: TypeAlias = Element
"""ue4m3: a float, 8 bits."""
s64: TypeAlias = Element
"""s64: a signed integer, 64 bits."""
s32: TypeAlias = Element
"""s32: a signed integer, 32 bits."""
s16: TypeAlias = Element
"""s16: a signed integer, 16 bits."""
s8: TypeAlias = Element
"""s8: a signed integer, 8 bits."""
s4: TypeAlias = Element
"""s4: a signed integer, 4 bits."""
u64: TypeAlias = Element
"""u64: an unsigned integer, 64 bits."""
u32: TypeAlias = Element
"""u32: an unsigned integer, 32 bits."""
u16: TypeAlias = Element
"""u16: an unsigned integer, 16 bits."""
u8: TypeAlias = Element
"""u8: an unsigned integer, 8 bits."""
u4: TypeAlias = Element
"""u4: an unsigned integer, 4 bits."""
b1: TypeAlias = Element
"""b1: plain bits, 1 bits."""
b8: TypeAlias = Element
"""b8: plain bits, 8 bits."""
b16: TypeAlias = Element
"""b16: plain bits, 16 bits."""
b32: TypeAlias = Element
"""b32: plain bits, 32 bits."""
b64: TypeAlias = Element
"""b64: plain bits, 64 bits."""
b128: TypeAlias = Element
"""b128: plain bits, 128 bits."""
f16x2: TypeAlias = Element
"""f16x2: two floats, 32 bits."""
bf16x2: TypeAlias = Element
"""bf16x2: two floats, 32 bits."""

class _Dataclass(Protocol):
    __dataclass_fields__: ClassVar[dict[str, Any]]

InKernel: TypeAlias = (
    Struct | Local | RuntimeValue | Element | DType | Instruction | Operand | _Dataclass
    | float | str | tuple[Any, ...] | list[Any] | dict[Any, Any] | Callable[..., Any] | None
)
"""What kernels hold. Arrays of NumPy and other libraries are not among it: they take a launch."""

class FragmentOperand(Operand):
    """An operand of a matrix instruction that is spread over the registers of all threads."""

    layout: Layout  # type: ignore[assignment]

    def zeros(self) -> RegisterGroup:
        """In a kernel: a fragment of this operand filled with zeros."""

class NamedInstruction(Instruction):
    """An instruction of the table, whose text names its operands."""

    def __getattr__(self, name: str) -> FragmentOperand: ...

def instruction(mnemonic: str) -> NamedInstruction:
    """The instruction with this mnemonic, for example "add.rn.f32"."""

class _MmaSpBlockScaleInstruction(Instruction):
    """An instruction of mma.sp.block_scale; called inside a kernel, it emits itself."""

    d: FragmentOperand
    a: FragmentOperand
    b: FragmentOperand
    c: FragmentOperand
    e: Operand
    f: Operand
    scale_a: Operand
    byte_a: Operand
    thread_a: Operand
    scale_b: Operand
    byte_b: Operand
    thread_b: Operand

    @property
    def shape(self) -> tuple[int, int, int]: ...
    def __call__(  # type: ignore[override]
        self, a: Any, b: Any, c: Any, e: Any, f: Any, scale_a: Any, byte_a: Any, thread_a: Any, scale_b: Any, byte_b: Any, thread_b: Any, /, *, pred: Any = None, otherwise: Any = ...
    ) -> RegisterGroup:
        """The result in registers. pred: emit it guarded; otherwise: the result where it fails."""

class _MmaSpBlockScale:
    """mma.sp.block_scale: a method for each shape, which takes element types."""

    def __call__(self, *types: DTypeLike, **options: Any) -> _MmaSpBlockScaleInstruction:
        """The instruction with these types; `shape=` selects one if several shapes have them."""

    def m16n8k64(
        self, a: DTypeLike, b: DTypeLike, accumulator: DTypeLike, d: DTypeLike = ..., /,
        *, kind: str = ..., scale_vec: str | int = ..., scale_type: str = ..., ordered: bool = ..., shorthand: bool = ...
    ) -> _MmaSpBlockScaleInstruction:
        """mma.sp.block_scale.m16n8k64: {e4m3, e5m2, e3m2, e2m3, e2m1} x {e4m3, e5m2, e3m2, e2m3,
            e2m1} with f32.
        kind: 'mxf8f6f4'.
        scale_vec: '1'.
        scale_type: 'ue8m0'.
        Architectures: sm_120f.
        """

    def m16n8k128(
        self, a: DTypeLike, b: DTypeLike, accumulator: DTypeLike, d: DTypeLike = ..., /,
        *, kind: str = ..., scale_vec: str | int = ..., scale_type: str = ..., ordered: bool = ..., shorthand: bool = ...
    ) -> _MmaSpBlockScaleInstruction:
        """mma.sp.block_scale.m16n8k128: e2m1 x e2m1 with f32.
        kind: 'mxf4', 'mxf4nvf4'.
        scale_vec: '2', '4'.
        scale_type: 'ue8m0', 'ue4m3'.
        Architectures: sm_120a or sm_121a.
        """

class _MmaSpInstruction(Instruction):
    """An instruction of mma.sp; called inside a kernel, it emits itself."""

    d: FragmentOperand
    a: FragmentOperand
    b: FragmentOperand
    c: FragmentOperand
    e: Operand
    f: Operand

    @property
    def shape(self) -> tuple[int, int, int]: ...
    def __call__(  # type: ignore[override]
        self, a: Any, b: Any, c: Any, e: Any, f: Any, /, *, pred: Any = None, otherwise: Any = ...
    ) -> RegisterGroup:
        """The result in registers. pred: emit it guarded; otherwise: the result where it fails."""

class _MmaSp:
    """mma.sp: a method for each shape, which takes element types."""

    block_scale: _MmaSpBlockScale
    def __call__(self, *types: DTypeLike, **options: Any) -> _MmaSpInstruction:
        """The instruction with these types; `shape=` selects one if several shapes have them."""

    def m16n8k16(
        self, a: DTypeLike, b: DTypeLike, accumulator: DTypeLike, d: DTypeLike = ..., /,
        *, ordered: bool = ...
    ) -> _MmaSpInstruction:
        """mma.sp.m16n8k16: f16 x f16 with f16 or f32; bf16 x bf16, tf32 x tf32 with f32.
        Architectures: sm_80 or later.
        """

    def m16n8k32(
        self, a: DTypeLike, b: DTypeLike, accumulator: DTypeLike, d: DTypeLike = ..., /,
        *, ordered: bool = ..., satfinite: bool = ...
    ) -> _MmaSpInstruction:
        """mma.sp.m16n8k32: f16 x f16 with f16 or f32; bf16 x bf16 with f32; {u8, s8} x {u8, s8}
            with s32.
        Architectures: sm_80 or later.
        """

    def m16n8k8(
        self, a: DTypeLike, b: DTypeLike, accumulator: DTypeLike, d: DTypeLike = ..., /,
        *, ordered: bool = ...
    ) -> _MmaSpInstruction:
        """mma.sp.m16n8k8: tf32 x tf32 with f32.
        Architectures: sm_80 or later.
        """

    def m16n8k64(
        self, a: DTypeLike, b: DTypeLike, accumulator: DTypeLike, d: DTypeLike = ..., /,
        *, ordered: bool = ..., kind: str = ..., satfinite: bool = ...
    ) -> _MmaSpInstruction:
        """mma.sp.m16n8k64: {e4m3, e5m2} x {e4m3, e5m2} with f32 or f16; e4m3 x e3m2, e4m3 x e2m3,
            e4m3 x e2m1, e5m2 x e3m2, e5m2 x e2m3, e5m2 x e2m1, e3m2 x e4m3, e3m2 x e5m2, e3m2 x
            e3m2, e3m2 x e2m3, e3m2 x e2m1, e2m3 x e4m3, e2m3 x e5m2, e2m3 x e3m2, e2m3 x e2m3,
            e2m3 x e2m1, e2m1 x e4m3, e2m1 x e5m2, e2m1 x e3m2, e2m1 x e2m3, e2m1 x e2m1 with f16
            or f32; u8 x u8, u8 x s8, s8 x u8, s8 x s8, u4 x u4, u4 x s4, s4 x u4, s4 x s4 with
            s32.
        kind: 'f8f6f4'.
        Architectures: sm_89 or later, sm_120f, sm_80 or later.
        """

    def m16n8k128(
        self, a: DTypeLike, b: DTypeLike, accumulator: DTypeLike, d: DTypeLike = ..., /,
        *, satfinite: bool = ..., ordered: bool = ...
    ) -> _MmaSpInstruction:
        """mma.sp.m16n8k128: {u4, s4} x {u4, s4} with s32.
        Architectures: sm_80 or later.
        """

class _MmaBlockScaleInstruction(Instruction):
    """An instruction of mma.block_scale; called inside a kernel, it emits itself."""

    d: FragmentOperand
    a: FragmentOperand
    b: FragmentOperand
    c: FragmentOperand
    scale_a: Operand
    byte_a: Operand
    thread_a: Operand
    scale_b: Operand
    byte_b: Operand
    thread_b: Operand

    @property
    def shape(self) -> tuple[int, int, int]: ...
    def __call__(  # type: ignore[override]
        self, a: Any, b: Any, c: Any, scale_a: Any, byte_a: Any, thread_a: Any, scale_b: Any, byte_b: Any, thread_b: Any, /, *, pred: Any = None, otherwise: Any = ...
    ) -> RegisterGroup:
        """The result in registers. pred: emit it guarded; otherwise: the result where it fails."""

class _MmaBlockScale:
    """mma.block_scale: a method for each shape, which takes element types."""

    def __call__(self, *types: DTypeLike, **options: Any) -> _MmaBlockScaleInstruction:
        """The instruction with these types; `shape=` selects one if several shapes have them."""

    def m16n8k32(
        self, a: DTypeLike, b: DTypeLike, accumulator: DTypeLike, d: DTypeLike = ..., /,
        *, kind: str = ..., scale_vec: str | int = ..., scale_type: str = ..., shorthand: bool = ...
    ) -> _MmaBlockScaleInstruction:
        """mma.block_scale.m16n8k32: {e4m3, e5m2, e3m2, e2m3, e2m1} x {e4m3, e5m2, e3m2, e2m3, e2m1}
            with f32.
        kind: 'mxf8f6f4'.
        scale_vec: '1'.
        scale_type: 'ue8m0'.
        Architectures: sm_120f.
        """

    def m16n8k64(
        self, a: DTypeLike, b: DTypeLike, accumulator: DTypeLike, d: DTypeLike = ..., /,
        *, kind: str = ..., scale_vec: str | int = ..., scale_type: str = ..., shorthand: bool = ...
    ) -> _MmaBlockScaleInstruction:
        """mma.block_scale.m16n8k64: e2m1 x e2m1 with f32.
        kind: 'mxf4', 'mxf4nvf4'.
        scale_vec: '2', '4'.
        scale_type: 'ue8m0', 'ue4m3'.
        Architectures: sm_120f.
        """

class _MmaInstruction(Instruction):
    """An instruction of mma; called inside a kernel, it emits itself."""

    d: FragmentOperand
    a: FragmentOperand
    b: FragmentOperand
    c: FragmentOperand

    @property
    def shape(self) -> tuple[int, int, int]: ...
    def __call__(  # type: ignore[override]
        self, a: Any, b: Any, c: Any, /, *, pred: Any = None, otherwise: Any = ...
    ) -> RegisterGroup:
        """The result in registers. pred: emit it guarded; otherwise: the result where it fails."""

class _Mma:
    """mma: a method for each shape, which takes element types."""

    sp: _MmaSp
    block_scale: _MmaBlockScale
    def __call__(self, *types: DTypeLike, **options: Any) -> _MmaInstruction:
        """The instruction with these types; `shape=` selects one if several shapes have them."""

    def m8n8k4(
        self, a: DTypeLike, b: DTypeLike, accumulator: DTypeLike, d: DTypeLike = ..., /,
        *, layout: str = ..., rounding: str = ...
    ) -> _MmaInstruction:
        """mma.m8n8k4: f16 x f16 with f16 or f32; f64 x f64 with f64.
        layout: 'row.row', 'row.col', 'col.row', 'col.col'.
        rounding: 'rn', 'rz', 'rm', 'rp'.
        Architectures: sm_70 or later, sm_80 or later.
        """

    def m16n8k8(
        self, a: DTypeLike, b: DTypeLike, accumulator: DTypeLike, d: DTypeLike = ..., /,
        *, layout: str = ..., rounding: str = ...
    ) -> _MmaInstruction:
        """mma.m16n8k8: f16 x f16 with f16 or f32; bf16 x bf16, tf32 x tf32 with f32; f64 x f64 with
            f64.
        layout: 'row.col'.
        rounding: 'rn', 'rz', 'rm', 'rp'.
        Architectures: sm_75 or later, sm_80 or later, sm_90 or later.
        """

    def m16n8k16(
        self, a: DTypeLike, b: DTypeLike, accumulator: DTypeLike, d: DTypeLike = ..., /,
        *, layout: str = ..., rounding: str = ..., satfinite: bool = ...
    ) -> _MmaInstruction:
        """mma.m16n8k16: f16 x f16, e4m3 x e4m3, e4m3 x e5m2, e5m2 x e4m3, e5m2 x e5m2 with f16 or
            f32; bf16 x bf16 with f32; f64 x f64 with f64; {u8, s8} x {u8, s8} with s32.
        layout: 'row.col'.
        rounding: 'rn', 'rz', 'rm', 'rp'.
        Architectures: sm_80 or later, sm_89 or later, sm_90 or later.
        """

    def m16n8k4(
        self, a: DTypeLike, b: DTypeLike, accumulator: DTypeLike, d: DTypeLike = ..., /,
        *, layout: str = ..., rounding: str = ...
    ) -> _MmaInstruction:
        """mma.m16n8k4: tf32 x tf32 with f32; f64 x f64 with f64.
        layout: 'row.col'.
        rounding: 'rn', 'rz', 'rm', 'rp'.
        Architectures: sm_80 or later, sm_90 or later.
        """

    def m16n8k32(
        self, a: DTypeLike, b: DTypeLike, accumulator: DTypeLike, d: DTypeLike = ..., /,
        *, layout: str = ..., kind: str = ..., satfinite: bool = ...
    ) -> _MmaInstruction:
        """mma.m16n8k32: {e4m3, e5m2} x {e4m3, e5m2} with f32 or f16; e4m3 x e3m2, e4m3 x e2m3, e4m3
            x e2m1, e5m2 x e3m2, e5m2 x e2m3, e5m2 x e2m1, e3m2 x e4m3, e3m2 x e5m2, e3m2 x e3m2,
            e3m2 x e2m3, e3m2 x e2m1, e2m3 x e4m3, e2m3 x e5m2, e2m3 x e3m2, e2m3 x e2m3, e2m3 x
            e2m1, e2m1 x e4m3, e2m1 x e5m2, e2m1 x e3m2, e2m1 x e2m3, e2m1 x e2m1 with f16 or
            f32; u8 x u8, u8 x s8, s8 x u8, s8 x s8, u4 x u4, u4 x s4, s4 x u4, s4 x s4 with s32.
        layout: 'row.col'.
        kind: 'f8f6f4'.
        Architectures: sm_89 or later, sm_120f, sm_80 or later.
        """

    def m8n8k16(
        self, a: DTypeLike, b: DTypeLike, accumulator: DTypeLike, d: DTypeLike = ..., /,
        *, layout: str = ..., satfinite: bool = ...
    ) -> _MmaInstruction:
        """mma.m8n8k16: {u8, s8} x {u8, s8} with s32.
        layout: 'row.col'.
        Architectures: sm_75 or later.
        """

    def m8n8k32(
        self, a: DTypeLike, b: DTypeLike, accumulator: DTypeLike, d: DTypeLike = ..., /,
        *, layout: str = ..., satfinite: bool = ...
    ) -> _MmaInstruction:
        """mma.m8n8k32: {u4, s4} x {u4, s4} with s32.
        layout: 'row.col'.
        Architectures: sm_75 or later.
        """

    def m16n8k64(
        self, a: DTypeLike, b: DTypeLike, accumulator: DTypeLike, d: DTypeLike = ..., /,
        *, layout: str = ..., satfinite: bool = ...
    ) -> _MmaInstruction:
        """mma.m16n8k64: {u4, s4} x {u4, s4} with s32.
        layout: 'row.col'.
        Architectures: sm_80 or later.
        """

    def m8n8k128(
        self, a: DTypeLike, b: DTypeLike, accumulator: DTypeLike, d: DTypeLike = ..., /,
        *, layout: str = ..., operation: str = ...
    ) -> _MmaInstruction:
        """mma.m8n8k128: b1 x b1 with s32.
        layout: 'row.col'.
        operation: 'xor', 'and'.
        Architectures: sm_75 or later, sm_80 or later.
        """

    def m16n8k128(
        self, a: DTypeLike, b: DTypeLike, accumulator: DTypeLike, d: DTypeLike = ..., /,
        *, layout: str = ..., operation: str = ...
    ) -> _MmaInstruction:
        """mma.m16n8k128: b1 x b1 with s32.
        layout: 'row.col'.
        operation: 'xor', 'and'.
        Architectures: sm_80 or later.
        """

    def m16n8k256(
        self, a: DTypeLike, b: DTypeLike, accumulator: DTypeLike, d: DTypeLike = ..., /,
        *, layout: str = ..., operation: str = ...
    ) -> _MmaInstruction:
        """mma.m16n8k256: b1 x b1 with s32.
        layout: 'row.col'.
        operation: 'xor', 'and'.
        Architectures: sm_80 or later.
        """

class _WgmmaSpInstruction(Instruction):
    """An instruction of wgmma.sp; called inside a kernel, it emits itself."""

    d: FragmentOperand
    c: FragmentOperand
    desc_a: Operand
    desc_b: Operand
    meta: Operand
    selector: Operand
    scale_d: Operand
    scale_a: Operand
    scale_b: Operand
    trans_a: Operand
    trans_b: Operand
    a: FragmentOperand

    @property
    def shape(self) -> tuple[int, int, int]: ...
    def __call__(  # type: ignore[override]
        self, *operands: Any, pred: Any = None, otherwise: Any = ...
    ) -> RegisterGroup:
        """The result in registers. pred: emit it guarded; otherwise: the result where it fails."""

class _WgmmaSp:
    """wgmma.sp: a method for each shape, which takes element types."""

    def __call__(self, *types: DTypeLike, **options: Any) -> _WgmmaSpInstruction:
        """The instruction with these types; `shape=` selects one if several shapes have them."""

    def m64n8k32(
        self, a: DTypeLike, b: DTypeLike, accumulator: DTypeLike, d: DTypeLike = ..., /,
        *, source: str = ...
    ) -> _WgmmaSpInstruction:
        """wgmma.sp.m64n8k32: f16 x f16 with f16 or f32; bf16 x bf16 with f32.
        source: 'registers'.
        Architectures: sm_90a.
        """

    def m64n16k32(
        self, a: DTypeLike, b: DTypeLike, accumulator: DTypeLike, d: DTypeLike = ..., /,
        *, source: str = ...
    ) -> _WgmmaSpInstruction:
        """wgmma.sp.m64n16k32: f16 x f16 with f16 or f32; bf16 x bf16 with f32.
        source: 'registers'.
        Architectures: sm_90a.
        """

    def m64n24k32(
        self, a: DTypeLike, b: DTypeLike, accumulator: DTypeLike, d: DTypeLike = ..., /,
        *, source: str = ...
    ) -> _WgmmaSpInstruction:
        """wgmma.sp.m64n24k32: f16 x f16 with f16 or f32; bf16 x bf16 with f32.
        source: 'registers'.
        Architectures: sm_90a.
        """

    def m64n32k32(
        self, a: DTypeLike, b: DTypeLike, accumulator: DTypeLike, d: DTypeLike = ..., /,
        *, source: str = ...
    ) -> _WgmmaSpInstruction:
        """wgmma.sp.m64n32k32: f16 x f16 with f16 or f32; bf16 x bf16 with f32.
        source: 'registers'.
        Architectures: sm_90a.
        """

    def m64n40k32(
        self, a: DTypeLike, b: DTypeLike, accumulator: DTypeLike, d: DTypeLike = ..., /,
        *, source: str = ...
    ) -> _WgmmaSpInstruction:
        """wgmma.sp.m64n40k32: f16 x f16 with f16 or f32; bf16 x bf16 with f32.
        source: 'registers'.
        Architectures: sm_90a.
        """

    def m64n48k32(
        self, a: DTypeLike, b: DTypeLike, accumulator: DTypeLike, d: DTypeLike = ..., /,
        *, source: str = ...
    ) -> _WgmmaSpInstruction:
        """wgmma.sp.m64n48k32: f16 x f16 with f16 or f32; bf16 x bf16 with f32.
        source: 'registers'.
        Architectures: sm_90a.
        """

    def m64n56k32(
        self, a: DTypeLike, b: DTypeLike, accumulator: DTypeLike, d: DTypeLike = ..., /,
        *, source: str = ...
    ) -> _WgmmaSpInstruction:
        """wgmma.sp.m64n56k32: f16 x f16 with f16 or f32; bf16 x bf16 with f32.
        source: 'registers'.
        Architectures: sm_90a.
        """

    def m64n64k32(
        self, a: DTypeLike, b: DTypeLike, accumulator: DTypeLike, d: DTypeLike = ..., /,
        *, source: str = ...
    ) -> _WgmmaSpInstruction:
        """wgmma.sp.m64n64k32: f16 x f16 with f16 or f32; bf16 x bf16 with f32.
        source: 'registers'.
        Architectures: sm_90a.
        """

    def m64n72k32(
        self, a: DTypeLike, b: DTypeLike, accumulator: DTypeLike, d: DTypeLike = ..., /,
        *, source: str = ...
    ) -> _WgmmaSpInstruction:
        """wgmma.sp.m64n72k32: f16 x f16 with f16 or f32; bf16 x bf16 with f32.
        source: 'registers'.
        Architectures: sm_90a.
        """

    def m64n80k32(
        self, a: DTypeLike, b: DTypeLike, accumulator: DTypeLike, d: DTypeLike = ..., /,
        *, source: str = ...
    ) -> _WgmmaSpInstruction:
        """wgmma.sp.m64n80k32: f16 x f16 with f16 or f32; bf16 x bf16 with f32.
        source: 'registers'.
        Architectures: sm_90a.
        """

    def m64n88k32(
        self, a: DTypeLike, b: DTypeLike, accumulator: DTypeLike, d: DTypeLike = ..., /,
        *, source: str = ...
    ) -> _WgmmaSpInstruction:
        """wgmma.sp.m64n88k32: f16 x f16 with f16 or f32; bf16 x bf16 with f32.
        source: 'registers'.
        Architectures: sm_90a.
        """

    def m64n96k32(
        self, a: DTypeLike, b: DTypeLike, accumulator: DTypeLike, d: DTypeLike = ..., /,
        *, source: str = ...
    ) -> _WgmmaSpInstruction:
        """wgmma.sp.m64n96k32: f16 x f16 with f16 or f32; bf16 x bf16 with f32.
        source: 'registers'.
        Architectures: sm_90a.
        """

    def m64n104k32(
        self, a: DTypeLike, b: DTypeLike, accumulator: DTypeLike, d: DTypeLike = ..., /,
        *, source: str = ...
    ) -> _WgmmaSpInstruction:
        """wgmma.sp.m64n104k32: f16 x f16 with f16 or f32; bf16 x bf16 with f32.
        source: 'registers'.
        Architectures: sm_90a.
        """

    def m64n112k32(
        self, a: DTypeLike, b: DTypeLike, accumulator: DTypeLike, d: DTypeLike = ..., /,
        *, source: str = ...
    ) -> _WgmmaSpInstruction:
        """wgmma.sp.m64n112k32: f16 x f16 with f16 or f32; bf16 x bf16 with f32.
        source: 'registers'.
        Architectures: sm_90a.
        """

    def m64n120k32(
        self, a: DTypeLike, b: DTypeLike, accumulator: DTypeLike, d: DTypeLike = ..., /,
        *, source: str = ...
    ) -> _WgmmaSpInstruction:
        """wgmma.sp.m64n120k32: f16 x f16 with f16 or f32; bf16 x bf16 with f32.
        source: 'registers'.
        Architectures: sm_90a.
        """

    def m64n128k32(
        self, a: DTypeLike, b: DTypeLike, accumulator: DTypeLike, d: DTypeLike = ..., /,
        *, source: str = ...
    ) -> _WgmmaSpInstruction:
        """wgmma.sp.m64n128k32: f16 x f16 with f16 or f32; bf16 x bf16 with f32.
        source: 'registers'.
        Architectures: sm_90a.
        """

    def m64n136k32(
        self, a: DTypeLike, b: DTypeLike, accumulator: DTypeLike, d: DTypeLike = ..., /,
        *, source: str = ...
    ) -> _WgmmaSpInstruction:
        """wgmma.sp.m64n136k32: f16 x f16 with f16 or f32; bf16 x bf16 with f32.
        source: 'registers'.
        Architectures: sm_90a.
        """

    def m64n144k32(
        self, a: DTypeLike, b: DTypeLike, accumulator: DTypeLike, d: DTypeLike = ..., /,
        *, source: str = ...
    ) -> _WgmmaSpInstruction:
        """wgmma.sp.m64n144k32: f16 x f16 with f16 or f32; bf16 x bf16 with f32.
        source: 'registers'.
        Architectures: sm_90a.
        """

    def m64n152k32(
        self, a: DTypeLike, b: DTypeLike, accumulator: DTypeLike, d: DTypeLike = ..., /,
        *, source: str = ...
    ) -> _WgmmaSpInstruction:
        """wgmma.sp.m64n152k32: f16 x f16 with f16 or f32; bf16 x bf16 with f32.
        source: 'registers'.
        Architectures: sm_90a.
        """

    def m64n160k32(
        self, a: DTypeLike, b: DTypeLike, accumulator: DTypeLike, d: DTypeLike = ..., /,
        *, source: str = ...
    ) -> _WgmmaSpInstruction:
        """wgmma.sp.m64n160k32: f16 x f16 with f16 or f32; bf16 x bf16 with f32.
        source: 'registers'.
        Architectures: sm_90a.
        """

    def m64n168k32(
        self, a: DTypeLike, b: DTypeLike, accumulator: DTypeLike, d: DTypeLike = ..., /,
        *, source: str = ...
    ) -> _WgmmaSpInstruction:
        """wgmma.sp.m64n168k32: f16 x f16 with f16 or f32; bf16 x bf16 with f32.
        source: 'registers'.
        Architectures: sm_90a.
        """

    def m64n176k32(
        self, a: DTypeLike, b: DTypeLike, accumulator: DTypeLike, d: DTypeLike = ..., /,
        *, source: str = ...
    ) -> _WgmmaSpInstruction:
        """wgmma.sp.m64n176k32: f16 x f16 with f16 or f32; bf16 x bf16 with f32.
        source: 'registers'.
        Architectures: sm_90a.
        """

    def m64n184k32(
        self, a: DTypeLike, b: DTypeLike, accumulator: DTypeLike, d: DTypeLike = ..., /,
        *, source: str = ...
    ) -> _WgmmaSpInstruction:
        """wgmma.sp.m64n184k32: f16 x f16 with f16 or f32; bf16 x bf16 with f32.
        source: 'registers'.
        Architectures: sm_90a.
        """

    def m64n192k32(
        self, a: DTypeLike, b: DTypeLike, accumulator: DTypeLike, d: DTypeLike = ..., /,
        *, source: str = ...
    ) -> _WgmmaSpInstruction:
        """wgmma.sp.m64n192k32: f16 x f16 with f16 or f32; bf16 x bf16 with f32.
        source: 'registers'.
        Architectures: sm_90a.
        """

    def m64n200k32(
        self, a: DTypeLike, b: DTypeLike, accumulator: DTypeLike, d: DTypeLike = ..., /,
        *, source: str = ...
    ) -> _WgmmaSpInstruction:
        """wgmma.sp.m64n200k32: f16 x f16 with f16 or f32; bf16 x bf16 with f32.
        source: 'registers'.
        Architectures: sm_90a.
        """

    def m64n208k32(
        self, a: DTypeLike, b: DTypeLike, accumulator: DTypeLike, d: DTypeLike = ..., /,
        *, source: str = ...
    ) -> _WgmmaSpInstruction:
        """wgmma.sp.m64n208k32: f16 x f16 with f16 or f32; bf16 x bf16 with f32.
        source: 'registers'.
        Architectures: sm_90a.
        """

    def m64n216k32(
        self, a: DTypeLike, b: DTypeLike, accumulator: DTypeLike, d: DTypeLike = ..., /,
        *, source: str = ...
    ) -> _WgmmaSpInstruction:
        """wgmma.sp.m64n216k32: f16 x f16 with f16 or f32; bf16 x bf16 with f32.
        source: 'registers'.
        Architectures: sm_90a.
        """

    def m64n224k32(
        self, a: DTypeLike, b: DTypeLike, accumulator: DTypeLike, d: DTypeLike = ..., /,
        *, source: str = ...
    ) -> _WgmmaSpInstruction:
        """wgmma.sp.m64n224k32: f16 x f16 with f16 or f32; bf16 x bf16 with f32.
        source: 'registers'.
        Architectures: sm_90a.
        """

    def m64n232k32(
        self, a: DTypeLike, b: DTypeLike, accumulator: DTypeLike, d: DTypeLike = ..., /,
        *, source: str = ...
    ) -> _WgmmaSpInstruction:
        """wgmma.sp.m64n232k32: f16 x f16 with f16 or f32; bf16 x bf16 with f32.
        source: 'registers'.
        Architectures: sm_90a.
        """

    def m64n240k32(
        self, a: DTypeLike, b: DTypeLike, accumulator: DTypeLike, d: DTypeLike = ..., /,
        *, source: str = ...
    ) -> _WgmmaSpInstruction:
        """wgmma.sp.m64n240k32: f16 x f16 with f16 or f32; bf16 x bf16 with f32.
        source: 'registers'.
        Architectures: sm_90a.
        """

    def m64n248k32(
        self, a: DTypeLike, b: DTypeLike, accumulator: DTypeLike, d: DTypeLike = ..., /,
        *, source: str = ...
    ) -> _WgmmaSpInstruction:
        """wgmma.sp.m64n248k32: f16 x f16 with f16 or f32; bf16 x bf16 with f32.
        source: 'registers'.
        Architectures: sm_90a.
        """

    def m64n256k32(
        self, a: DTypeLike, b: DTypeLike, accumulator: DTypeLike, d: DTypeLike = ..., /,
        *, source: str = ...
    ) -> _WgmmaSpInstruction:
        """wgmma.sp.m64n256k32: f16 x f16 with f16 or f32; bf16 x bf16 with f32.
        source: 'registers'.
        Architectures: sm_90a.
        """

    def m64n8k16(
        self, a: DTypeLike, b: DTypeLike, accumulator: DTypeLike, d: DTypeLike = ..., /,
        *, source: str = ...
    ) -> _WgmmaSpInstruction:
        """wgmma.sp.m64n8k16: tf32 x tf32 with f32.
        source: 'registers'.
        Architectures: sm_90a.
        """

    def m64n16k16(
        self, a: DTypeLike, b: DTypeLike, accumulator: DTypeLike, d: DTypeLike = ..., /,
        *, source: str = ...
    ) -> _WgmmaSpInstruction:
        """wgmma.sp.m64n16k16: tf32 x tf32 with f32.
        source: 'registers'.
        Architectures: sm_90a.
        """

    def m64n24k16(
        self, a: DTypeLike, b: DTypeLike, accumulator: DTypeLike, d: DTypeLike = ..., /,
        *, source: str = ...
    ) -> _WgmmaSpInstruction:
        """wgmma.sp.m64n24k16: tf32 x tf32 with f32.
        source: 'registers'.
        Architectures: sm_90a.
        """

    def m64n32k16(
        self, a: DTypeLike, b: DTypeLike, accumulator: DTypeLike, d: DTypeLike = ..., /,
        *, source: str = ...
    ) -> _WgmmaSpInstruction:
        """wgmma.sp.m64n32k16: tf32 x tf32 with f32.
        source: 'registers'.
        Architectures: sm_90a.
        """

    def m64n40k16(
        self, a: DTypeLike, b: DTypeLike, accumulator: DTypeLike, d: DTypeLike = ..., /,
        *, source: str = ...
    ) -> _WgmmaSpInstruction:
        """wgmma.sp.m64n40k16: tf32 x tf32 with f32.
        source: 'registers'.
        Architectures: sm_90a.
        """

    def m64n48k16(
        self, a: DTypeLike, b: DTypeLike, accumulator: DTypeLike, d: DTypeLike = ..., /,
        *, source: str = ...
    ) -> _WgmmaSpInstruction:
        """wgmma.sp.m64n48k16: tf32 x tf32 with f32.
        source: 'registers'.
        Architectures: sm_90a.
        """

    def m64n56k16(
        self, a: DTypeLike, b: DTypeLike, accumulator: DTypeLike, d: DTypeLike = ..., /,
        *, source: str = ...
    ) -> _WgmmaSpInstruction:
        """wgmma.sp.m64n56k16: tf32 x tf32 with f32.
        source: 'registers'.
        Architectures: sm_90a.
        """

    def m64n64k16(
        self, a: DTypeLike, b: DTypeLike, accumulator: DTypeLike, d: DTypeLike = ..., /,
        *, source: str = ...
    ) -> _WgmmaSpInstruction:
        """wgmma.sp.m64n64k16: tf32 x tf32 with f32.
        source: 'registers'.
        Architectures: sm_90a.
        """

    def m64n72k16(
        self, a: DTypeLike, b: DTypeLike, accumulator: DTypeLike, d: DTypeLike = ..., /,
        *, source: str = ...
    ) -> _WgmmaSpInstruction:
        """wgmma.sp.m64n72k16: tf32 x tf32 with f32.
        source: 'registers'.
        Architectures: sm_90a.
        """

    def m64n80k16(
        self, a: DTypeLike, b: DTypeLike, accumulator: DTypeLike, d: DTypeLike = ..., /,
        *, source: str = ...
    ) -> _WgmmaSpInstruction:
        """wgmma.sp.m64n80k16: tf32 x tf32 with f32.
        source: 'registers'.
        Architectures: sm_90a.
        """

    def m64n88k16(
        self, a: DTypeLike, b: DTypeLike, accumulator: DTypeLike, d: DTypeLike = ..., /,
        *, source: str = ...
    ) -> _WgmmaSpInstruction:
        """wgmma.sp.m64n88k16: tf32 x tf32 with f32.
        source: 'registers'.
        Architectures: sm_90a.
        """

    def m64n96k16(
        self, a: DTypeLike, b: DTypeLike, accumulator: DTypeLike, d: DTypeLike = ..., /,
        *, source: str = ...
    ) -> _WgmmaSpInstruction:
        """wgmma.sp.m64n96k16: tf32 x tf32 with f32.
        source: 'registers'.
        Architectures: sm_90a.
        """

    def m64n104k16(
        self, a: DTypeLike, b: DTypeLike, accumulator: DTypeLike, d: DTypeLike = ..., /,
        *, source: str = ...
    ) -> _WgmmaSpInstruction:
        """wgmma.sp.m64n104k16: tf32 x tf32 with f32.
        source: 'registers'.
        Architectures: sm_90a.
        """

    def m64n112k16(
        self, a: DTypeLike, b: DTypeLike, accumulator: DTypeLike, d: DTypeLike = ..., /,
        *, source: str = ...
    ) -> _WgmmaSpInstruction:
        """wgmma.sp.m64n112k16: tf32 x tf32 with f32.
        source: 'registers'.
        Architectures: sm_90a.
        """

    def m64n120k16(
        self, a: DTypeLike, b: DTypeLike, accumulator: DTypeLike, d: DTypeLike = ..., /,
        *, source: str = ...
    ) -> _WgmmaSpInstruction:
        """wgmma.sp.m64n120k16: tf32 x tf32 with f32.
        source: 'registers'.
        Architectures: sm_90a.
        """

    def m64n128k16(
        self, a: DTypeLike, b: DTypeLike, accumulator: DTypeLike, d: DTypeLike = ..., /,
        *, source: str = ...
    ) -> _WgmmaSpInstruction:
        """wgmma.sp.m64n128k16: tf32 x tf32 with f32.
        source: 'registers'.
        Architectures: sm_90a.
        """

    def m64n136k16(
        self, a: DTypeLike, b: DTypeLike, accumulator: DTypeLike, d: DTypeLike = ..., /,
        *, source: str = ...
    ) -> _WgmmaSpInstruction:
        """wgmma.sp.m64n136k16: tf32 x tf32 with f32.
        source: 'registers'.
        Architectures: sm_90a.
        """

    def m64n144k16(
        self, a: DTypeLike, b: DTypeLike, accumulator: DTypeLike, d: DTypeLike = ..., /,
        *, source: str = ...
    ) -> _WgmmaSpInstruction:
        """wgmma.sp.m64n144k16: tf32 x tf32 with f32.
        source: 'registers'.
        Architectures: sm_90a.
        """

    def m64n152k16(
        self, a: DTypeLike, b: DTypeLike, accumulator: DTypeLike, d: DTypeLike = ..., /,
        *, source: str = ...
    ) -> _WgmmaSpInstruction:
        """wgmma.sp.m64n152k16: tf32 x tf32 with f32.
        source: 'registers'.
        Architectures: sm_90a.
        """

    def m64n160k16(
        self, a: DTypeLike, b: DTypeLike, accumulator: DTypeLike, d: DTypeLike = ..., /,
        *, source: str = ...
    ) -> _WgmmaSpInstruction:
        """wgmma.sp.m64n160k16: tf32 x tf32 with f32.
        source: 'registers'.
        Architectures: sm_90a.
        """

    def m64n168k16(
        self, a: DTypeLike, b: DTypeLike, accumulator: DTypeLike, d: DTypeLike = ..., /,
        *, source: str = ...
    ) -> _WgmmaSpInstruction:
        """wgmma.sp.m64n168k16: tf32 x tf32 with f32.
        source: 'registers'.
        Architectures: sm_90a.
        """

    def m64n176k16(
        self, a: DTypeLike, b: DTypeLike, accumulator: DTypeLike, d: DTypeLike = ..., /,
        *, source: str = ...
    ) -> _WgmmaSpInstruction:
        """wgmma.sp.m64n176k16: tf32 x tf32 with f32.
        source: 'registers'.
        Architectures: sm_90a.
        """

    def m64n184k16(
        self, a: DTypeLike, b: DTypeLike, accumulator: DTypeLike, d: DTypeLike = ..., /,
        *, source: str = ...
    ) -> _WgmmaSpInstruction:
        """wgmma.sp.m64n184k16: tf32 x tf32 with f32.
        source: 'registers'.
        Architectures: sm_90a.
        """

    def m64n192k16(
        self, a: DTypeLike, b: DTypeLike, accumulator: DTypeLike, d: DTypeLike = ..., /,
        *, source: str = ...
    ) -> _WgmmaSpInstruction:
        """wgmma.sp.m64n192k16: tf32 x tf32 with f32.
        source: 'registers'.
        Architectures: sm_90a.
        """

    def m64n200k16(
        self, a: DTypeLike, b: DTypeLike, accumulator: DTypeLike, d: DTypeLike = ..., /,
        *, source: str = ...
    ) -> _WgmmaSpInstruction:
        """wgmma.sp.m64n200k16: tf32 x tf32 with f32.
        source: 'registers'.
        Architectures: sm_90a.
        """

    def m64n208k16(
        self, a: DTypeLike, b: DTypeLike, accumulator: DTypeLike, d: DTypeLike = ..., /,
        *, source: str = ...
    ) -> _WgmmaSpInstruction:
        """wgmma.sp.m64n208k16: tf32 x tf32 with f32.
        source: 'registers'.
        Architectures: sm_90a.
        """

    def m64n216k16(
        self, a: DTypeLike, b: DTypeLike, accumulator: DTypeLike, d: DTypeLike = ..., /,
        *, source: str = ...
    ) -> _WgmmaSpInstruction:
        """wgmma.sp.m64n216k16: tf32 x tf32 with f32.
        source: 'registers'.
        Architectures: sm_90a.
        """

    def m64n224k16(
        self, a: DTypeLike, b: DTypeLike, accumulator: DTypeLike, d: DTypeLike = ..., /,
        *, source: str = ...
    ) -> _WgmmaSpInstruction:
        """wgmma.sp.m64n224k16: tf32 x tf32 with f32.
        source: 'registers'.
        Architectures: sm_90a.
        """

    def m64n232k16(
        self, a: DTypeLike, b: DTypeLike, accumulator: DTypeLike, d: DTypeLike = ..., /,
        *, source: str = ...
    ) -> _WgmmaSpInstruction:
        """wgmma.sp.m64n232k16: tf32 x tf32 with f32.
        source: 'registers'.
        Architectures: sm_90a.
        """

    def m64n240k16(
        self, a: DTypeLike, b: DTypeLike, accumulator: DTypeLike, d: DTypeLike = ..., /,
        *, source: str = ...
    ) -> _WgmmaSpInstruction:
        """wgmma.sp.m64n240k16: tf32 x tf32 with f32.
        source: 'registers'.
        Architectures: sm_90a.
        """

    def m64n248k16(
        self, a: DTypeLike, b: DTypeLike, accumulator: DTypeLike, d: DTypeLike = ..., /,
        *, source: str = ...
    ) -> _WgmmaSpInstruction:
        """wgmma.sp.m64n248k16: tf32 x tf32 with f32.
        source: 'registers'.
        Architectures: sm_90a.
        """

    def m64n256k16(
        self, a: DTypeLike, b: DTypeLike, accumulator: DTypeLike, d: DTypeLike = ..., /,
        *, source: str = ...
    ) -> _WgmmaSpInstruction:
        """wgmma.sp.m64n256k16: tf32 x tf32 with f32.
        source: 'registers'.
        Architectures: sm_90a.
        """

    def m64n8k64(
        self, a: DTypeLike, b: DTypeLike, accumulator: DTypeLike, d: DTypeLike = ..., /,
        *, source: str = ..., satfinite: bool = ...
    ) -> _WgmmaSpInstruction:
        """wgmma.sp.m64n8k64: {e4m3, e5m2} x {e4m3, e5m2} with f16 or f32; {u8, s8} x {u8, s8} with
            s32.
        source: 'registers'.
        Architectures: sm_90a.
        """

    def m64n16k64(
        self, a: DTypeLike, b: DTypeLike, accumulator: DTypeLike, d: DTypeLike = ..., /,
        *, source: str = ..., satfinite: bool = ...
    ) -> _WgmmaSpInstruction:
        """wgmma.sp.m64n16k64: {e4m3, e5m2} x {e4m3, e5m2} with f16 or f32; {u8, s8} x {u8, s8} with
            s32.
        source: 'registers'.
        Architectures: sm_90a.
        """

    def m64n24k64(
        self, a: DTypeLike, b: DTypeLike, accumulator: DTypeLike, d: DTypeLike = ..., /,
        *, source: str = ..., satfinite: bool = ...
    ) -> _WgmmaSpInstruction:
        """wgmma.sp.m64n24k64: {e4m3, e5m2} x {e4m3, e5m2} with f16 or f32; {u8, s8} x {u8, s8} with
            s32.
        source: 'registers'.
        Architectures: sm_90a.
        """

    def m64n32k64(
        self, a: DTypeLike, b: DTypeLike, accumulator: DTypeLike, d: DTypeLike = ..., /,
        *, source: str = ..., satfinite: bool = ...
    ) -> _WgmmaSpInstruction:
        """wgmma.sp.m64n32k64: {e4m3, e5m2} x {e4m3, e5m2} with f16 or f32; {u8, s8} x {u8, s8} with
            s32.
        source: 'registers'.
        Architectures: sm_90a.
        """

    def m64n40k64(
        self, a: DTypeLike, b: DTypeLike, accumulator: DTypeLike, d: DTypeLike = ..., /,
        *, source: str = ...
    ) -> _WgmmaSpInstruction:
        """wgmma.sp.m64n40k64: {e4m3, e5m2} x {e4m3, e5m2} with f16 or f32.
        source: 'registers'.
        Architectures: sm_90a.
        """

    def m64n48k64(
        self, a: DTypeLike, b: DTypeLike, accumulator: DTypeLike, d: DTypeLike = ..., /,
        *, source: str = ..., satfinite: bool = ...
    ) -> _WgmmaSpInstruction:
        """wgmma.sp.m64n48k64: {e4m3, e5m2} x {e4m3, e5m2} with f16 or f32; {u8, s8} x {u8, s8} with
            s32.
        source: 'registers'.
        Architectures: sm_90a.
        """

    def m64n56k64(
        self, a: DTypeLike, b: DTypeLike, accumulator: DTypeLike, d: DTypeLike = ..., /,
        *, source: str = ...
    ) -> _WgmmaSpInstruction:
        """wgmma.sp.m64n56k64: {e4m3, e5m2} x {e4m3, e5m2} with f16 or f32.
        source: 'registers'.
        Architectures: sm_90a.
        """

    def m64n64k64(
        self, a: DTypeLike, b: DTypeLike, accumulator: DTypeLike, d: DTypeLike = ..., /,
        *, source: str = ..., satfinite: bool = ...
    ) -> _WgmmaSpInstruction:
        """wgmma.sp.m64n64k64: {e4m3, e5m2} x {e4m3, e5m2} with f16 or f32; {u8, s8} x {u8, s8} with
            s32.
        source: 'registers'.
        Architectures: sm_90a.
        """

    def m64n72k64(
        self, a: DTypeLike, b: DTypeLike, accumulator: DTypeLike, d: DTypeLike = ..., /,
        *, source: str = ...
    ) -> _WgmmaSpInstruction:
        """wgmma.sp.m64n72k64: {e4m3, e5m2} x {e4m3, e5m2} with f16 or f32.
        source: 'registers'.
        Architectures: sm_90a.
        """

    def m64n80k64(
        self, a: DTypeLike, b: DTypeLike, accumulator: DTypeLike, d: DTypeLike = ..., /,
        *, source: str = ..., satfinite: bool = ...
    ) -> _WgmmaSpInstruction:
        """wgmma.sp.m64n80k64: {e4m3, e5m2} x {e4m3, e5m2} with f16 or f32; {u8, s8} x {u8, s8} with
            s32.
        source: 'registers'.
        Architectures: sm_90a.
        """

    def m64n88k64(
        self, a: DTypeLike, b: DTypeLike, accumulator: DTypeLike, d: DTypeLike = ..., /,
        *, source: str = ...
    ) -> _WgmmaSpInstruction:
        """wgmma.sp.m64n88k64: {e4m3, e5m2} x {e4m3, e5m2} with f16 or f32.
        source: 'registers'.
        Architectures: sm_90a.
        """

    def m64n96k64(
        self, a: DTypeLike, b: DTypeLike, accumulator: DTypeLike, d: DTypeLike = ..., /,
        *, source: str = ..., satfinite: bool = ...
    ) -> _WgmmaSpInstruction:
        """wgmma.sp.m64n96k64: {e4m3, e5m2} x {e4m3, e5m2} with f16 or f32; {u8, s8} x {u8, s8} with
            s32.
        source: 'registers'.
        Architectures: sm_90a.
        """

    def m64n104k64(
        self, a: DTypeLike, b: DTypeLike, accumulator: DTypeLike, d: DTypeLike = ..., /,
        *, source: str = ...
    ) -> _WgmmaSpInstruction:
        """wgmma.sp.m64n104k64: {e4m3, e5m2} x {e4m3, e5m2} with f16 or f32.
        source: 'registers'.
        Architectures: sm_90a.
        """

    def m64n112k64(
        self, a: DTypeLike, b: DTypeLike, accumulator: DTypeLike, d: DTypeLike = ..., /,
        *, source: str = ..., satfinite: bool = ...
    ) -> _WgmmaSpInstruction:
        """wgmma.sp.m64n112k64: {e4m3, e5m2} x {e4m3, e5m2} with f16 or f32; {u8, s8} x {u8, s8}
            with s32.
        source: 'registers'.
        Architectures: sm_90a.
        """

    def m64n120k64(
        self, a: DTypeLike, b: DTypeLike, accumulator: DTypeLike, d: DTypeLike = ..., /,
        *, source: str = ...
    ) -> _WgmmaSpInstruction:
        """wgmma.sp.m64n120k64: {e4m3, e5m2} x {e4m3, e5m2} with f16 or f32.
        source: 'registers'.
        Architectures: sm_90a.
        """

    def m64n128k64(
        self, a: DTypeLike, b: DTypeLike, accumulator: DTypeLike, d: DTypeLike = ..., /,
        *, source: str = ..., satfinite: bool = ...
    ) -> _WgmmaSpInstruction:
        """wgmma.sp.m64n128k64: {e4m3, e5m2} x {e4m3, e5m2} with f16 or f32; {u8, s8} x {u8, s8}
            with s32.
        source: 'registers'.
        Architectures: sm_90a.
        """

    def m64n136k64(
        self, a: DTypeLike, b: DTypeLike, accumulator: DTypeLike, d: DTypeLike = ..., /,
        *, source: str = ...
    ) -> _WgmmaSpInstruction:
        """wgmma.sp.m64n136k64: {e4m3, e5m2} x {e4m3, e5m2} with f16 or f32.
        source: 'registers'.
        Architectures: sm_90a.
        """

    def m64n144k64(
        self, a: DTypeLike, b: DTypeLike, accumulator: DTypeLike, d: DTypeLike = ..., /,
        *, source: str = ..., satfinite: bool = ...
    ) -> _WgmmaSpInstruction:
        """wgmma.sp.m64n144k64: {e4m3, e5m2} x {e4m3, e5m2} with f16 or f32; {u8, s8} x {u8, s8}
            with s32.
        source: 'registers'.
        Architectures: sm_90a.
        """

    def m64n152k64(
        self, a: DTypeLike, b: DTypeLike, accumulator: DTypeLike, d: DTypeLike = ..., /,
        *, source: str = ...
    ) -> _WgmmaSpInstruction:
        """wgmma.sp.m64n152k64: {e4m3, e5m2} x {e4m3, e5m2} with f16 or f32.
        source: 'registers'.
        Architectures: sm_90a.
        """

    def m64n160k64(
        self, a: DTypeLike, b: DTypeLike, accumulator: DTypeLike, d: DTypeLike = ..., /,
        *, source: str = ..., satfinite: bool = ...
    ) -> _WgmmaSpInstruction:
        """wgmma.sp.m64n160k64: {e4m3, e5m2} x {e4m3, e5m2} with f16 or f32; {u8, s8} x {u8, s8}
            with s32.
        source: 'registers'.
        Architectures: sm_90a.
        """

    def m64n168k64(
        self, a: DTypeLike, b: DTypeLike, accumulator: DTypeLike, d: DTypeLike = ..., /,
        *, source: str = ...
    ) -> _WgmmaSpInstruction:
        """wgmma.sp.m64n168k64: {e4m3, e5m2} x {e4m3, e5m2} with f16 or f32.
        source: 'registers'.
        Architectures: sm_90a.
        """

    def m64n176k64(
        self, a: DTypeLike, b: DTypeLike, accumulator: DTypeLike, d: DTypeLike = ..., /,
        *, source: str = ..., satfinite: bool = ...
    ) -> _WgmmaSpInstruction:
        """wgmma.sp.m64n176k64: {e4m3, e5m2} x {e4m3, e5m2} with f16 or f32; {u8, s8} x {u8, s8}
            with s32.
        source: 'registers'.
        Architectures: sm_90a.
        """

    def m64n184k64(
        self, a: DTypeLike, b: DTypeLike, accumulator: DTypeLike, d: DTypeLike = ..., /,
        *, source: str = ...
    ) -> _WgmmaSpInstruction:
        """wgmma.sp.m64n184k64: {e4m3, e5m2} x {e4m3, e5m2} with f16 or f32.
        source: 'registers'.
        Architectures: sm_90a.
        """

    def m64n192k64(
        self, a: DTypeLike, b: DTypeLike, accumulator: DTypeLike, d: DTypeLike = ..., /,
        *, source: str = ..., satfinite: bool = ...
    ) -> _WgmmaSpInstruction:
        """wgmma.sp.m64n192k64: {e4m3, e5m2} x {e4m3, e5m2} with f16 or f32; {u8, s8} x {u8, s8}
            with s32.
        source: 'registers'.
        Architectures: sm_90a.
        """

    def m64n200k64(
        self, a: DTypeLike, b: DTypeLike, accumulator: DTypeLike, d: DTypeLike = ..., /,
        *, source: str = ...
    ) -> _WgmmaSpInstruction:
        """wgmma.sp.m64n200k64: {e4m3, e5m2} x {e4m3, e5m2} with f16 or f32.
        source: 'registers'.
        Architectures: sm_90a.
        """

    def m64n208k64(
        self, a: DTypeLike, b: DTypeLike, accumulator: DTypeLike, d: DTypeLike = ..., /,
        *, source: str = ..., satfinite: bool = ...
    ) -> _WgmmaSpInstruction:
        """wgmma.sp.m64n208k64: {e4m3, e5m2} x {e4m3, e5m2} with f16 or f32; {u8, s8} x {u8, s8}
            with s32.
        source: 'registers'.
        Architectures: sm_90a.
        """

    def m64n216k64(
        self, a: DTypeLike, b: DTypeLike, accumulator: DTypeLike, d: DTypeLike = ..., /,
        *, source: str = ...
    ) -> _WgmmaSpInstruction:
        """wgmma.sp.m64n216k64: {e4m3, e5m2} x {e4m3, e5m2} with f16 or f32.
        source: 'registers'.
        Architectures: sm_90a.
        """

    def m64n224k64(
        self, a: DTypeLike, b: DTypeLike, accumulator: DTypeLike, d: DTypeLike = ..., /,
        *, source: str = ..., satfinite: bool = ...
    ) -> _WgmmaSpInstruction:
        """wgmma.sp.m64n224k64: {e4m3, e5m2} x {e4m3, e5m2} with f16 or f32; {u8, s8} x {u8, s8}
            with s32.
        source: 'registers'.
        Architectures: sm_90a.
        """

    def m64n232k64(
        self, a: DTypeLike, b: DTypeLike, accumulator: DTypeLike, d: DTypeLike = ..., /,
        *, source: str = ...
    ) -> _WgmmaSpInstruction:
        """wgmma.sp.m64n232k64: {e4m3, e5m2} x {e4m3, e5m2} with f16 or f32.
        source: 'registers'.
        Architectures: sm_90a.
        """

    def m64n240k64(
        self, a: DTypeLike, b: DTypeLike, accumulator: DTypeLike, d: DTypeLike = ..., /,
        *, source: str = ..., satfinite: bool = ...
    ) -> _WgmmaSpInstruction:
        """wgmma.sp.m64n240k64: {e4m3, e5m2} x {e4m3, e5m2} with f16 or f32; {u8, s8} x {u8, s8}
            with s32.
        source: 'registers'.
        Architectures: sm_90a.
        """

    def m64n248k64(
        self, a: DTypeLike, b: DTypeLike, accumulator: DTypeLike, d: DTypeLike = ..., /,
        *, source: str = ...
    ) -> _WgmmaSpInstruction:
        """wgmma.sp.m64n248k64: {e4m3, e5m2} x {e4m3, e5m2} with f16 or f32.
        source: 'registers'.
        Architectures: sm_90a.
        """

    def m64n256k64(
        self, a: DTypeLike, b: DTypeLike, accumulator: DTypeLike, d: DTypeLike = ..., /,
        *, source: str = ..., satfinite: bool = ...
    ) -> _WgmmaSpInstruction:
        """wgmma.sp.m64n256k64: {e4m3, e5m2} x {e4m3, e5m2} with f16 or f32; {u8, s8} x {u8, s8}
            with s32.
        source: 'registers'.
        Architectures: sm_90a.
        """

class _WgmmaInstruction(Instruction):
    """An instruction of wgmma; called inside a kernel, it emits itself."""

    d: FragmentOperand
    c: FragmentOperand
    desc_a: Operand
    desc_b: Operand
    scale_d: Operand
    scale_a: Operand
    scale_b: Operand
    trans_a: Operand
    trans_b: Operand
    a: FragmentOperand

    @property
    def shape(self) -> tuple[int, int, int]: ...
    def __call__(  # type: ignore[override]
        self, *operands: Any, pred: Any = None, otherwise: Any = ...
    ) -> RegisterGroup:
        """The result in registers. pred: emit it guarded; otherwise: the result where it fails."""

class _Wgmma:
    """wgmma: a method for each shape, which takes element types."""

    sp: _WgmmaSp
    def __call__(self, *types: DTypeLike, **options: Any) -> _WgmmaInstruction:
        """The instruction with these types; `shape=` selects one if several shapes have them."""

    def m64n8k16(
        self, a: DTypeLike, b: DTypeLike, accumulator: DTypeLike, d: DTypeLike = ..., /,
        *, source: str = ...
    ) -> _WgmmaInstruction:
        """wgmma.m64n8k16: f16 x f16 with f16 or f32; bf16 x bf16 with f32.
        source: 'registers'.
        Architectures: sm_90a.
        """

    def m64n16k16(
        self, a: DTypeLike, b: DTypeLike, accumulator: DTypeLike, d: DTypeLike = ..., /,
        *, source: str = ...
    ) -> _WgmmaInstruction:
        """wgmma.m64n16k16: f16 x f16 with f16 or f32; bf16 x bf16 with f32.
        source: 'registers'.
        Architectures: sm_90a.
        """

    def m64n24k16(
        self, a: DTypeLike, b: DTypeLike, accumulator: DTypeLike, d: DTypeLike = ..., /,
        *, source: str = ...
    ) -> _WgmmaInstruction:
        """wgmma.m64n24k16: f16 x f16 with f16 or f32; bf16 x bf16 with f32.
        source: 'registers'.
        Architectures: sm_90a.
        """

    def m64n32k16(
        self, a: DTypeLike, b: DTypeLike, accumulator: DTypeLike, d: DTypeLike = ..., /,
        *, source: str = ...
    ) -> _WgmmaInstruction:
        """wgmma.m64n32k16: f16 x f16 with f16 or f32; bf16 x bf16 with f32.
        source: 'registers'.
        Architectures: sm_90a.
        """

    def m64n40k16(
        self, a: DTypeLike, b: DTypeLike, accumulator: DTypeLike, d: DTypeLike = ..., /,
        *, source: str = ...
    ) -> _WgmmaInstruction:
        """wgmma.m64n40k16: f16 x f16 with f16 or f32; bf16 x bf16 with f32.
        source: 'registers'.
        Architectures: sm_90a.
        """

    def m64n48k16(
        self, a: DTypeLike, b: DTypeLike, accumulator: DTypeLike, d: DTypeLike = ..., /,
        *, source: str = ...
    ) -> _WgmmaInstruction:
        """wgmma.m64n48k16: f16 x f16 with f16 or f32; bf16 x bf16 with f32.
        source: 'registers'.
        Architectures: sm_90a.
        """

    def m64n56k16(
        self, a: DTypeLike, b: DTypeLike, accumulator: DTypeLike, d: DTypeLike = ..., /,
        *, source: str = ...
    ) -> _WgmmaInstruction:
        """wgmma.m64n56k16: f16 x f16 with f16 or f32; bf16 x bf16 with f32.
        source: 'registers'.
        Architectures: sm_90a.
        """

    def m64n64k16(
        self, a: DTypeLike, b: DTypeLike, accumulator: DTypeLike, d: DTypeLike = ..., /,
        *, source: str = ...
    ) -> _WgmmaInstruction:
        """wgmma.m64n64k16: f16 x f16 with f16 or f32; bf16 x bf16 with f32.
        source: 'registers'.
        Architectures: sm_90a.
        """

    def m64n72k16(
        self, a: DTypeLike, b: DTypeLike, accumulator: DTypeLike, d: DTypeLike = ..., /,
        *, source: str = ...
    ) -> _WgmmaInstruction:
        """wgmma.m64n72k16: f16 x f16 with f16 or f32; bf16 x bf16 with f32.
        source: 'registers'.
        Architectures: sm_90a.
        """

    def m64n80k16(
        self, a: DTypeLike, b: DTypeLike, accumulator: DTypeLike, d: DTypeLike = ..., /,
        *, source: str = ...
    ) -> _WgmmaInstruction:
        """wgmma.m64n80k16: f16 x f16 with f16 or f32; bf16 x bf16 with f32.
        source: 'registers'.
        Architectures: sm_90a.
        """

    def m64n88k16(
        self, a: DTypeLike, b: DTypeLike, accumulator: DTypeLike, d: DTypeLike = ..., /,
        *, source: str = ...
    ) -> _WgmmaInstruction:
        """wgmma.m64n88k16: f16 x f16 with f16 or f32; bf16 x bf16 with f32.
        source: 'registers'.
        Architectures: sm_90a.
        """

    def m64n96k16(
        self, a: DTypeLike, b: DTypeLike, accumulator: DTypeLike, d: DTypeLike = ..., /,
        *, source: str = ...
    ) -> _WgmmaInstruction:
        """wgmma.m64n96k16: f16 x f16 with f16 or f32; bf16 x bf16 with f32.
        source: 'registers'.
        Architectures: sm_90a.
        """

    def m64n104k16(
        self, a: DTypeLike, b: DTypeLike, accumulator: DTypeLike, d: DTypeLike = ..., /,
        *, source: str = ...
    ) -> _WgmmaInstruction:
        """wgmma.m64n104k16: f16 x f16 with f16 or f32; bf16 x bf16 with f32.
        source: 'registers'.
        Architectures: sm_90a.
        """

    def m64n112k16(
        self, a: DTypeLike, b: DTypeLike, accumulator: DTypeLike, d: DTypeLike = ..., /,
        *, source: str = ...
    ) -> _WgmmaInstruction:
        """wgmma.m64n112k16: f16 x f16 with f16 or f32; bf16 x bf16 with f32.
        source: 'registers'.
        Architectures: sm_90a.
        """

    def m64n120k16(
        self, a: DTypeLike, b: DTypeLike, accumulator: DTypeLike, d: DTypeLike = ..., /,
        *, source: str = ...
    ) -> _WgmmaInstruction:
        """wgmma.m64n120k16: f16 x f16 with f16 or f32; bf16 x bf16 with f32.
        source: 'registers'.
        Architectures: sm_90a.
        """

    def m64n128k16(
        self, a: DTypeLike, b: DTypeLike, accumulator: DTypeLike, d: DTypeLike = ..., /,
        *, source: str = ...
    ) -> _WgmmaInstruction:
        """wgmma.m64n128k16: f16 x f16 with f16 or f32; bf16 x bf16 with f32.
        source: 'registers'.
        Architectures: sm_90a.
        """

    def m64n136k16(
        self, a: DTypeLike, b: DTypeLike, accumulator: DTypeLike, d: DTypeLike = ..., /,
        *, source: str = ...
    ) -> _WgmmaInstruction:
        """wgmma.m64n136k16: f16 x f16 with f16 or f32; bf16 x bf16 with f32.
        source: 'registers'.
        Architectures: sm_90a.
        """

    def m64n144k16(
        self, a: DTypeLike, b: DTypeLike, accumulator: DTypeLike, d: DTypeLike = ..., /,
        *, source: str = ...
    ) -> _WgmmaInstruction:
        """wgmma.m64n144k16: f16 x f16 with f16 or f32; bf16 x bf16 with f32.
        source: 'registers'.
        Architectures: sm_90a.
        """

    def m64n152k16(
        self, a: DTypeLike, b: DTypeLike, accumulator: DTypeLike, d: DTypeLike = ..., /,
        *, source: str = ...
    ) -> _WgmmaInstruction:
        """wgmma.m64n152k16: f16 x f16 with f16 or f32; bf16 x bf16 with f32.
        source: 'registers'.
        Architectures: sm_90a.
        """

    def m64n160k16(
        self, a: DTypeLike, b: DTypeLike, accumulator: DTypeLike, d: DTypeLike = ..., /,
        *, source: str = ...
    ) -> _WgmmaInstruction:
        """wgmma.m64n160k16: f16 x f16 with f16 or f32; bf16 x bf16 with f32.
        source: 'registers'.
        Architectures: sm_90a.
        """

    def m64n168k16(
        self, a: DTypeLike, b: DTypeLike, accumulator: DTypeLike, d: DTypeLike = ..., /,
        *, source: str = ...
    ) -> _WgmmaInstruction:
        """wgmma.m64n168k16: f16 x f16 with f16 or f32; bf16 x bf16 with f32.
        source: 'registers'.
        Architectures: sm_90a.
        """

    def m64n176k16(
        self, a: DTypeLike, b: DTypeLike, accumulator: DTypeLike, d: DTypeLike = ..., /,
        *, source: str = ...
    ) -> _WgmmaInstruction:
        """wgmma.m64n176k16: f16 x f16 with f16 or f32; bf16 x bf16 with f32.
        source: 'registers'.
        Architectures: sm_90a.
        """

    def m64n184k16(
        self, a: DTypeLike, b: DTypeLike, accumulator: DTypeLike, d: DTypeLike = ..., /,
        *, source: str = ...
    ) -> _WgmmaInstruction:
        """wgmma.m64n184k16: f16 x f16 with f16 or f32; bf16 x bf16 with f32.
        source: 'registers'.
        Architectures: sm_90a.
        """

    def m64n192k16(
        self, a: DTypeLike, b: DTypeLike, accumulator: DTypeLike, d: DTypeLike = ..., /,
        *, source: str = ...
    ) -> _WgmmaInstruction:
        """wgmma.m64n192k16: f16 x f16 with f16 or f32; bf16 x bf16 with f32.
        source: 'registers'.
        Architectures: sm_90a.
        """

    def m64n200k16(
        self, a: DTypeLike, b: DTypeLike, accumulator: DTypeLike, d: DTypeLike = ..., /,
        *, source: str = ...
    ) -> _WgmmaInstruction:
        """wgmma.m64n200k16: f16 x f16 with f16 or f32; bf16 x bf16 with f32.
        source: 'registers'.
        Architectures: sm_90a.
        """

    def m64n208k16(
        self, a: DTypeLike, b: DTypeLike, accumulator: DTypeLike, d: DTypeLike = ..., /,
        *, source: str = ...
    ) -> _WgmmaInstruction:
        """wgmma.m64n208k16: f16 x f16 with f16 or f32; bf16 x bf16 with f32.
        source: 'registers'.
        Architectures: sm_90a.
        """

    def m64n216k16(
        self, a: DTypeLike, b: DTypeLike, accumulator: DTypeLike, d: DTypeLike = ..., /,
        *, source: str = ...
    ) -> _WgmmaInstruction:
        """wgmma.m64n216k16: f16 x f16 with f16 or f32; bf16 x bf16 with f32.
        source: 'registers'.
        Architectures: sm_90a.
        """

    def m64n224k16(
        self, a: DTypeLike, b: DTypeLike, accumulator: DTypeLike, d: DTypeLike = ..., /,
        *, source: str = ...
    ) -> _WgmmaInstruction:
        """wgmma.m64n224k16: f16 x f16 with f16 or f32; bf16 x bf16 with f32.
        source: 'registers'.
        Architectures: sm_90a.
        """

    def m64n232k16(
        self, a: DTypeLike, b: DTypeLike, accumulator: DTypeLike, d: DTypeLike = ..., /,
        *, source: str = ...
    ) -> _WgmmaInstruction:
        """wgmma.m64n232k16: f16 x f16 with f16 or f32; bf16 x bf16 with f32.
        source: 'registers'.
        Architectures: sm_90a.
        """

    def m64n240k16(
        self, a: DTypeLike, b: DTypeLike, accumulator: DTypeLike, d: DTypeLike = ..., /,
        *, source: str = ...
    ) -> _WgmmaInstruction:
        """wgmma.m64n240k16: f16 x f16 with f16 or f32; bf16 x bf16 with f32.
        source: 'registers'.
        Architectures: sm_90a.
        """

    def m64n248k16(
        self, a: DTypeLike, b: DTypeLike, accumulator: DTypeLike, d: DTypeLike = ..., /,
        *, source: str = ...
    ) -> _WgmmaInstruction:
        """wgmma.m64n248k16: f16 x f16 with f16 or f32; bf16 x bf16 with f32.
        source: 'registers'.
        Architectures: sm_90a.
        """

    def m64n256k16(
        self, a: DTypeLike, b: DTypeLike, accumulator: DTypeLike, d: DTypeLike = ..., /,
        *, source: str = ...
    ) -> _WgmmaInstruction:
        """wgmma.m64n256k16: f16 x f16 with f16 or f32; bf16 x bf16 with f32.
        source: 'registers'.
        Architectures: sm_90a.
        """

    def m64n8k8(
        self, a: DTypeLike, b: DTypeLike, accumulator: DTypeLike, d: DTypeLike = ..., /,
        *, source: str = ...
    ) -> _WgmmaInstruction:
        """wgmma.m64n8k8: tf32 x tf32 with f32.
        source: 'registers'.
        Architectures: sm_90a.
        """

    def m64n16k8(
        self, a: DTypeLike, b: DTypeLike, accumulator: DTypeLike, d: DTypeLike = ..., /,
        *, source: str = ...
    ) -> _WgmmaInstruction:
        """wgmma.m64n16k8: tf32 x tf32 with f32.
        source: 'registers'.
        Architectures: sm_90a.
        """

    def m64n24k8(
        self, a: DTypeLike, b: DTypeLike, accumulator: DTypeLike, d: DTypeLike = ..., /,
        *, source: str = ...
    ) -> _WgmmaInstruction:
        """wgmma.m64n24k8: tf32 x tf32 with f32.
        source: 'registers'.
        Architectures: sm_90a.
        """

    def m64n32k8(
        self, a: DTypeLike, b: DTypeLike, accumulator: DTypeLike, d: DTypeLike = ..., /,
        *, source: str = ...
    ) -> _WgmmaInstruction:
        """wgmma.m64n32k8: tf32 x tf32 with f32.
        source: 'registers'.
        Architectures: sm_90a.
        """

    def m64n40k8(
        self, a: DTypeLike, b: DTypeLike, accumulator: DTypeLike, d: DTypeLike = ..., /,
        *, source: str = ...
    ) -> _WgmmaInstruction:
        """wgmma.m64n40k8: tf32 x tf32 with f32.
        source: 'registers'.
        Architectures: sm_90a.
        """

    def m64n48k8(
        self, a: DTypeLike, b: DTypeLike, accumulator: DTypeLike, d: DTypeLike = ..., /,
        *, source: str = ...
    ) -> _WgmmaInstruction:
        """wgmma.m64n48k8: tf32 x tf32 with f32.
        source: 'registers'.
        Architectures: sm_90a.
        """

    def m64n56k8(
        self, a: DTypeLike, b: DTypeLike, accumulator: DTypeLike, d: DTypeLike = ..., /,
        *, source: str = ...
    ) -> _WgmmaInstruction:
        """wgmma.m64n56k8: tf32 x tf32 with f32.
        source: 'registers'.
        Architectures: sm_90a.
        """

    def m64n64k8(
        self, a: DTypeLike, b: DTypeLike, accumulator: DTypeLike, d: DTypeLike = ..., /,
        *, source: str = ...
    ) -> _WgmmaInstruction:
        """wgmma.m64n64k8: tf32 x tf32 with f32.
        source: 'registers'.
        Architectures: sm_90a.
        """

    def m64n72k8(
        self, a: DTypeLike, b: DTypeLike, accumulator: DTypeLike, d: DTypeLike = ..., /,
        *, source: str = ...
    ) -> _WgmmaInstruction:
        """wgmma.m64n72k8: tf32 x tf32 with f32.
        source: 'registers'.
        Architectures: sm_90a.
        """

    def m64n80k8(
        self, a: DTypeLike, b: DTypeLike, accumulator: DTypeLike, d: DTypeLike = ..., /,
        *, source: str = ...
    ) -> _WgmmaInstruction:
        """wgmma.m64n80k8: tf32 x tf32 with f32.
        source: 'registers'.
        Architectures: sm_90a.
        """

    def m64n88k8(
        self, a: DTypeLike, b: DTypeLike, accumulator: DTypeLike, d: DTypeLike = ..., /,
        *, source: str = ...
    ) -> _WgmmaInstruction:
        """wgmma.m64n88k8: tf32 x tf32 with f32.
        source: 'registers'.
        Architectures: sm_90a.
        """

    def m64n96k8(
        self, a: DTypeLike, b: DTypeLike, accumulator: DTypeLike, d: DTypeLike = ..., /,
        *, source: str = ...
    ) -> _WgmmaInstruction:
        """wgmma.m64n96k8: tf32 x tf32 with f32.
        source: 'registers'.
        Architectures: sm_90a.
        """

    def m64n104k8(
        self, a: DTypeLike, b: DTypeLike, accumulator: DTypeLike, d: DTypeLike = ..., /,
        *, source: str = ...
    ) -> _WgmmaInstruction:
        """wgmma.m64n104k8: tf32 x tf32 with f32.
        source: 'registers'.
        Architectures: sm_90a.
        """

    def m64n112k8(
        self, a: DTypeLike, b: DTypeLike, accumulator: DTypeLike, d: DTypeLike = ..., /,
        *, source: str = ...
    ) -> _WgmmaInstruction:
        """wgmma.m64n112k8: tf32 x tf32 with f32.
        source: 'registers'.
        Architectures: sm_90a.
        """

    def m64n120k8(
        self, a: DTypeLike, b: DTypeLike, accumulator: DTypeLike, d: DTypeLike = ..., /,
        *, source: str = ...
    ) -> _WgmmaInstruction:
        """wgmma.m64n120k8: tf32 x tf32 with f32.
        source: 'registers'.
        Architectures: sm_90a.
        """

    def m64n128k8(
        self, a: DTypeLike, b: DTypeLike, accumulator: DTypeLike, d: DTypeLike = ..., /,
        *, source: str = ...
    ) -> _WgmmaInstruction:
        """wgmma.m64n128k8: tf32 x tf32 with f32.
        source: 'registers'.
        Architectures: sm_90a.
        """

    def m64n136k8(
        self, a: DTypeLike, b: DTypeLike, accumulator: DTypeLike, d: DTypeLike = ..., /,
        *, source: str = ...
    ) -> _WgmmaInstruction:
        """wgmma.m64n136k8: tf32 x tf32 with f32.
        source: 'registers'.
        Architectures: sm_90a.
        """

    def m64n144k8(
        self, a: DTypeLike, b: DTypeLike, accumulator: DTypeLike, d: DTypeLike = ..., /,
        *, source: str = ...
    ) -> _WgmmaInstruction:
        """wgmma.m64n144k8: tf32 x tf32 with f32.
        source: 'registers'.
        Architectures: sm_90a.
        """

    def m64n152k8(
        self, a: DTypeLike, b: DTypeLike, accumulator: DTypeLike, d: DTypeLike = ..., /,
        *, source: str = ...
    ) -> _WgmmaInstruction:
        """wgmma.m64n152k8: tf32 x tf32 with f32.
        source: 'registers'.
        Architectures: sm_90a.
        """

    def m64n160k8(
        self, a: DTypeLike, b: DTypeLike, accumulator: DTypeLike, d: DTypeLike = ..., /,
        *, source: str = ...
    ) -> _WgmmaInstruction:
        """wgmma.m64n160k8: tf32 x tf32 with f32.
        source: 'registers'.
        Architectures: sm_90a.
        """

    def m64n168k8(
        self, a: DTypeLike, b: DTypeLike, accumulator: DTypeLike, d: DTypeLike = ..., /,
        *, source: str = ...
    ) -> _WgmmaInstruction:
        """wgmma.m64n168k8: tf32 x tf32 with f32.
        source: 'registers'.
        Architectures: sm_90a.
        """

    def m64n176k8(
        self, a: DTypeLike, b: DTypeLike, accumulator: DTypeLike, d: DTypeLike = ..., /,
        *, source: str = ...
    ) -> _WgmmaInstruction:
        """wgmma.m64n176k8: tf32 x tf32 with f32.
        source: 'registers'.
        Architectures: sm_90a.
        """

    def m64n184k8(
        self, a: DTypeLike, b: DTypeLike, accumulator: DTypeLike, d: DTypeLike = ..., /,
        *, source: str = ...
    ) -> _WgmmaInstruction:
        """wgmma.m64n184k8: tf32 x tf32 with f32.
        source: 'registers'.
        Architectures: sm_90a.
        """

    def m64n192k8(
        self, a: DTypeLike, b: DTypeLike, accumulator: DTypeLike, d: DTypeLike = ..., /,
        *, source: str = ...
    ) -> _WgmmaInstruction:
        """wgmma.m64n192k8: tf32 x tf32 with f32.
        source: 'registers'.
        Architectures: sm_90a.
        """

    def m64n200k8(
        self, a: DTypeLike, b: DTypeLike, accumulator: DTypeLike, d: DTypeLike = ..., /,
        *, source: str = ...
    ) -> _WgmmaInstruction:
        """wgmma.m64n200k8: tf32 x tf32 with f32.
        source: 'registers'.
        Architectures: sm_90a.
        """

    def m64n208k8(
        self, a: DTypeLike, b: DTypeLike, accumulator: DTypeLike, d: DTypeLike = ..., /,
        *, source: str = ...
    ) -> _WgmmaInstruction:
        """wgmma.m64n208k8: tf32 x tf32 with f32.
        source: 'registers'.
        Architectures: sm_90a.
        """

    def m64n216k8(
        self, a: DTypeLike, b: DTypeLike, accumulator: DTypeLike, d: DTypeLike = ..., /,
        *, source: str = ...
    ) -> _WgmmaInstruction:
        """wgmma.m64n216k8: tf32 x tf32 with f32.
        source: 'registers'.
        Architectures: sm_90a.
        """

    def m64n224k8(
        self, a: DTypeLike, b: DTypeLike, accumulator: DTypeLike, d: DTypeLike = ..., /,
        *, source: str = ...
    ) -> _WgmmaInstruction:
        """wgmma.m64n224k8: tf32 x tf32 with f32.
        source: 'registers'.
        Architectures: sm_90a.
        """

    def m64n232k8(
        self, a: DTypeLike, b: DTypeLike, accumulator: DTypeLike, d: DTypeLike = ..., /,
        *, source: str = ...
    ) -> _WgmmaInstruction:
        """wgmma.m64n232k8: tf32 x tf32 with f32.
        source: 'registers'.
        Architectures: sm_90a.
        """

    def m64n240k8(
        self, a: DTypeLike, b: DTypeLike, accumulator: DTypeLike, d: DTypeLike = ..., /,
        *, source: str = ...
    ) -> _WgmmaInstruction:
        """wgmma.m64n240k8: tf32 x tf32 with f32.
        source: 'registers'.
        Architectures: sm_90a.
        """

    def m64n248k8(
        self, a: DTypeLike, b: DTypeLike, accumulator: DTypeLike, d: DTypeLike = ..., /,
        *, source: str = ...
    ) -> _WgmmaInstruction:
        """wgmma.m64n248k8: tf32 x tf32 with f32.
        source: 'registers'.
        Architectures: sm_90a.
        """

    def m64n256k8(
        self, a: DTypeLike, b: DTypeLike, accumulator: DTypeLike, d: DTypeLike = ..., /,
        *, source: str = ...
    ) -> _WgmmaInstruction:
        """wgmma.m64n256k8: tf32 x tf32 with f32.
        source: 'registers'.
        Architectures: sm_90a.
        """

    def m64n8k32(
        self, a: DTypeLike, b: DTypeLike, accumulator: DTypeLike, d: DTypeLike = ..., /,
        *, source: str = ..., satfinite: bool = ...
    ) -> _WgmmaInstruction:
        """wgmma.m64n8k32: {e4m3, e5m2} x {e4m3, e5m2} with f16 or f32; {u8, s8} x {u8, s8} with
            s32.
        source: 'registers'.
        Architectures: sm_90a.
        """

    def m64n16k32(
        self, a: DTypeLike, b: DTypeLike, accumulator: DTypeLike, d: DTypeLike = ..., /,
        *, source: str = ..., satfinite: bool = ...
    ) -> _WgmmaInstruction:
        """wgmma.m64n16k32: {e4m3, e5m2} x {e4m3, e5m2} with f16 or f32; {u8, s8} x {u8, s8} with
            s32.
        source: 'registers'.
        Architectures: sm_90a.
        """

    def m64n24k32(
        self, a: DTypeLike, b: DTypeLike, accumulator: DTypeLike, d: DTypeLike = ..., /,
        *, source: str = ..., satfinite: bool = ...
    ) -> _WgmmaInstruction:
        """wgmma.m64n24k32: {e4m3, e5m2} x {e4m3, e5m2} with f16 or f32; {u8, s8} x {u8, s8} with
            s32.
        source: 'registers'.
        Architectures: sm_90a.
        """

    def m64n32k32(
        self, a: DTypeLike, b: DTypeLike, accumulator: DTypeLike, d: DTypeLike = ..., /,
        *, source: str = ..., satfinite: bool = ...
    ) -> _WgmmaInstruction:
        """wgmma.m64n32k32: {e4m3, e5m2} x {e4m3, e5m2} with f16 or f32; {u8, s8} x {u8, s8} with
            s32.
        source: 'registers'.
        Architectures: sm_90a.
        """

    def m64n40k32(
        self, a: DTypeLike, b: DTypeLike, accumulator: DTypeLike, d: DTypeLike = ..., /,
        *, source: str = ...
    ) -> _WgmmaInstruction:
        """wgmma.m64n40k32: {e4m3, e5m2} x {e4m3, e5m2} with f16 or f32.
        source: 'registers'.
        Architectures: sm_90a.
        """

    def m64n48k32(
        self, a: DTypeLike, b: DTypeLike, accumulator: DTypeLike, d: DTypeLike = ..., /,
        *, source: str = ..., satfinite: bool = ...
    ) -> _WgmmaInstruction:
        """wgmma.m64n48k32: {e4m3, e5m2} x {e4m3, e5m2} with f16 or f32; {u8, s8} x {u8, s8} with
            s32.
        source: 'registers'.
        Architectures: sm_90a.
        """

    def m64n56k32(
        self, a: DTypeLike, b: DTypeLike, accumulator: DTypeLike, d: DTypeLike = ..., /,
        *, source: str = ...
    ) -> _WgmmaInstruction:
        """wgmma.m64n56k32: {e4m3, e5m2} x {e4m3, e5m2} with f16 or f32.
        source: 'registers'.
        Architectures: sm_90a.
        """

    def m64n64k32(
        self, a: DTypeLike, b: DTypeLike, accumulator: DTypeLike, d: DTypeLike = ..., /,
        *, source: str = ..., satfinite: bool = ...
    ) -> _WgmmaInstruction:
        """wgmma.m64n64k32: {e4m3, e5m2} x {e4m3, e5m2} with f16 or f32; {u8, s8} x {u8, s8} with
            s32.
        source: 'registers'.
        Architectures: sm_90a.
        """

    def m64n72k32(
        self, a: DTypeLike, b: DTypeLike, accumulator: DTypeLike, d: DTypeLike = ..., /,
        *, source: str = ...
    ) -> _WgmmaInstruction:
        """wgmma.m64n72k32: {e4m3, e5m2} x {e4m3, e5m2} with f16 or f32.
        source: 'registers'.
        Architectures: sm_90a.
        """

    def m64n80k32(
        self, a: DTypeLike, b: DTypeLike, accumulator: DTypeLike, d: DTypeLike = ..., /,
        *, source: str = ..., satfinite: bool = ...
    ) -> _WgmmaInstruction:
        """wgmma.m64n80k32: {e4m3, e5m2} x {e4m3, e5m2} with f16 or f32; {u8, s8} x {u8, s8} with
            s32.
        source: 'registers'.
        Architectures: sm_90a.
        """

    def m64n88k32(
        self, a: DTypeLike, b: DTypeLike, accumulator: DTypeLike, d: DTypeLike = ..., /,
        *, source: str = ...
    ) -> _WgmmaInstruction:
        """wgmma.m64n88k32: {e4m3, e5m2} x {e4m3, e5m2} with f16 or f32.
        source: 'registers'.
        Architectures: sm_90a.
        """

    def m64n96k32(
        self, a: DTypeLike, b: DTypeLike, accumulator: DTypeLike, d: DTypeLike = ..., /,
        *, source: str = ..., satfinite: bool = ...
    ) -> _WgmmaInstruction:
        """wgmma.m64n96k32: {e4m3, e5m2} x {e4m3, e5m2} with f16 or f32; {u8, s8} x {u8, s8} with
            s32.
        source: 'registers'.
        Architectures: sm_90a.
        """

    def m64n104k32(
        self, a: DTypeLike, b: DTypeLike, accumulator: DTypeLike, d: DTypeLike = ..., /,
        *, source: str = ...
    ) -> _WgmmaInstruction:
        """wgmma.m64n104k32: {e4m3, e5m2} x {e4m3, e5m2} with f16 or f32.
        source: 'registers'.
        Architectures: sm_90a.
        """

    def m64n112k32(
        self, a: DTypeLike, b: DTypeLike, accumulator: DTypeLike, d: DTypeLike = ..., /,
        *, source: str = ..., satfinite: bool = ...
    ) -> _WgmmaInstruction:
        """wgmma.m64n112k32: {e4m3, e5m2} x {e4m3, e5m2} with f16 or f32; {u8, s8} x {u8, s8} with
            s32.
        source: 'registers'.
        Architectures: sm_90a.
        """

    def m64n120k32(
        self, a: DTypeLike, b: DTypeLike, accumulator: DTypeLike, d: DTypeLike = ..., /,
        *, source: str = ...
    ) -> _WgmmaInstruction:
        """wgmma.m64n120k32: {e4m3, e5m2} x {e4m3, e5m2} with f16 or f32.
        source: 'registers'.
        Architectures: sm_90a.
        """

    def m64n128k32(
        self, a: DTypeLike, b: DTypeLike, accumulator: DTypeLike, d: DTypeLike = ..., /,
        *, source: str = ..., satfinite: bool = ...
    ) -> _WgmmaInstruction:
        """wgmma.m64n128k32: {e4m3, e5m2} x {e4m3, e5m2} with f16 or f32; {u8, s8} x {u8, s8} with
            s32.
        source: 'registers'.
        Architectures: sm_90a.
        """

    def m64n136k32(
        self, a: DTypeLike, b: DTypeLike, accumulator: DTypeLike, d: DTypeLike = ..., /,
        *, source: str = ...
    ) -> _WgmmaInstruction:
        """wgmma.m64n136k32: {e4m3, e5m2} x {e4m3, e5m2} with f16 or f32.
        source: 'registers'.
        Architectures: sm_90a.
        """

    def m64n144k32(
        self, a: DTypeLike, b: DTypeLike, accumulator: DTypeLike, d: DTypeLike = ..., /,
        *, source: str = ..., satfinite: bool = ...
    ) -> _WgmmaInstruction:
        """wgmma.m64n144k32: {e4m3, e5m2} x {e4m3, e5m2} with f16 or f32; {u8, s8} x {u8, s8} with
            s32.
        source: 'registers'.
        Architectures: sm_90a.
        """

    def m64n152k32(
        self, a: DTypeLike, b: DTypeLike, accumulator: DTypeLike, d: DTypeLike = ..., /,
        *, source: str = ...
    ) -> _WgmmaInstruction:
        """wgmma.m64n152k32: {e4m3, e5m2} x {e4m3, e5m2} with f16 or f32.
        source: 'registers'.
        Architectures: sm_90a.
        """

    def m64n160k32(
        self, a: DTypeLike, b: DTypeLike, accumulator: DTypeLike, d: DTypeLike = ..., /,
        *, source: str = ..., satfinite: bool = ...
    ) -> _WgmmaInstruction:
        """wgmma.m64n160k32: {e4m3, e5m2} x {e4m3, e5m2} with f16 or f32; {u8, s8} x {u8, s8} with
            s32.
        source: 'registers'.
        Architectures: sm_90a.
        """

    def m64n168k32(
        self, a: DTypeLike, b: DTypeLike, accumulator: DTypeLike, d: DTypeLike = ..., /,
        *, source: str = ...
    ) -> _WgmmaInstruction:
        """wgmma.m64n168k32: {e4m3, e5m2} x {e4m3, e5m2} with f16 or f32.
        source: 'registers'.
        Architectures: sm_90a.
        """

    def m64n176k32(
        self, a: DTypeLike, b: DTypeLike, accumulator: DTypeLike, d: DTypeLike = ..., /,
        *, source: str = ..., satfinite: bool = ...
    ) -> _WgmmaInstruction:
        """wgmma.m64n176k32: {e4m3, e5m2} x {e4m3, e5m2} with f16 or f32; {u8, s8} x {u8, s8} with
            s32.
        source: 'registers'.
        Architectures: sm_90a.
        """

    def m64n184k32(
        self, a: DTypeLike, b: DTypeLike, accumulator: DTypeLike, d: DTypeLike = ..., /,
        *, source: str = ...
    ) -> _WgmmaInstruction:
        """wgmma.m64n184k32: {e4m3, e5m2} x {e4m3, e5m2} with f16 or f32.
        source: 'registers'.
        Architectures: sm_90a.
        """

    def m64n192k32(
        self, a: DTypeLike, b: DTypeLike, accumulator: DTypeLike, d: DTypeLike = ..., /,
        *, source: str = ..., satfinite: bool = ...
    ) -> _WgmmaInstruction:
        """wgmma.m64n192k32: {e4m3, e5m2} x {e4m3, e5m2} with f16 or f32; {u8, s8} x {u8, s8} with
            s32.
        source: 'registers'.
        Architectures: sm_90a.
        """

    def m64n200k32(
        self, a: DTypeLike, b: DTypeLike, accumulator: DTypeLike, d: DTypeLike = ..., /,
        *, source: str = ...
    ) -> _WgmmaInstruction:
        """wgmma.m64n200k32: {e4m3, e5m2} x {e4m3, e5m2} with f16 or f32.
        source: 'registers'.
        Architectures: sm_90a.
        """

    def m64n208k32(
        self, a: DTypeLike, b: DTypeLike, accumulator: DTypeLike, d: DTypeLike = ..., /,
        *, source: str = ..., satfinite: bool = ...
    ) -> _WgmmaInstruction:
        """wgmma.m64n208k32: {e4m3, e5m2} x {e4m3, e5m2} with f16 or f32; {u8, s8} x {u8, s8} with
            s32.
        source: 'registers'.
        Architectures: sm_90a.
        """

    def m64n216k32(
        self, a: DTypeLike, b: DTypeLike, accumulator: DTypeLike, d: DTypeLike = ..., /,
        *, source: str = ...
    ) -> _WgmmaInstruction:
        """wgmma.m64n216k32: {e4m3, e5m2} x {e4m3, e5m2} with f16 or f32.
        source: 'registers'.
        Architectures: sm_90a.
        """

    def m64n224k32(
        self, a: DTypeLike, b: DTypeLike, accumulator: DTypeLike, d: DTypeLike = ..., /,
        *, source: str = ..., satfinite: bool = ...
    ) -> _WgmmaInstruction:
        """wgmma.m64n224k32: {e4m3, e5m2} x {e4m3, e5m2} with f16 or f32; {u8, s8} x {u8, s8} with
            s32.
        source: 'registers'.
        Architectures: sm_90a.
        """

    def m64n232k32(
        self, a: DTypeLike, b: DTypeLike, accumulator: DTypeLike, d: DTypeLike = ..., /,
        *, source: str = ...
    ) -> _WgmmaInstruction:
        """wgmma.m64n232k32: {e4m3, e5m2} x {e4m3, e5m2} with f16 or f32.
        source: 'registers'.
        Architectures: sm_90a.
        """

    def m64n240k32(
        self, a: DTypeLike, b: DTypeLike, accumulator: DTypeLike, d: DTypeLike = ..., /,
        *, source: str = ..., satfinite: bool = ...
    ) -> _WgmmaInstruction:
        """wgmma.m64n240k32: {e4m3, e5m2} x {e4m3, e5m2} with f16 or f32; {u8, s8} x {u8, s8} with
            s32.
        source: 'registers'.
        Architectures: sm_90a.
        """

    def m64n248k32(
        self, a: DTypeLike, b: DTypeLike, accumulator: DTypeLike, d: DTypeLike = ..., /,
        *, source: str = ...
    ) -> _WgmmaInstruction:
        """wgmma.m64n248k32: {e4m3, e5m2} x {e4m3, e5m2} with f16 or f32.
        source: 'registers'.
        Architectures: sm_90a.
        """

    def m64n256k32(
        self, a: DTypeLike, b: DTypeLike, accumulator: DTypeLike, d: DTypeLike = ..., /,
        *, source: str = ..., satfinite: bool = ...
    ) -> _WgmmaInstruction:
        """wgmma.m64n256k32: {e4m3, e5m2} x {e4m3, e5m2} with f16 or f32; {u8, s8} x {u8, s8} with
            s32.
        source: 'registers'.
        Architectures: sm_90a.
        """

    def m64n8k256(
        self, a: DTypeLike, b: DTypeLike, accumulator: DTypeLike, d: DTypeLike = ..., /,
        *, operation: str = ..., source: str = ...
    ) -> _WgmmaInstruction:
        """wgmma.m64n8k256: b1 x b1 with s32.
        operation: 'and'.
        source: 'registers'.
        Architectures: sm_90a.
        """

    def m64n16k256(
        self, a: DTypeLike, b: DTypeLike, accumulator: DTypeLike, d: DTypeLike = ..., /,
        *, operation: str = ..., source: str = ...
    ) -> _WgmmaInstruction:
        """wgmma.m64n16k256: b1 x b1 with s32.
        operation: 'and'.
        source: 'registers'.
        Architectures: sm_90a.
        """

    def m64n24k256(
        self, a: DTypeLike, b: DTypeLike, accumulator: DTypeLike, d: DTypeLike = ..., /,
        *, operation: str = ..., source: str = ...
    ) -> _WgmmaInstruction:
        """wgmma.m64n24k256: b1 x b1 with s32.
        operation: 'and'.
        source: 'registers'.
        Architectures: sm_90a.
        """

    def m64n32k256(
        self, a: DTypeLike, b: DTypeLike, accumulator: DTypeLike, d: DTypeLike = ..., /,
        *, operation: str = ..., source: str = ...
    ) -> _WgmmaInstruction:
        """wgmma.m64n32k256: b1 x b1 with s32.
        operation: 'and'.
        source: 'registers'.
        Architectures: sm_90a.
        """

    def m64n48k256(
        self, a: DTypeLike, b: DTypeLike, accumulator: DTypeLike, d: DTypeLike = ..., /,
        *, operation: str = ..., source: str = ...
    ) -> _WgmmaInstruction:
        """wgmma.m64n48k256: b1 x b1 with s32.
        operation: 'and'.
        source: 'registers'.
        Architectures: sm_90a.
        """

    def m64n64k256(
        self, a: DTypeLike, b: DTypeLike, accumulator: DTypeLike, d: DTypeLike = ..., /,
        *, operation: str = ..., source: str = ...
    ) -> _WgmmaInstruction:
        """wgmma.m64n64k256: b1 x b1 with s32.
        operation: 'and'.
        source: 'registers'.
        Architectures: sm_90a.
        """

    def m64n80k256(
        self, a: DTypeLike, b: DTypeLike, accumulator: DTypeLike, d: DTypeLike = ..., /,
        *, operation: str = ..., source: str = ...
    ) -> _WgmmaInstruction:
        """wgmma.m64n80k256: b1 x b1 with s32.
        operation: 'and'.
        source: 'registers'.
        Architectures: sm_90a.
        """

    def m64n96k256(
        self, a: DTypeLike, b: DTypeLike, accumulator: DTypeLike, d: DTypeLike = ..., /,
        *, operation: str = ..., source: str = ...
    ) -> _WgmmaInstruction:
        """wgmma.m64n96k256: b1 x b1 with s32.
        operation: 'and'.
        source: 'registers'.
        Architectures: sm_90a.
        """

    def m64n112k256(
        self, a: DTypeLike, b: DTypeLike, accumulator: DTypeLike, d: DTypeLike = ..., /,
        *, operation: str = ..., source: str = ...
    ) -> _WgmmaInstruction:
        """wgmma.m64n112k256: b1 x b1 with s32.
        operation: 'and'.
        source: 'registers'.
        Architectures: sm_90a.
        """

    def m64n128k256(
        self, a: DTypeLike, b: DTypeLike, accumulator: DTypeLike, d: DTypeLike = ..., /,
        *, operation: str = ..., source: str = ...
    ) -> _WgmmaInstruction:
        """wgmma.m64n128k256: b1 x b1 with s32.
        operation: 'and'.
        source: 'registers'.
        Architectures: sm_90a.
        """

    def m64n144k256(
        self, a: DTypeLike, b: DTypeLike, accumulator: DTypeLike, d: DTypeLike = ..., /,
        *, operation: str = ..., source: str = ...
    ) -> _WgmmaInstruction:
        """wgmma.m64n144k256: b1 x b1 with s32.
        operation: 'and'.
        source: 'registers'.
        Architectures: sm_90a.
        """

    def m64n160k256(
        self, a: DTypeLike, b: DTypeLike, accumulator: DTypeLike, d: DTypeLike = ..., /,
        *, operation: str = ..., source: str = ...
    ) -> _WgmmaInstruction:
        """wgmma.m64n160k256: b1 x b1 with s32.
        operation: 'and'.
        source: 'registers'.
        Architectures: sm_90a.
        """

    def m64n176k256(
        self, a: DTypeLike, b: DTypeLike, accumulator: DTypeLike, d: DTypeLike = ..., /,
        *, operation: str = ..., source: str = ...
    ) -> _WgmmaInstruction:
        """wgmma.m64n176k256: b1 x b1 with s32.
        operation: 'and'.
        source: 'registers'.
        Architectures: sm_90a.
        """

    def m64n192k256(
        self, a: DTypeLike, b: DTypeLike, accumulator: DTypeLike, d: DTypeLike = ..., /,
        *, operation: str = ..., source: str = ...
    ) -> _WgmmaInstruction:
        """wgmma.m64n192k256: b1 x b1 with s32.
        operation: 'and'.
        source: 'registers'.
        Architectures: sm_90a.
        """

    def m64n208k256(
        self, a: DTypeLike, b: DTypeLike, accumulator: DTypeLike, d: DTypeLike = ..., /,
        *, operation: str = ..., source: str = ...
    ) -> _WgmmaInstruction:
        """wgmma.m64n208k256: b1 x b1 with s32.
        operation: 'and'.
        source: 'registers'.
        Architectures: sm_90a.
        """

    def m64n224k256(
        self, a: DTypeLike, b: DTypeLike, accumulator: DTypeLike, d: DTypeLike = ..., /,
        *, operation: str = ..., source: str = ...
    ) -> _WgmmaInstruction:
        """wgmma.m64n224k256: b1 x b1 with s32.
        operation: 'and'.
        source: 'registers'.
        Architectures: sm_90a.
        """

    def m64n240k256(
        self, a: DTypeLike, b: DTypeLike, accumulator: DTypeLike, d: DTypeLike = ..., /,
        *, operation: str = ..., source: str = ...
    ) -> _WgmmaInstruction:
        """wgmma.m64n240k256: b1 x b1 with s32.
        operation: 'and'.
        source: 'registers'.
        Architectures: sm_90a.
        """

    def m64n256k256(
        self, a: DTypeLike, b: DTypeLike, accumulator: DTypeLike, d: DTypeLike = ..., /,
        *, operation: str = ..., source: str = ...
    ) -> _WgmmaInstruction:
        """wgmma.m64n256k256: b1 x b1 with s32.
        operation: 'and'.
        source: 'registers'.
        Architectures: sm_90a.
        """

class _WmmaInstruction(Instruction):
    """An instruction of wmma; called inside a kernel, it emits itself."""

    d: FragmentOperand
    a: FragmentOperand
    b: FragmentOperand
    c: FragmentOperand

    @property
    def shape(self) -> tuple[int, int, int]: ...
    def __call__(  # type: ignore[override]
        self, a: Any, b: Any, c: Any, /, *, pred: Any = None, otherwise: Any = ...
    ) -> RegisterGroup:
        """The result in registers. pred: emit it guarded; otherwise: the result where it fails."""

class _Wmma:
    """wmma: a method for each shape, which takes element types."""

    def __call__(self, *types: DTypeLike, **options: Any) -> _WmmaInstruction:
        """The instruction with these types; `shape=` selects one if several shapes have them."""

    def m16n16k16(
        self, a: DTypeLike, b: DTypeLike, accumulator: DTypeLike, d: DTypeLike = ..., /,
        *, layout: str = ..., satfinite: bool = ...
    ) -> _WmmaInstruction:
        """wmma.m16n16k16: f16 x f16 with f16 or f32; s8 x s8, u8 x u8 with s32; bf16 x bf16 with
            f32.
        layout: 'row.row', 'row.col', 'col.row', 'col.col'.
        Architectures: sm_70 or later, sm_72 or later, sm_80 or later.
        """

    def m8n32k16(
        self, a: DTypeLike, b: DTypeLike, accumulator: DTypeLike, d: DTypeLike = ..., /,
        *, layout: str = ..., satfinite: bool = ...
    ) -> _WmmaInstruction:
        """wmma.m8n32k16: f16 x f16 with f16 or f32; s8 x s8, u8 x u8 with s32; bf16 x bf16 with
            f32.
        layout: 'row.row', 'row.col', 'col.row', 'col.col'.
        Architectures: sm_70 or later, sm_72 or later, sm_80 or later.
        """

    def m32n8k16(
        self, a: DTypeLike, b: DTypeLike, accumulator: DTypeLike, d: DTypeLike = ..., /,
        *, layout: str = ..., satfinite: bool = ...
    ) -> _WmmaInstruction:
        """wmma.m32n8k16: f16 x f16 with f16 or f32; s8 x s8, u8 x u8 with s32; bf16 x bf16 with
            f32.
        layout: 'row.row', 'row.col', 'col.row', 'col.col'.
        Architectures: sm_70 or later, sm_72 or later, sm_80 or later.
        """

    def m16n16k8(
        self, a: DTypeLike, b: DTypeLike, accumulator: DTypeLike, d: DTypeLike = ..., /,
        *, layout: str = ...
    ) -> _WmmaInstruction:
        """wmma.m16n16k8: tf32 x tf32 with f32.
        layout: 'row.row', 'row.col', 'col.row', 'col.col'.
        Architectures: sm_80 or later.
        """

    def m8n8k4(
        self, a: DTypeLike, b: DTypeLike, accumulator: DTypeLike, d: DTypeLike = ..., /,
        *, layout: str = ..., rounding: str = ...
    ) -> _WmmaInstruction:
        """wmma.m8n8k4: f64 x f64 with f64.
        layout: 'row.row', 'row.col', 'col.row', 'col.col'.
        rounding: 'rn', 'rz', 'rm', 'rp'.
        Architectures: sm_80 or later.
        """

    def m8n8k32(
        self, a: DTypeLike, b: DTypeLike, accumulator: DTypeLike, d: DTypeLike = ..., /,
        *, layout: str = ..., satfinite: bool = ...
    ) -> _WmmaInstruction:
        """wmma.m8n8k32: s4 x s4, u4 x u4 with s32.
        layout: 'row.col'.
        Architectures: sm_75 or later.
        """

    def m8n8k128(
        self, a: DTypeLike, b: DTypeLike, accumulator: DTypeLike, d: DTypeLike = ..., /,
        *, layout: str = ..., operation: str = ...
    ) -> _WmmaInstruction:
        """wmma.m8n8k128: b1 x b1 with s32.
        layout: 'row.col'.
        operation: 'xor', 'and'.
        Architectures: sm_75 or later, sm_80 or later.
        """

mma: _Mma
wgmma: _Wgmma
wmma: _Wmma
