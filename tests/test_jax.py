"""Kernels and `gemm` as functions of JAX: under jit, with gradients and vmap; and the border to XLA."""

import ctypes
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest

jax = pytest.importorskip("jax", reason="JAX is not installed: make test-jax")
import jax.numpy as jnp  # noqa: E402

import tensorcore_dsl as tc  # noqa: E402
import tensorcore_dsl.jax as tcj  # noqa: E402
from tensorcore_dsl import kernels  # noqa: E402
from tensorcore_dsl.jax import ffi  # noqa: E402
from tests.jax_cases import scale, whole  # noqa: E402


@pytest.fixture(autouse=True)
def on_cpu():
    """Emulation, on a machine with a GPU too."""
    with jax.default_device(jax.devices("cpu")[0]):
        yield


# Kernels of users


@pytest.mark.parametrize("transform", [lambda f: f, jax.jit], ids=["eager", "jit"])
def test_a_kernel(transform):
    x = jnp.arange(100.0)
    y, total = transform(lambda x: scale(x, 3.0, n=2))(x)
    assert (y == 6 * x).all() and total == 3 and isinstance(y, jax.Array)


def test_gradients_of_a_kernel():
    x = jnp.arange(100.0)
    value, gradient = jax.jit(jax.value_and_grad(lambda x: (scale(x, 3.0)[0] ** 2).sum()))(x)
    assert value == (9 * x**2).sum() and (gradient == 18 * x).all()


def test_vmap_of_a_kernel():
    x = whole(3, 40, dtype=jnp.float32)
    assert (jax.jit(jax.vmap(lambda x: scale(x, 2.0)[0]))(x) == 2 * x).all()


def test_two_static_numbers_are_two_kernels():
    x = jnp.ones(32)
    both = jax.jit(lambda x: (scale(x, 2.0)[0], scale(x, 3.0)[0], scale(x, 2.0, n=2)[0]))
    assert [float(y[0]) for y in both(x)] == [2, 3, 4]


@pytest.mark.parametrize(
    "call, message",
    [
        (
            lambda x: jax.jit(scale)(x, jnp.float32(2)),
            "'factor' is a number of the kernel, and JAX traces it",
        ),
        (lambda x: scale(x), r"scale\(x, factor, n=1\): missing a required argument: 'factor'"),
        (lambda x: scale(x, 2.0, m=2), "got an unexpected keyword argument 'm'"),
        (lambda x: scale(x.reshape(10, 10), 2.0), "is not defined for a 1-dimensional f32 array"),
    ],
)
def test_calls_that_are_refused(call, message):
    with pytest.raises(tc.TensorCoreError, match=message):
        call(jnp.arange(100.0))


def test_a_write_that_jax_does_not_know_is_refused():
    @tcj.operator(grid=1, block=32, outputs={"y": lambda x: x})
    @tc.kernel
    def leaks(x: tc.Array, y: tc.Array):
        x[tc.threadIdx.x] = y[tc.threadIdx.x]

    with pytest.raises(tc.ArgumentError, match="leaks writes 'x' here, which is not an output"):
        leaks(jnp.ones(32))


def test_declarations_that_are_refused():
    with pytest.raises(tc.ArgumentError, match="outputs names 'n'; the arrays of scale are x, y"):
        tcj.operator(grid=1, block=32, outputs={"n": lambda x: x})(scale.kernel)
    with pytest.raises(tc.ArgumentError, match="takes 'w'; the arguments are x"):
        tcj.operator(grid=1, block=32, outputs={"y": lambda w: w, "total": lambda x: x})(scale.kernel)
    with pytest.raises(tc.ArgumentError, match="stands above @tc.kernel"):
        tcj.operator(grid=1, block=32, outputs={})(len)


# Products


@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float16, jnp.float32])
def test_a_product_has_the_bits_of_gemm(dtype):
    a = jax.random.normal(jax.random.key(0), (32, 64), dtype)
    b = jax.random.normal(jax.random.key(1), (64, 48), dtype)
    found = np.asarray(jax.jit(tcj.gemm)(a, b))
    assert np.array_equal(found, kernels.gemm(np.asarray(a), np.asarray(b)))


def test_gradients_of_a_product():
    """Those of JAX's own product, to the bit, of whole numbers."""
    a, b, c = whole(32, 64), whole(64, 48), whole(48)
    weights = whole(32, 48, dtype=jnp.float32)

    def ours(a, b, c):
        return (tcj.gemm(a, b, c, alpha=0.5, beta=2, out_dtype=jnp.float32) * weights).sum()

    def theirs(a, b, c):
        a, b, c = (x.astype(jnp.float32) for x in (a, b, c))
        return ((0.5 * a @ b + 2 * c) * weights).sum()

    value, found = jax.jit(jax.value_and_grad(ours, (0, 1, 2)))(a, b, c)
    expected, gradients = jax.value_and_grad(theirs, (0, 1, 2))(a, b, c)
    assert value == expected
    for x, y in zip(found, gradients, strict=True):
        assert x.dtype == y.dtype == jnp.bfloat16 and (x == y).all()


