"""The cache of compiled kernels: hits, misses, and that no entry is stale."""

import array
import ast
import collections
import decimal
import fractions
import json
import os
import random
import re
import shutil
import subprocess
import sys
import textwrap
import threading
import types
import weakref
from pathlib import Path

import numpy as np
import pytest

import tensorcore_dsl as tc
from tensorcore_dsl.arch import arch
from tensorcore_dsl.codegen import assemble, ir_cache, kernel_cache
from tensorcore_dsl.codegen import cache_key as cache_keys
from tensorcore_dsl.codegen.cache_key import Unhashable, cache_key
from tensorcore_dsl.codegen.cubin import Cubin
from tensorcore_dsl.codegen.diagnostics import Diagnostic
from tensorcore_dsl.environment import disk_cache, distributions
from tensorcore_dsl.errors import Loc
from tensorcore_dsl.ir.nodes import Im2col, TensorMap
from tensorcore_dsl.kernel import Kernel
from tensorcore_dsl.kernels.hopper.config import HopperConfig

X = np.zeros(16, np.float32)
ROOT = Path(__file__).parents[1]


@pytest.fixture(autouse=True)
def directory(tmp_path, monkeypatch):
    monkeypatch.setenv("TENSORCORE_DSL_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(ir_cache, "MIN_SECONDS", float("inf"))  # IR that takes long has a file of its own
    return tmp_path / "cache"


@pytest.fixture
def assembled(monkeypatch):
    """The PTX that was assembled; the assembler is a stand-in."""
    found = []

    def fake_assemble(ptx, arch, name, lineinfo=False):
        found.append(ptx)
        return Cubin(name, arch.name, ptx, b"code", LOG.format(name))

    monkeypatch.setattr(assemble, "assemble", fake_assemble)
    monkeypatch.setattr(assemble, "versions", lambda: "stand-in 1")
    return found


LOG = """\
ptxas info    : Compiling entry function '{}' for 'sm_90a'
    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 10 registers
"""


# New processes see what a user changed.

FILES = {
    "helper.py": """
        import tensorcore_dsl as tc
        import settings
        TABLE = [1.0, 2.0]
        def scale(value):
            return value * settings.FACTOR + deeper(value)
        def deeper(value):
            return value + TABLE[1]
        class Shape:
            width = 4
            def area(self):
                return self.width * 2
    """,
    "settings.py": "FACTOR = 3.0\nUNUSED = 1\n",
    "user.py": """
        import sys
        import numpy as np
        import tensorcore_dsl as tc
        import helper
        from tensorcore_dsl.codegen import assemble as assembler
        from tensorcore_dsl.codegen.cubin import Cubin
        from helper import Shape
        LIMIT = 7
        def maker(offset):
            @tc.kernel
            def run(x: tc.Array, N: tc.Const = 2):
                for i in tc.static_range(N):
                    x[i] = helper.scale(x[i]) + offset + LIMIT + Shape().area()
            return run
        count = []
        LOG = "0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads\\nUsed 10 registers"
        def assemble(ptx, arch, name, lineinfo=False):
            count.append(1)
            return Cubin(name, arch.name, ptx, b"code", LOG)
        assembler.assemble, assembler.versions = assemble, lambda: "stand-in"
        run = maker(1.5)
        made = run.specialise([np.zeros(16, np.float32)], {}, "sm_90a")
        made.cubin
        print(len(count), "ir" in vars(made), hash(made.cubin.ptx) != 0)
    """,
}


def output(folder, *program, seed="0"):
    """What a program in a folder prints."""
    done = subprocess.run(
        [sys.executable, *program], cwd=folder, capture_output=True, text=True, check=False,
        env={**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{folder}", "PYTHONHASHSEED": seed,
             "PYTHONDONTWRITEBYTECODE": "1"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


def process(folder, seed="0"):
    """Whether a new process compiled."""
    count, ir, _ = output(folder, "user.py", seed=seed).split()
    assert (count == "1") == (ir == "True")
    return count == "1"


def write(folder, files):
    for name, text in files.items():
        (folder / name).write_text(textwrap.dedent(text))


# A file, an edit of it, and whether the kernel is compiled again.
EDITS = [
    ("user.py", "LIMIT = 7", "LIMIT = 8", True),
    ("user.py", "maker(1.5)", "maker(2.5)", True),
    ("user.py", "N: tc.Const = 2", "N: tc.Const = 3", True),
    ("helper.py", "value + TABLE", "value - TABLE", True),
    ("helper.py", "[1.0, 2.0]", "[1.0, 4.0]", True),
    ("helper.py", "width = 4", "width = 5", True),
    ("helper.py", "self.width * 2", "self.width * 3", True),
    ("settings.py", "FACTOR = 3.0", "FACTOR = 3.5", True),
    ("settings.py", "UNUSED = 1", "UNUSED = 2", False),
]
# Runs the program twice with each edit, in processes that have imported the package and nothing of the user's.
FORKS = """
import os, runpy, sys
import numpy, tensorcore_dsl
from pathlib import Path
for name, old, new, _ in eval(sys.argv[1]):
    text = Path(name).read_text()
    assert text.count(old) == 1
    Path(name).write_text(text.replace(old, new))
    for _ in range(2):
        sys.stdout.flush()
        child = os.fork()
        if not child:
            runpy.run_path("user.py", run_name="__main__")
            sys.stdout.flush()
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
    Path(name).write_text(text)
"""


def test_a_change_in_any_file_is_seen(tmp_path):
    write(tmp_path, {**FILES, "forks.py": FORKS})
    assert process(tmp_path)
    assert not process(tmp_path, seed="17")
    lines = output(tmp_path, "forks.py", repr(EDITS)).splitlines()
    compiled = [line.startswith("1 ") for line in lines]
    expected = [again for *_, compiles in EDITS for again in (compiles, False)]
    assert compiled == expected, [*zip(EDITS, compiled[::2], compiled[1::2])]


# What is served is what was made.


def test_everything_comes_back(directory):
    diagnostics = (Diagnostic("slow", "file.py", 12), Diagnostic("slower", "other.py", 1))
    made = Cubin(
        "name",
        "sm_90a",
        "the text é",
        b"\x7fELF\0\xff",
        "the log",
        block_shared=70000,
        threads=384,
        cluster=(2, 1, 1),
        tensor_maps=(
            TensorMap(0, (1, 0), (64, 128), 128, Loc("file.py", 3, 4, 9, "load")),
            TensorMap(1, (0,), (8,)),
            TensorMap(2, (2, 1, 0), (8, 64), im2col=Im2col((-1,), (-2,), (3,)), nan_fill=True),
        ),
    )
    kernel_cache.store("ab" * 32, made, diagnostics)
    actual = kernel_cache.load("ab" * 32)
    assert actual == (made, diagnostics)
    assert [m.loc for m in actual[0].tensor_maps] == [m.loc for m in made.tensor_maps]
    assert kernel_cache.load("cd" * 32) is None


def test_forged_entries_are_misses(directory):
    """Valid checksums over what `store` never writes: missing fields, and fields of other types."""
    name = "ab" * 32
    kernel_cache.store(
        name,
        Cubin(
            "name",
            "sm_90a",
            "ptx",
            b"code",
            "log",
            cluster=(2, 1, 1),
            tensor_maps=(TensorMap(0, (1, 0), (64, 128), 128),),
        ),
        (Diagnostic("slow", "file.py", 12),),
    )
    data, text = disk_cache.load(name)
    head = json.loads(text)
    texts = ["", "[]", "null", "3", "[" * 100_000, '{"sizes": [0, 0]}', "{" + text]
    for field in head:
        texts.append(json.dumps({n: x for n, x in head.items() if n != field}))
        for odd in (3.5, "x", [[]], {}, [-1, 2], [["a", "b", "c", "d"]], [[0, 1, 2, 3]], [["t", "f", "1"]]):
            texts.append(json.dumps(head | {field: odd}))
    texts.remove(json.dumps(head | {"name": "x"}))
    texts.remove(json.dumps(head | {"arch": "x"}))
    for forged in texts:
        disk_cache.store(name, data, forged)
        assert kernel_cache.load(name) is None, forged[:200]
    disk_cache.store(name, b"\xff\xff" + data[2:], text)
    assert kernel_cache.load(name) is None, "no text"


@pytest.mark.parametrize("payload", [b"", b"\1", b"\xff\xff\xff\xff", b"\2\0\0\0\xff\xff"])
def test_forged_files_are_misses(directory, payload):
    name = "ab" * 32
    disk_cache.store(name, b"code", "log")
    (path,) = directory.rglob("*.cubin")
    path.write_bytes(disk_cache._MAGIC + disk_cache._digest(payload) + payload)
    assert kernel_cache.load(name) is None


def test_damaged_entries_are_made_again(directory, assembled):
    cubin_of(simple)
    (path,) = directory.rglob("*.cubin")
    path.write_bytes(path.read_bytes()[:-1] + b"!")
    cubin_of(simple)
    assert len(assembled) == 2
    cubin_of(simple)
    assert len(assembled) == 2


def simple(x: tc.Array, N: tc.Const = 2):
    x[0] = x[1] * N


def cubin_of(function, types=(X,), arch="sm_90a", **options):
    constants = options.pop("constants", {})
    return Kernel(function, **options).specialise(types, constants, arch).cubin


@pytest.mark.parametrize(
    "other",
    [
        {"types": (np.zeros((2, 2), np.float32)[0, ::2],)},
        {"types": (X.astype(np.float64),)},
        {"arch": "sm_80"},
        {"constants": {"N": 3}},
        {"constants": {"N": 2.0}},
        {"constants": {"N": True}},
        {"threads": 64},
        {"name": "other"},
        {"max_registers": 40},
    ],
)
def test_what_a_kernel_is_compiled_for(other, assembled):
    cubin_of(simple)
    cubin_of(simple, **other)
    assert len(assembled) == 2
    cubin_of(simple)
    cubin_of(simple, **other)
    assert len(assembled) == 2


def test_assembler_and_package_count(assembled, monkeypatch):
    cubin_of(simple)
    monkeypatch.setattr(assemble, "versions", lambda: "stand-in 2")
    cubin_of(simple)
    assert len(assembled) == 2
    monkeypatch.setattr(cache_keys, "package_state", lambda of_ir=False: "edited")
    cubin_of(simple)
    assert len(assembled) == 3


def test_the_cache_can_be_off(assembled, monkeypatch):
    monkeypatch.setenv("TENSORCORE_DSL_CACHE", "off")
    cubin_of(simple)
    cubin_of(simple)
    assert len(assembled) == 2


# In one process: values that change.

settings = types.ModuleType("some_settings")
settings.FACTOR = 3.0
MODULES = [settings]

SETTING = 3
NESTED = {"depth": [1, (2.0, "x")]}


def uses_setting(x: tc.Array):
    x[0] = x[1] * SETTING


def uses_nested(x: tc.Array):
    x[0] = x[1] * NESTED["depth"][1][0]


def through_a_helper(x: tc.Array):
    x[0] = helper(x[1])


def helper(value):
    return value * plain(3)


def plain(number):
    return sum(SETTING for _ in range(number))  # not in the kernel language: Python runs it


@pytest.mark.parametrize("function", [uses_setting, through_a_helper])
def test_global_constants(function, assembled, monkeypatch):
    cubin_of(function)
    monkeypatch.setitem(globals(), "SETTING", 4)
    cubin_of(function)
    monkeypatch.setitem(globals(), "SETTING", 4.0)
    cubin_of(function)
    assert len(assembled) == 3 and len(set(assembled)) == 2


def test_contents_of_global_containers(assembled, monkeypatch):
    cubin_of(uses_nested)
    monkeypatch.setitem(NESTED, "depth", [1, (2.5, "x")])
    cubin_of(uses_nested)
    assert len(set(assembled)) == 2


def test_captured_values(assembled):
    def made(factor):
        def run(x: tc.Array):
            x[0] = x[1] * factor

        return run

    for factor in (1.5, 2.5, 1.5, np.float32(2.5)):
        cubin_of(made(factor))
    assert len(assembled) == 3


def test_functions_as_constants(assembled):
    def run(x: tc.Array, finish: tc.Const):
        x[0] = finish(x[1])

    def by(factor):
        return lambda value: value * factor

    for factor in (1.5, 2.5, 1.5):
        cubin_of(run, constants={"finish": by(factor)})
    cubin_of(run, constants={"finish": lambda value: value + 1})
    assert len(assembled) == len(set(assembled)) == 3


# Values without a cache key are not cached.


class Hidden:
    def __init__(self):
        self.lock = threading.Lock()

    def factor(self):
        return 2 if self.lock is not None else 3


HIDDEN = Hidden()


def uses_hidden(x: tc.Array):
    x[0] = x[1] * HIDDEN.factor()


def imports(value):
    import math

    return [math.tau for _ in (1,)][0] * value


def uses_import(x: tc.Array):
    x[0] = x[1] * imports(2)


def from_outside(value):
    return [int(os.environ.get("FACTOR", 3)) for _ in (1,)][0] * value


def uses_environment(x: tc.Array):
    x[0] = x[1] * from_outside(2)


def from_file(value):
    with open(__file__, encoding="utf-8") as file:
        return len(file.read(4)) * value


def uses_file(x: tc.Array):
    x[0] = x[1] * from_file(2)


def decorated(value):
    return [decorated.factor for _ in (1,)][0] * value


decorated.factor = 2


def uses_attribute_of_function(x: tc.Array):
    x[0] = x[1] * decorated(2)


def test_attributes_of_functions(assembled, monkeypatch):
    cubin_of(uses_attribute_of_function)
    monkeypatch.setattr(decorated, "factor", 3)
    cubin_of(uses_attribute_of_function)
    assert len(set(assembled)) == 2


@pytest.mark.parametrize("function", [uses_hidden, uses_import, uses_environment, uses_file])
def test_kernels_without_a_cache_key_are_compiled_each_time(function, assembled, directory):
    cubin_of(function)
    cubin_of(function)
    assert len(assembled) == 2
    assert not list(directory.rglob("*.cubin"))


@pytest.mark.parametrize(
    "value",
    [threading.Lock(), threading.local(), (n for n in ()), weakref.ref(Hidden), {object()}, settings],
    ids=lambda value: type(value).__name__,
)
def test_values_without_a_cache_key(value):
    with pytest.raises(Unhashable):
        cache_key(value)


def test_values_of_classes_in_c():
    def made(*values):
        return [
            collections.deque(values),
            array.array("d", values),
            collections.Counter(values),
            random.Random(values[0]),
            decimal.Decimal(values[0]),
            types.SimpleNamespace(x=values),
            re.compile(str(values[0])),
            iter(list(values)),
            fractions.Fraction(values[0], 7),
        ]

    for one, same, other in zip(made(1, 2), made(1, 2), made(3, 4), strict=True):
        assert cache_key(one) == cache_key(same) != cache_key(other), one


def through_a_captured_module(module):
    def run(x: tc.Array):
        x[0] = x[1] * module.FACTOR

    return run


def through_a_module_in_a_container(x: tc.Array):
    x[0] = x[1] * MODULES[0].FACTOR


def by_getattr(x: tc.Array):
    x[0] = x[1] * getattr(settings, "FAC" + "TOR")


@pytest.mark.parametrize(
    "function",
    [through_a_captured_module(settings), through_a_module_in_a_container, by_getattr],
    ids=["captured", "contained", "getattr"],
)
def test_names_of_modules(function, assembled, monkeypatch):
    cubin_of(function)
    monkeypatch.setattr(settings, "FACTOR", 4.0)
    cubin_of(function)
    assert len(set(assembled)) == 2


def test_values_that_python_calls_equal():
    values = [
        1,
        1.0,
        True,
        "1",
        b"1",
        1 + 0j,
        np.int8(1),
        np.int16(1),
        (1,),
        [1],
        {1},
        {1: None},
        0.0,
        -0.0,
        None,
        np.ones(1),
        np.ones((1, 1)),
        tc.f16,
        tc.bf16,
        len,
        range(1),
        slice(1),
    ]
    assert len({cache_key(value) for value in values}) == len(values)


def test_shared_and_cyclic_values():
    loop = [1]
    loop.append(loop)
    assert cache_key(loop) == cache_key(loop)
    one, same = [1], [1]
    assert cache_key([one, one]) != cache_key([one, same])  # changing one changes the other


def test_kernels_of_this_package_have_cache_keys():
    from tensorcore_dsl.kernels.hopper import wgmma_gemm

    kernel = wgmma_gemm.half_gemm
    small, large = ({"config": HopperConfig(BM=bm)} for bm in (64, 128))
    assert kernel_cache.entry_name(kernel, (), small, arch("sm_90a"), "") is not None
    names = {kernel_cache.entry_name(kernel, (), c, arch("sm_90a"), "") for c in (small, large, small)}
    assert len(names) == 2


HISTORY = """
    import contextlib, importlib, os, pickle, pkgutil, sys
    import ml_dtypes
    import numpy as np
    import tensorcore_dsl as tc
    from tensorcore_dsl import kernels
    from tensorcore_dsl.codegen.cache_key import cache_key
    from tensorcore_dsl.kernels.host import warming
    def operands(dtype):
        return np.zeros((16, 64), dtype), np.zeros((64, 16), dtype, order="F")
    def keys():
        bound = warming.kernels_of([(*operands(d), {}) for d in DTYPES], "sm_90a")
        return [cache_key(one.kernel, one.constants) for one in bound]
    DTYPES = ml_dtypes.bfloat16, np.float16, np.float32, np.float64, np.int8
    before = keys()
    for dtype in DTYPES:
        kernels.gemm(*operands(dtype))
    pickle.loads(pickle.dumps(kernels.HopperConfig()))
    folder = os.path.dirname(tc.__file__)
    for found in pkgutil.walk_packages([folder], "tensorcore_dsl.", onerror=lambda name: None):
        with contextlib.suppress(ImportError):  # of a package that is not installed, such as torch
            importlib.import_module(found.name)
    assert "tensorcore_dsl.numerics.plans" in sys.modules
    assert len(before) == len(DTYPES) and keys() == before
"""


@pytest.mark.thorough
def test_what_a_process_did_before_does_not_count(tmp_path):
    """Other modules of this package name the same objects; those are imported when needed."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "TENSORCORE_DSL_TARGET": "cpu"}
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(HISTORY)],
        env=environment,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr


EDITED = """
    import sys, time
    sys.path.insert(0, FOLDER)
    import tensorcore_dsl as tc
    from tensorcore_dsl.environment.compiled_sources import FunctionKey
    from tensorcore_dsl.interpreter.regions.memory import global_access
    if EDITS:
        time.sleep(0.02)  # the clock of files may be a little late
        for name in ("dtypes.py", "lowering/values.py"):
            with open(FOLDER + "/tensorcore_dsl/" + name, "a") as file:
                file.write("# edited")
    from tensorcore_dsl.codegen.cache_key import package_state
    print(repr((package_state(), FunctionKey(global_access.py_func, *global_access.key._files).sources())))
"""


def test_files_edited_while_a_process_runs_are_not_its_own(tmp_path):
    """What it compiles is of the files that it has imported: no other process may take it."""
    shutil.copytree(ROOT / "tensorcore_dsl", tmp_path / "tensorcore_dsl")
    found = []
    for edits in (False, True, False):
        text = textwrap.dedent(EDITED).replace("FOLDER", repr(str(tmp_path)))
        done = subprocess.run(
            [sys.executable, "-c", text.replace("EDITS", str(edits))],
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": ""},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        found.append(ast.literal_eval(done.stdout))
    (state, loops), (state_of_old, loops_of_old), (edited_state, edited_loops) = found
    assert state == state_of_old != edited_state
    assert len({loops, loops_of_old, edited_loops}) == 3


def test_objects_that_are_gone_lend_nobody_their_names():
    """Names of objects are found by identity, so the objects are kept."""
    import dataclasses

    from tensorcore_dsl.numerics import plans

    names = cache_keys._library_names(("tensorcore_dsl", plans.__name__))
    assert all(id(value) == key for key, (_, value) in names.items())
    assert names[id(plans.replace)][1] is dataclasses.replace
    assert names[id(tc.f32)][0] == "tensorcore_dsl.f32"
    assert cache_keys._home(plans.replace) == "dataclasses.replace"


def test_modules_with_names_of_pythons_own(tmp_path):
    """A user's `profile.py` is the user's."""
    files = {name: text.replace("settings", "profile") for name, text in FILES.items()}
    files["profile.py"] = files.pop("settings.py")
    write(tmp_path, files)
    assert process(tmp_path)
    (tmp_path / "profile.py").write_text("FACTOR = 5.0\n")
    assert process(tmp_path)


# Installed packages: those count that a kernel reaches.

USER = """
    import sys
    import numpy as np
    import tensorcore_dsl as tc
    import plain
    import single
    from tensorcore_dsl.arch import arch
    from tensorcore_dsl.codegen import kernel_cache
    @tc.kernel
    def reaches(x: tc.Array):
        x[0] = x[0] * plain.factor()
    @tc.kernel
    def reaches_a_file(x: tc.Array):
        x[0] = x[0] * single.factor()
    @tc.kernel
    def reaches_none(x: tc.Array):
        x[0] = x[0] * 2
    for kernel in (reaches, reaches_a_file, reaches_none):
        print(kernel_cache.entry_name(kernel, (), {}, arch("sm_90a"), ""))
"""


def install(site, name, version, requires=(), module=True):
    """A distribution, as pip leaves it; with a module of its name."""
    for old in site.glob(f"{name}-*.dist-info"):
        shutil.rmtree(old)
    facts = site / f"{name}-{version}.dist-info"
    facts.mkdir(parents=True)
    lines = ["Metadata-Version: 2.1", f"Name: {name}", f"Version: {version}"]
    lines += [f"Requires-Dist: {r}" for r in requires]
    (facts / "METADATA").write_text("\n".join(lines) + "\n")
    (facts / "RECORD").write_text(f"{name}/__init__.py,,\n" if module else "")
    if module:
        (site / name).mkdir(exist_ok=True)
        (site / name / "__init__.py").write_text("def factor():\n    return 2.0\n")


def keys(folder):
    done = subprocess.run(
        [sys.executable, "user.py"], cwd=folder, capture_output=True, text=True, check=False,
        env={**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{folder / 'site-packages'}",
             "PYTHONDONTWRITEBYTECODE": "1"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found = done.stdout.split()
    assert len(set(found)) == 3 and "None" not in found
    return found


def test_installed_packages_count_for_the_kernels_that_reach_them(tmp_path):
    """Those that a kernel reaches and what they require, extras aside; no others."""
    site = tmp_path / "site-packages"
    write(tmp_path, {"user.py": USER})
    install(site, "plain", "1.0", ["below>=0.3", "tester; extra == 'test'"])
    install(site, "below", "0.3", module=False)
    (site / "single.py").write_text("def factor():\n    return 2.0\n")  # of no distribution
    first = keys(tmp_path)
    install(site, "unrelated", "1.0")
    install(site, "tester", "1.0", module=False)
    assert keys(tmp_path) == first
    install(site, "below", "0.4", module=False)
    second = keys(tmp_path)
    assert second[0] != first[0] and second[1:] == first[1:]
    install(site, "plain", "1.1", ["below>=0.3"])
    third = keys(tmp_path)
    assert third[0] not in (first[0], second[0]) and third[1:] == first[1:]
    (site / "single.py").write_text("def factor():\n    return 2.25\n")
    fourth = keys(tmp_path)
    assert fourth[1] != first[1] and (fourth[0], fourth[2]) == (third[0], third[2])


def test_versions_of_numpy_count(monkeypatch):
    """Constants are computed with it. The key of a kernel that reaches no other looks for none."""
    before = cache_key(simple)
    monkeypatch.setattr(np, "__version__", "99.0")
    assert cache_key(simple) != before


def test_modules_of_distributions_with_other_names():
    actual = distributions.versions_behind("xdist")
    assert actual is not None and any(x.startswith("pytest-xdist ") for x in actual)
    assert any(x.startswith("execnet ") for x in actual), "what it requires"
    assert distributions.versions_behind("tests") is None


def test_ufuncs_of_other_packages():
    """NumPy's are known by name; of another one the extension module is looked for."""
    inside = np.linalg._umath_linalg  # an extension module
    assert len({cache_key(f) for f in (np.exp, np.sin, inside.det, inside.inv)}) == 4
    with pytest.raises(Unhashable, match="no extension module holds"):
        cache_key(np.frompyfunc(abs, 1, 1))
