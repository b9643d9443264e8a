"""Kernels under @cuda.jit that call forms of the table, and what their PTX has to look like."""

import ctypes
import re

import llvmlite.binding as llvm
import numpy as np
from llvmlite import ir
from numba import cuda
from numba.cuda import types

from tensorcore_dsl import isa
from tensorcore_dsl import numba as tn
from tensorcore_dsl.arch import ARCHS
from tensorcore_dsl.numba import matrices, registers
from tensorcore_dsl.numba.intrinsics import _fixed
from tests.assembler import assembles

SHORT = {"float32": "f", "float64": "d", "float16": "h", "__nv_bfloat16": "bh", "bool": "p"}
SHORT |= {f"{s}int{b}": f"{s or 'i'}{b}" for s in ("", "u") for b in (16, 32, 64)}
NUMBA = {n: getattr(types, n, None) for n in SHORT}
NUMBA |= {"bool": types.boolean, "__nv_bfloat16": types.bfloat16}


def compiled(function, *arguments, arch="sm_80"):
    """PTX of a kernel; the assembler has taken it, and it calls nothing."""
    text, _ = cuda.compile_ptx(function, arguments, cc=ARCHS[arch].cc)
    text = text.rstrip("\0")
    assert not assembles(text, arch)
    assert not re.search(r"\bcall\b|\.func\b", text)
    return text


def statements(text, pattern):
    return re.findall(rf"({pattern}[^;]*);", text)


def argument(operand):
    """A Python expression for an operand, from scalar parameters named by type."""
    if operand.kind == "imm":
        return str(operand.values[0] if operand.values else 24)
    name = SHORT[str(registers.element_type(operand))]
    if not registers.is_tuple(operand):
        return name
    return f"({', '.join([name] * operand.registers)},)"


def kernel_of(instrs):
    """A kernel that calls each form once and stores all results, and its argument types."""
    namespace, body, stored = {}, [], 0
    for i, instr in enumerate(instrs):
        namespace[f"f{i}"] = tn.intrinsic(instr)
        called = [o for o in instr.operands if o.name not in _fixed(instr, {})]
        call = f"f{i}({', '.join(map(argument, called))})"
        body.append(f"r = {call}" if instr.results else call)
        for j, operand in enumerate(instr.results):
            value = "r" if len(instr.results) == 1 else f"r[{j}]"
            name = SHORT[str(registers.element_type(operand))]
            for k in range(operand.registers):
                element = f"{value}[{k}]" if registers.is_tuple(operand) else value
                body.append(f"o_{name}[{stored}] = {element}")
                stored += 1
    params = [*SHORT.values(), *(f"o_{name}" for name in SHORT.values())]
    source = f"def kernel({', '.join(params)}):\n" + "".join(f"    {line}\n" for line in body)
    exec(source, namespace)
    return namespace["kernel"], [*NUMBA.values(), *(t[::1] for t in NUMBA.values())]


def expected(operand):
    """A pattern for an operand in the printed text."""
    if operand.kind == "imm":
        return r"-?\d+"
    one = r"(?:%\w+|-?\d+|0[fdFD][0-9A-Fa-f]+|p\d)"
    if operand.kind == "addr":
        return rf"\[{one}\]"
    return r"\{" + ", ".join([one] * operand.registers) + r"\}" if registers.is_tuple(operand) else one


def pattern_of(instr):
    """What the printed statement looks like, from the form's own template."""
    marks = [f"@{i}@" for i in range(len(instr.results) + len(instr.operands))]
    text = re.escape(instr.text(marks[: len(instr.results)], marks[len(instr.results) :]))
    for mark, operand in zip(marks, (*instr.results, *instr.operands)):
        text = text.replace(mark, expected(operand))
    return text


def sample():
    """For each architecture, a form of each opcode and kinds of operands."""
    order = ("sm_80", "sm_90a", "sm_100a", "sm_120a")
    chosen = {}
    for opcode in isa.opcodes():
        if opcode == "shared":
            continue
        for instr in isa.instructions(opcode):
            every = (*instr.results, *instr.operands)
            if any(o.register_bits > 64 for o in every):
                continue
            arch = next(a for a in order if instr.requires.met_by(ARCHS[a]))
            shape = tuple((o.kind, registers.is_tuple(o), o.register_bits) for o in every)
            chosen.setdefault((arch, opcode, instr.params.get("group"), shape), instr)
    groups = {}
    for (arch, *_), instr in chosen.items():
        groups.setdefault(arch, []).append(instr)
    size = 40
    return [(a, f[i : i + size]) for a, f in groups.items() for i in range(0, len(f), size)]


def evaluated(layout):
    """`coords` of a layout, computed by the LLVM code that kernels get."""
    module, word = ir.Module(), ir.IntType(32)
    kind = ir.FunctionType(ir.VoidType(), [word, word, word.as_pointer()])
    function = ir.Function(module, kind, "place")
    builder = ir.IRBuilder(function.append_basic_block())
    thread, slot, out = function.args
    for i, value in enumerate(matrices._located(builder, layout, thread, slot)):
        builder.store(value, builder.gep(out, [ir.Constant(word, i)]))
    builder.ret_void()
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    parsed = llvm.parse_assembly(str(module))
    machine = llvm.Target.from_default_triple().create_target_machine()
    with llvm.create_mcjit_compiler(parsed, machine) as engine:
        engine.finalize_object()
        pointer = ctypes.POINTER(ctypes.c_int32)
        call = ctypes.CFUNCTYPE(None, ctypes.c_uint32, ctypes.c_uint32, pointer)(
            engine.get_function_address("place")
        )
        coordinates = np.zeros((layout.threads, layout.slots, 2), np.int32)
        for t, s in np.ndindex(coordinates.shape[:2]):
            call(t, s, coordinates[t, s].ctypes.data_as(pointer))
    return coordinates


def register_images(instr, rng):
    """(32, registers) unsigned words for each operand, of small finite numbers."""
    images = []
    for operand in instr.operands:
        if operand.kind == "imm":
            images.append(0)
        elif operand.name == "e":
            images.append(np.full((32, 1), 0x44444444, np.uint32))
        else:
            layout = operand.layout
            word = np.uint64 if operand.register_bits == 64 else np.uint32
            if operand.dtype.numpy is not None and operand.dtype.is_float and operand.dtype.bits >= 8:
                matrix = rng.standard_normal((layout.rows, layout.cols)).astype(operand.dtype.numpy)
                numbers = matrix[layout.coords[..., 0], layout.coords[..., 1]]
                images.append(np.ascontiguousarray(numbers).view(word))
            else:
                images.append(rng.integers(0, 1 << 32, (32, operand.registers), np.uint32).astype(word))
    return images


def register_kernel(instr):
    """Every lane loads its registers, runs the form, stores the result."""
    namespace = {"cuda": cuda, "form": tn.intrinsic(instr)}
    operands = []
    for operand in instr.operands:
        if operand.kind == "imm":
            operands.append("0")
        else:
            parts = [f"{operand.name}[lane, {i}]" for i in range(operand.registers)]
            operands.append(f"({', '.join(parts)},)" if registers.is_tuple(operand) else parts[0])
    names = [o.name for o in instr.operands if o.kind != "imm"]
    called = [g for g, o in zip(operands, instr.operands) if o.name not in _fixed(instr, {})]
    exec(
        f"def kernel({', '.join(names)}, out):\n    lane = cuda.threadIdx.x\n"
        f"    r = form({', '.join(called)})\n    for i in range(len(r)):\n        out[lane, i] = r[i]\n",
        namespace,
    )
    return cuda.jit(namespace["kernel"])