def test_gradients_of_gradients():
    a, b = whole(16, 32, dtype=jnp.float16), whole(32, 16, dtype=jnp.float16)
    inner = lambda a: (jax.grad(lambda b: tcj.gemm(a, b).astype(jnp.float32).sum())(b) ** 2).sum()
    plain = lambda a: (jax.grad(lambda b: (a @ b).astype(jnp.float32).sum())(b) ** 2).sum()
    assert (jax.grad(inner)(a) == jax.grad(plain)(a)).all()


@pytest.mark.parametrize("axes", [(0, 0), (0, None), (None, 0)])
@pytest.mark.parametrize("arch", ["sm_90a", "sm_80"])
def test_vmap_of_a_product(axes, arch):
    """On sm_90a one launch for the batch, else one for each product."""
    a = whole(*[3] * (axes[0] == 0), 32, 64)
    b = whole(*[3] * (axes[1] == 0), 64, 48)
    with tc.target("cpu", arch):
        actual = jax.vmap(tcj.gemm, axes)(a, b)
    expected = a.astype(jnp.float32) @ b.astype(jnp.float32)
    assert actual.shape == (3, 32, 48) and (actual == expected.astype(jnp.bfloat16)).all()


def test_gradients_under_vmap():
    a, b, c = whole(3, 32, 64), whole(64, 48), whole(48)
    loss = lambda product: lambda a, b: product(a, b).astype(jnp.float32).sum()
    ours = jax.jit(jax.vmap(jax.grad(loss(lambda a, b: tcj.gemm(a, b, c)), (0, 1)), (0, None)))(a, b)
    theirs = jax.vmap(jax.grad(loss(lambda a, b: a @ b + c), (0, 1)), (0, None))(a, b)
    assert all((x == y).all() for x, y in zip(ours, theirs, strict=True))


def test_a_batch_and_one_matrix():
    a, b = whole(3, 32, 64), whole(64, 48)
    assert tcj.gemm(a, b).shape == (3, 32, 48)
    actual = jax.grad(lambda b: tcj.gemm(a, b).astype(jnp.float32).sum())(b)
    assert (actual == a.astype(jnp.float32).sum((0, 1))[:, None]).all()


def test_products_that_are_refused():
    with pytest.raises(tc.ArgumentError, match="a's columns must be as many as b's rows"):
        jax.jit(tcj.gemm)(whole(32, 64), whole(48, 64))
    with pytest.raises(tc.ArgumentError, match="gemm multiplies"):
        tcj.gemm(jnp.ones((4, 4), jnp.int32), jnp.ones((4, 4), jnp.int32))


def test_training_of_a_small_model():
    """A perceptron learns, in one compiled step."""
    x = jax.random.normal(jax.random.key(0), (64, 16), jnp.float16)
    y = (x[:, :1] > 0).astype(jnp.float32)
    weights = [
        jax.random.normal(jax.random.key(i), shape) * 0.3 for i, shape in enumerate([(16, 32), (32, 8)])
    ]

    def loss(weights):
        hidden = jax.nn.relu(tcj.gemm(x, weights[0].astype(x.dtype)))
        out = tcj.gemm(hidden, weights[1].astype(x.dtype), out_dtype=jnp.float32)[:, :1]
        return ((out - y) ** 2).mean()

    step = jax.jit(lambda w: [x - 0.1 * g for x, g in zip(w, jax.grad(loss)(w), strict=True)])
    before = loss(weights)
    for _ in range(5):
        weights = step(weights)
    assert loss(weights) < 0.8 * before


# The border to XLA


def on_host(pointer, shape, dtype):
    """A NumPy array in place of a DeviceArray, for calls of the handler on the CPU."""
    size = int(np.prod(shape)) * np.dtype(dtype).itemsize
    return np.frombuffer((ctypes.c_ubyte * size).from_address(pointer), np.uint8).view(dtype).reshape(shape)


@pytest.fixture
def handled(monkeypatch):
    """A function that calls the handler, which GPUs use, in programs of the CPU."""
    monkeypatch.setattr(ffi, "DeviceArray", on_host)
    monkeypatch.setattr(ffi, "_stream", lambda frame: 42)
    name = "tensorcore_dsl_on_cpu"
    jax.ffi.register_ffi_target(name, jax.ffi.pycapsule(ffi.HANDLER), platform="cpu")

    def call(function, result, *arrays):
        monkeypatch.setitem(ffi._functions, "own", function)
        return jax.block_until_ready(jax.ffi.ffi_call(name, result)(*arrays, key="own"))

    return call


