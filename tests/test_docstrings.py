"""Public names are documented: sections of numpydoc, and examples that run in emulation."""

import dataclasses
import doctest
import importlib
import inspect
import re
from pathlib import Path

import numpy as np
import pytest
from numpydoc.docscrape import NumpyDocString, get_doc_object
from numpydoc.validate import validate

import tensorcore_dsl as tc
from docs import public_names
from tensorcore_dsl import isa, kernels

ROOT = Path(__file__).parent.parent
# What numpydoc calls missing or wrong: docstring, summary, parameters (also unknown
# ones, or without a description), the result.
CODES = {"GL08", "SS01", "SS03", "PR01", "PR02", "PR07", "RT01", "RT03"}
# They cannot fail but for the environment.
SAFE = {
    "cache_directory",
    "cores",
    "cupy_stream",
    "current_devices",
    "current_stream",
    "emulated_arch",
    "html_table",
    "enabled",
    "fastest_first",
    "has_program_assembler",
    "in_a_row",
    "key_function",
    "publish",
    "separately",
    "target_key",
    "torch_stream",
}
# Fields that are for the package itself, and those that the summary describes.
INTERNAL = {
    "tensorcore_dsl.codegen.cubin.Resources": {
        "registers",
        "spill_stores",
        "spill_loads",
        "local_bytes",
        "shared_bytes",
        "constant_bytes",
        "max_threads",
        "warnings",
    },
    "tensorcore_dsl.layout.Layout": {"container", "any_type"},
    "tensorcore_dsl.isa.spec.Instruction": {"effects", "template", "tied", "params", "note", "ordering"},
}


EVERY = {
    f"{group.module}.{name}": getattr(public_names.module_of(group.module), name)
    for group in public_names.groups()
    for name in group.own
}


def found_at(path):
    module, _, name = path.rpartition(".")
    return getattr(importlib.import_module(module), name)


FUNCTIONS = {n: v for n, v in EVERY.items() if inspect.isfunction(v)}
CLASSES = {n: v for n, v in EVERY.items() if inspect.isclass(v) and not issubclass(v, Exception)} | {
    path: found_at(path) for path in public_names.RECEIVED
}
# Numba's objects have no signature for others to read.
INTRINSICS = {n: v for n, v in EVERY.items() if n.startswith("tensorcore_dsl.numba.") and n not in FUNCTIONS}


def sections(value):
    return NumpyDocString(inspect.getdoc(value) or "")


def complaints(value):
    """What numpydoc finds wrong with a function."""
    errors = validate(get_doc_object(value))["errors"]
    return [f"{code}: {text}" for code, text in errors if code in CODES]


@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions_have_sections(name):
    assert complaints(FUNCTIONS[name]) == []
    parts = sections(FUNCTIONS[name])
    assert parts["Raises"] or name.rpartition(".")[2] in SAFE
    if not name.startswith(("tensorcore_dsl.host.", "tensorcore_dsl.numba.", "tensorcore_dsl.debugger.")):
        assert parts["Examples"] or parts["See Also"]
    for error, _, text in parts["Raises"]:
        assert text, error


METHODS = {
    f"{path}.{name}": getattr(value, name)
    for path, value in CLASSES.items()
    for name in public_names.MEMBERS.get(path.rpartition(".")[2], "").split(", ")
    if inspect.isfunction(getattr(value, name, None))
    # These forward to what they are configurations of, and refer to it.
    if value not in (tc.Autotuned, tc.CheckResult, tc.Finding)
}


@pytest.mark.parametrize("name", METHODS)
def test_methods_have_sections(name):
    assert complaints(METHODS[name]) == []


def test_there_are_methods():
    assert {"Kernel.emulator", "RegisterGroup.map", "Pointer.load", "Mbarrier.wait", "Launch.prepare"} <= {
        ".".join(name.split(".")[-2:]) for name in METHODS
    }


def test_a_missing_section_is_noticed():
    def f(a, b):
        """Add.

        Parameters
        ----------
        a : int
            One.
        """
        return a + b

    complaint = " ".join(complaints(f))
    assert "PR01" in complaint and "RT01" in complaint


@pytest.mark.parametrize("name", CLASSES)
def test_classes_describe_their_fields(name):
    parts = sections(CLASSES[name])
    assert parts["Summary"]
    described = {
        word.strip()
        for part in ("Parameters", "Attributes")
        for line in parts[part]
        for word in line[0].split(",")
    }
    if dataclasses.is_dataclass(CLASSES[name]):
        fields = {f.name for f in dataclasses.fields(CLASSES[name]) if f.repr and not f.name.startswith("_")}
        assert fields - described <= INTERNAL.get(name, set())


@pytest.mark.parametrize("name", INTRINSICS)
def test_intrinsics_say_what_they_take(name):
    assert inspect.getdoc(INTRINSICS[name])


def test_wrappers_name_the_section_of_the_manual():
    """What emits one instruction says which."""
    without = []
    for name, function in FUNCTIONS.items():
        code = inspect.unwrap(function).__code__
        emits = "emit" in code.co_names and function.__module__.startswith("tensorcore_dsl.lang.")
        if emits and "of the PTX manual" not in (inspect.getdoc(function) or ""):
            without.append(name)
    assert [n for n in without if n not in ("tensorcore_dsl.dynamic_shared",)] == []


OPERANDS = ("9.7.15.5.1", "9.7.15.5.1.2.2")  # descriptors of matrices, which are no instructions


def test_sections_of_the_manual_are_those_of_the_table():
    known = {i.section for i in isa.instructions()}
    named = {
        (name, section)
        for name, value in {**FUNCTIONS, **METHODS, **INTRINSICS}.items()
        for section in re.findall(r"\b9\.7(?:\.\d+)+", inspect.getdoc(value) or "")
    }
    assert len(named) > 60
    assert {pair for pair in named if pair[1] not in known and pair[1] not in OPERANDS} == set()


EXAMPLES = {n: v for n, v in {**EVERY, **CLASSES}.items() if ">>>" in (getattr(v, "__doc__", "") or "")}


def test_there_are_examples():
    assert len(EXAMPLES) > 90


@pytest.mark.parametrize("name", EXAMPLES)
def test_examples_run(name):
    namespace = {"np": np, "tc": tc, "kernels": kernels}
    test = doctest.DocTestParser().get_doctest(inspect.getdoc(EXAMPLES[name]), namespace, name, name, 0)
    said = []
    runner = doctest.DocTestRunner(optionflags=doctest.NORMALIZE_WHITESPACE)
    runner.run(test, out=said.append)
    assert runner.failures == 0, "".join(said)
