"""LLVM: optimise modules, make machine code for this processor, and load it."""

from __future__ import annotations

import ctypes
from functools import cache
from typing import Any

import llvmlite
import llvmlite.binding as llvm

from tensorcore_dsl.lowering.entry import FUNCTIONS

# Levels of optimisation. PLAIN runs a few passes, in a third of the time of VECTORS. The other passes gained
# nothing measurable on emulated kernels, unless LLVM vectorises loops. FAST also selects instructions and
# registers in a fifth of PLAIN's time.
FAST, PLAIN, VECTORS = 0, 1, 3
PASSES = ("always_inliner", "sroa", "simplify_cfg", "instruction_combine", "simplify_cfg")
_METH_FASTCALL = 0x80
_llvm: Any = llvm  # llvmlite has no types.


@cache
def processor() -> str:
    """Return the processor's properties that machine code depends on."""
    return repr(
        (
            llvmlite.__version__,
            _llvm.llvm_version_info,
            _llvm.get_process_triple(),
            _llvm.get_host_cpu_name(),
            features(),
        )
    )


@cache
def features() -> str:
    """Return the processor's features, as "+avx2,-avx512f,..."."""
    try:
        return str(_llvm.get_host_cpu_features().flatten())
    except RuntimeError:  # LLVM does not know them on all platforms
        return ""


@cache
def _target(level: int) -> Any:
    _llvm.initialize_native_target()
    _llvm.initialize_native_asmprinter()
    return _llvm.Target.from_triple(_llvm.get_process_triple()).create_target_machine(
        cpu=_llvm.get_host_cpu_name(),
        features=features(),
        opt=level,
        reloc="static" if _llvm.get_process_triple().startswith("x86_64") else "default",
        codemodel="jitdefault",
        jit=True,
    )


def object_code(text: str, level: int) -> bytes:
    """Compile LLVM IR text to an object file."""
    target = _target(level)
    module = _llvm.parse_assembly(text)
    module.triple = _llvm.get_process_triple()
    module.data_layout = str(target.target_data)
    options = _llvm.create_pipeline_tuning_options(speed_level=max(level, PLAIN))
    passes = _llvm.create_pass_builder(target, options)
    if level < VECTORS:
        manager = _llvm.create_new_module_pass_manager()
        for name in PASSES:
            getattr(manager, f"add_{name}_pass")()
    else:
        options.loop_vectorization = options.slp_vectorization = True
        options.loop_unrolling = options.loop_interleaving = True
        manager = passes.getModulePassManager()
    manager.run(module, passes)
    return bytes(target.emit_object(module))


@cache
def _engine() -> Any:
    """Return the engine that owns all machine code of the process."""
    target = _target(VECTORS)
    for name in FUNCTIONS:
        address = ctypes.cast(getattr(ctypes.pythonapi, name), ctypes.c_void_p).value
        _llvm.add_symbol(name, address)
    return _llvm.create_mcjit_compiler(_llvm.parse_assembly(""), target)


class _MethodDef(ctypes.Structure):
    _fields_ = (
        ("name", ctypes.c_char_p),
        ("function", ctypes.c_void_p),
        ("flags", ctypes.c_int),
        ("doc", ctypes.c_char_p),
    )


def address_of(name: str) -> int:
    """Return the address of a loaded function; 0 if there is none."""
    return int(_engine().get_function_address(name))


def load(code: bytes) -> None:
    """Load an object file; RuntimeError if it is damaged. All that it calls must be loaded before."""
    engine = _engine()
    file = _llvm.ObjectFileRef.from_data(code)
    if not file:
        raise RuntimeError("no object file")
    engine.add_object_file(file)
    engine.finalize_object()


def entry(name: str, constants: tuple[Any, ...]) -> Any:
    """Return the entry point `name` of loaded code as a Python function; see `entry.Entry`.

    constants: the objects that the code refers to.
    """
    return builtin(address_of(name), constants, b"loop")


def builtin(address: int, first: Any, name: bytes, doc: bytes | None = None) -> Any:
    """Make a Python function that runs the machine code at `address`, which is never freed.

    first: the object that the code gets before its arguments (METH_FASTCALL).
    """
    make = ctypes.pythonapi.PyCFunction_NewEx
    make.argtypes = [ctypes.c_void_p, ctypes.py_object, ctypes.c_void_p]
    make.restype = ctypes.py_object
    return make(ctypes.addressof(_definition(address, name, doc)), first, None)


@cache
def _definition(address: int, name: bytes, doc: bytes | None) -> _MethodDef:
    """Make a PyMethodDef. It is never freed, because functions refer to it until Python ends."""
    definition = _MethodDef(name, address, _METH_FASTCALL, doc)
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(definition))
    return definition