@pytest.mark.parametrize(
    "dtype", ["bool", "int8", "uint32", "float16", "bfloat16", "float8_e4m3fn", "float32"]
)
def test_the_handler_reads_calls(handled, dtype):
    seen = []

    def function(inputs, outputs, stream):
        seen.append((inputs[0].shape, str(inputs[0].dtype), inputs[1].shape, stream))
        outputs[0][...] = inputs[0].T
        outputs[1][...] = 7

    x = jnp.arange(6).reshape(2, 3).astype(dtype)
    results = (jax.ShapeDtypeStruct((3, 2), x.dtype), jax.ShapeDtypeStruct((), jnp.int32))
    y, seven = handled(function, results, x, jnp.float32(1))
    assert (y == x.T).all() and seven == 7 and seen == [((2, 3), dtype, (), 42)]


def test_errors_cross_the_border(handled):
    def fails(inputs, outputs, stream):
        raise tc.ArgumentError("no such thing")

    with pytest.raises(Exception, match="ArgumentError: no such thing"):
        handled(fails, jax.ShapeDtypeStruct((), jnp.int32), jnp.ones(3))


LAYOUT = r"""
#include <stddef.h>
#include <stdio.h>
#include "xla/ffi/api/c_api.h"
#define AT(type, field) printf("%zu ", offsetof(XLA_FFI_##type, field))
int main(void) {
    AT(CallFrame, api); AT(CallFrame, ctx); AT(CallFrame, stage); AT(CallFrame, args); AT(CallFrame, rets);
    AT(CallFrame, attrs); AT(Buffer, dtype); AT(Buffer, data); AT(Buffer, rank); AT(Buffer, dims);
    AT(Api, api_version); AT(Api, XLA_FFI_Error_Create); AT(Api, XLA_FFI_Stream_Get);
    AT(Stream_Get_Args, ctx); AT(Stream_Get_Args, stream); AT(Error_Create_Args, message);
    AT(Error_Create_Args, errc); AT(Metadata, api_version); AT(Metadata_Extension, metadata);
    AT(Attrs, names); AT(Attrs, attrs);
    printf("%zu %zu %d %d\n", sizeof(XLA_FFI_Stream_Get_Args), sizeof(XLA_FFI_Error_Create_Args),
           XLA_FFI_ExecutionStage_EXECUTE, XLA_FFI_Extension_Metadata);
}
"""


@pytest.mark.skipif(not shutil.which("gcc"), reason="needs gcc")
def test_structures_are_those_of_the_header(tmp_path):
    (tmp_path / "layout.c").write_text(LAYOUT)
    program = tmp_path / "layout"
    source = str(tmp_path / "layout.c")
    subprocess.run(["gcc", "-I", jax.ffi.include_dir(), source, "-o", str(program)], check=True)
    *found, execute, metadata = map(int, subprocess.check_output([str(program)]).split())
    frame, buffer, api = ffi._Frame, ffi._Buffer, ffi._Api
    stream, error = ffi._StreamArgs, ffi._ErrorArgs
    ours = [
        frame.api, frame.context, frame.stage, frame.inputs, frame.outputs, frame.attributes, buffer.dtype,
        buffer.data, buffer.rank, buffer.dims, api.version, api.create_error, api.get_stream, stream.context,
        stream.stream, error.message, error.code, ffi._Metadata.version, ffi._MetadataExtension.metadata,
        ffi._Attributes.names, ffi._Attributes.values,
    ]  # fmt: skip
    assert found == [field.offset for field in ours] + [ctypes.sizeof(stream), ctypes.sizeof(error)]
    assert (execute, metadata) == (ffi._EXECUTE, ffi._METADATA)


def test_element_types_are_those_of_the_header():
    header = Path(jax.ffi.include_dir(), "xla/ffi/api/c_api.h").read_text()
    names = {
        "PRED": "bool", "S8": "int8", "S16": "int16", "S32": "int32", "S64": "int64", "U8": "uint8",
        "U16": "uint16", "U32": "uint32", "U64": "uint64", "F16": "float16", "F32": "float32",
        "F64": "float64", "BF16": "bfloat16", "F8E5M2": "float8_e5m2", "F8E4M3FN": "float8_e4m3fn",
        "F8E8M0FNU": "float8_e8m0fnu",
    }  # fmt: skip
    for name, dtype in names.items():
        number = int(header.partition(f"XLA_FFI_DataType_{name} = ")[2].partition(",")[0])
        assert np.dtype(ffi._DTYPES[number]).name == dtype
    assert len(names) == len(ffi._DTYPES)


def test_without_jax():
    code = "import sys; sys.modules['jax'] = None; import tensorcore_dsl.jax"
    import sys

    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert "tensorcore_dsl.jax needs JAX" in done.stderr and "tensorcore-dsl[jax]" in done.stderr
