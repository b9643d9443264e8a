"""The launch path with a driver that records: plans, contexts, streams, errors."""

import struct
import threading
import types
from dataclasses import replace

import ml_dtypes
import numpy as np
import pytest

from tensorcore_dsl import dtypes
from tensorcore_dsl.errors import ArgumentError, LaunchError
from tensorcore_dsl.runtime import launch
from tensorcore_dsl.runtime.arguments import ArrayType, ScalarType
from tensorcore_dsl.runtime.fast_launch.argument_kinds import array_kind
from tensorcore_dsl.runtime.launch import Launcher
from tensorcore_dsl.runtime.launch_config import LaunchConfig
from tests.fake_gpu import CUBIN, FakeGpu, OnGpu, packed


def launcher(gpu, specialise=None, config=None, **options):
    """`specialise` may look on, and return a cubin of its own."""
    specialise = specialise or (lambda types: None)
    config = config or LaunchConfig.of((4, 2), 128)
    return Launcher(lambda types: specialise(types) or CUBIN, config, gpu, **options)


def aligned(shape, dtype):
    """An array at a multiple of 16, as NumPy gives them nearly everywhere."""
    size = int(np.prod(shape)) * np.dtype(dtype).itemsize
    raw = np.zeros(size + 16, np.uint8)
    start = -raw.ctypes.data % 16
    return raw[start : start + size].view(dtype).reshape(shape)


def test_parameters_arrive():
    gpu = FakeGpu()
    run = launcher(gpu)
    a, b = OnGpu(np.zeros((3, 8), np.float16)), OnGpu(np.zeros((8, 5)).T)
    values = (a, 7, 2.5, True, b, np.float16(2), np.uint64(2**63), 2**40, ml_dtypes.bfloat16(1))
    for _ in range(3):
        run(*values)
    assert [r.parameters for r in gpu.records] == [packed(*values)] * 3
    assert (gpu.records[0].grid, gpu.records[0].block, gpu.records[0].shared_bytes) == (
        (4, 2, 1),
        (128, 1, 1),
        0,
    )


# Plans


def test_each_type_and_shape_has_its_plan():
    gpu = FakeGpu()
    seen = []
    run = launcher(gpu, lambda types: seen.append(types))
    whole = aligned((8, 64), np.float16)
    calls = [
        whole,
        whole[:4],
        whole[:, ::2],
        whole.T,
        whole[:, 1:],
        whole.astype(np.float32),
        whole[0],
        3,
        2**33,
        1.0,
        True,
    ]
    for _ in range(2):
        for value in calls:
            run(OnGpu(value) if isinstance(value, np.ndarray) else value)
    assert len(seen) == len(calls)
    half = dtypes.f16
    assert [t[0] for t in seen[:5]] == [
        ArrayType(half, 2, (False, True), 16, True),
        ArrayType(half, 2, (False, True), 16, True),
        ArrayType(half, 2, (False, False), 4, True),
        ArrayType(half, 2, (True, False), 16, True),
        ArrayType(half, 2, (False, True), 2, True),
    ]
    assert [t[0] for t in seen[7:]] == [ScalarType(dtypes.named(n)) for n in ("s32", "s64", "f32", "pred")]
    expected = [packed(OnGpu(v) if isinstance(v, np.ndarray) else v) for v in calls]
    assert [r.parameters for r in gpu.records[: len(calls)]] == expected
    assert [r.parameters for r in gpu.records[len(calls) :]] == expected


def test_alignment_is_part_of_the_key():
    gpu = FakeGpu()
    seen = []
    run = launcher(gpu, lambda types: seen.append(types[0].align))
    whole = aligned(64, np.int8)
    for at in (0, 1, 2, 8, 0, 1):
        run(OnGpu(whole[at : at + 32]))
    assert seen == [16, 1, 2, 8]


def test_plans_are_bounded(monkeypatch):
    monkeypatch.setattr(launch, "MAX_PLANS", 4)
    run = launcher(FakeGpu())
    for extent in range(10):
        run(OnGpu(np.zeros(extent + 1, np.float32)))
    assert len(run._plans) == 4


def test_declared_scalars():
    gpu = FakeGpu()
    run = launcher(gpu, declared=(dtypes.f32, dtypes.s64, dtypes.bf16, None))
    for values in ((3, 4, 1, 5), (3.5, np.int8(4), 1.0, 5), (np.float64(3), 4, np.float32(1), 5)):
        run(*values)
        run(*values)
    first = struct.pack("=f4xqH2xi", 3.0, 4, 0x3F80, 5)
    second = struct.pack("=f4xqH2xi", 3.5, 4, 0x3F80, 5)
    assert [r.parameters for r in gpu.records] == [first, first, second, second, first, first]
    with pytest.raises(ArgumentError, match="argument 1 is 9223372036854775808; s64 holds"):
        run(3, 2**63, 1, 5)
    with pytest.raises(ArgumentError, match="beyond the range of f32"):
        run(1e39, 2, 1, 5)


# torch tensors: objects that act as them.


class FakeTensor:
    def __init__(self, array, device=0):
        self._array, self._device = array, device
        self.dtype, self.shape = "torch.float16", array.shape
        self.device = types.SimpleNamespace(type="cuda", index=device)
        self.layout, self.is_sparse = "torch.strided", False

    def stride(self):
        return tuple(s // self._array.itemsize for s in self._array.strides)

    def data_ptr(self):
        return self._array.ctypes.data

    def get_device(self):
        return self._device

    def is_neg(self):
        return False

    is_conj = is_neg


FakeTensor.__module__, FakeTensor.__qualname__, FakeTensor.__name__ = "torch", "Tensor", "Tensor"


@pytest.fixture
def torch_streams(monkeypatch):
    current = {0: 11, 1: 22}
    core = types.SimpleNamespace(_cuda_getCurrentRawStream=current.__getitem__)
    monkeypatch.setitem(__import__("sys").modules, "torch", types.SimpleNamespace(_C=core))
    return current


def test_torch_keys(torch_streams):
    """Views of one tensor: each stride and each alignment is told apart."""
    gpu = FakeGpu()
    seen = []
    run = launcher(gpu, lambda types: seen.append(types[0]))
    whole = aligned((8, 8), np.float16)
    views = [whole, whole.T, whole[:, 1:7], whole[:, :6], whole.reshape(-1)[1:37].reshape(6, 6)]
    for _ in range(2):
        for view in views:
            run(FakeTensor(view))
    assert [(t.unit, t.align) for t in seen] == [
        ((False, True), 16),
        ((True, False), 16),
        ((False, True), 2),
        ((False, True), 16),
        ((False, True), 2),
    ]
    assert [r.parameters for r in gpu.records] == [packed(FakeTensor(v)) for v in views] * 2


def test_torch_stream_without_the_private_reader(monkeypatch):
    cuda = types.SimpleNamespace(current_stream=lambda device: types.SimpleNamespace(cuda_stream=40 + device))
    module = types.SimpleNamespace(_C=types.SimpleNamespace(), cuda=cuda)
    monkeypatch.setitem(__import__("sys").modules, "torch", module)
    gpu = FakeGpu(context=1)
    launcher(gpu)(FakeTensor(np.zeros(4, np.float16), device=1))
    assert gpu.records[0].stream == 41


@pytest.mark.parametrize("mismatch", [400, 201])
def test_torch_on_the_second_gpu(torch_streams, mismatch):
    """The kernel runs where the tensors are, whichever GPU is current."""
    gpu = FakeGpu(context=0, mismatch=mismatch)
    run = launcher(gpu)
    run(FakeTensor(np.zeros(4, np.float16), device=1))
    run(FakeTensor(np.zeros(4, np.float16), device=0))
    run(FakeTensor(np.zeros(4, np.float16), device=1))
    assert [r.function for r in gpu.records] == [1001, 1000, 1001]
    assert [r.stream for r in gpu.records] == [22, 11, 22]
    assert gpu.context == 0
    with pytest.raises(ArgumentError, match=r"several GPUs: argument 0 on GPU 0, argument 1 on GPU 1"):
        run(FakeTensor(np.zeros(4, np.float16), 0), FakeTensor(np.zeros(4, np.float16), 1))


def test_numba_class_name():
    """The class that machine code reads still has this name and these attributes."""
    module = pytest.importorskip("numba.cuda.cudadrv.devicearray")
    cls = module.DeviceNDArray
    assert array_kind(cls) is not None
    assert hasattr(cls, "device_ctypes_pointer")


# Contexts


def test_new_thread_without_context():
    gpu = FakeGpu()
    run = launcher(gpu)
    run(1)
    gpu.context = None
    run(2)
    assert gpu.context == 0
    assert [r.parameters for r in gpu.records] == [packed(1), packed(2)]


@pytest.mark.parametrize("mismatch", [400, 201])
def test_new_thread_with_arrays_of_the_second_gpu(torch_streams, mismatch):
    """It is left where the CUDA runtime takes it to be, on GPU 0."""
    gpu = FakeGpu(context=None, mismatch=mismatch)
    run = launcher(gpu)
    for _ in range(3):
        run(FakeTensor(np.zeros(4, np.float16), device=1))
        assert gpu.context == 0
    assert [r.function for r in gpu.records] == [1001] * 3


@pytest.mark.parametrize("mismatch", [400, 201])
def test_following_the_user_to_another_gpu(mismatch):
    gpu = FakeGpu(context=0, mismatch=mismatch)
    run = launcher(gpu)
    run(1)
    gpu.context = 1
    run(2)
    run(3)
    gpu.context = 0
    run(4)
    assert [r.function for r in gpu.records] == [1000, 1001, 1001, 1000]


# Streams of producers


@pytest.mark.parametrize(
    ("producer", "stream", "waits"),
    [(None, 0, []), (1, 0, []), (1, None, []), (7, 0, [7]), (7, 7, []), (1, 7, [1]), (2, 0, [2])],
)
def test_producer_streams(producer, stream, waits):
    gpu = FakeGpu()
    run = launcher(gpu, stream=stream)
    for _ in range(2):
        run(OnGpu(np.zeros(4, np.float32), stream=producer))
    assert gpu.synchronized == waits * 2
    assert len(gpu.records) == 2


class OnSecondGpu(OnGpu):
    """Imitates an array of CuPy, which says where it is."""

    device = types.SimpleNamespace(id=1)


def test_waits_are_on_the_device_of_the_arrays():
    """Streams 0, 1 and 2 are other ones on each GPU; so for a producer, and for what checks stop."""
    gpu = FakeGpu(context=0)
    run = launcher(gpu, stream=0)
    run(OnSecondGpu(np.zeros(4, np.float32), stream=2))
    assert (gpu.synchronized, gpu.waited_in) == ([2], [1])
    checked = Launcher(lambda types: replace(CUBIN, checks=True), LaunchConfig.of(1, 32), gpu)
    for array in (OnSecondGpu(np.zeros(4, np.float32)), OnGpu(np.zeros(4, np.float32))):
        checked(array)
    assert (gpu.synchronized[1:], gpu.waited_in[1:]) == ([0, 0], [1, 0])
    gpu.failure = 719
    with pytest.raises(LaunchError, match="was stopped: CUDA_ERROR_719"):
        checked(OnSecondGpu(np.zeros(4, np.float32)))
    assert (gpu.waited_in[-1], gpu.context) == (1, 0)


# Errors


def test_errors_of_the_driver_describe_the_launch():
    gpu = FakeGpu(codes=[1])
    config = LaunchConfig.of((4, 2), 128, 99, cluster=2, cooperative=True)
    with pytest.raises(LaunchError) as caught:
        launcher(gpu, config=config)(1)
    for part in (
        "launch of fake failed: CUDA_ERROR_1",
        "grid (4, 2, 1)",
        "99 B",
        "cluster (2, 1, 1)",
        "cooperative",
    ):
        assert part in str(caught.value)
    assert caught.value.__context__ is None


@pytest.mark.parametrize(
    ("config", "text"),
    [
        (LaunchConfig.of(1, 512), "a block of 512 threads is too large.*allows it 256 threads"),
        (LaunchConfig.of(1, 128, 300000), "too much shared memory.*300000 B.*232448 B"),
    ],
)
def test_checked_before_the_launch(config, text):
    gpu = FakeGpu(max_threads=256)
    with pytest.raises(LaunchError, match=text):
        launcher(gpu, config=config)(1)
    assert not gpu.records


def test_shared_memory_of_the_kernel_is_added():
    gpu = FakeGpu()
    more = replace(CUBIN, block_shared=100000)
    launcher(gpu, lambda types: more, LaunchConfig.of(1, 128, 50000))(1)
    assert gpu.consents == [150000]
    assert gpu.records[0].shared_bytes == 150000


def test_consent_to_shared_memory():
    gpu = FakeGpu()
    launcher(gpu, config=LaunchConfig.of(1, 128, 200000))(1)
    assert gpu.consents == [200000]
    assert gpu.records[0].shared_bytes == 200000


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("2", "argument 'beta' is a str"),
        (2**70, "argument 'beta' is 1180591620717411303424"),
        (1e300, "argument 'beta' is 1e.300, beyond"),
        (np.zeros(3, complex), "argument 'beta': arrays of dtype complex128"),
    ],
)
@pytest.mark.parametrize("warm", [False, True])
def test_bad_arguments_are_named(value, text, warm):
    gpu = FakeGpu()
    run = launcher(gpu, names=("alpha", "beta"))
    for _ in range(2 * warm):  # from the third launch on, machine code reads the arguments
        run(1, 2 if isinstance(value, int) else 2.0)
    with pytest.raises(ArgumentError, match=text) as caught:
        run(1, value)
    assert len(gpu.records) == 2 * warm
    assert caught.value.__context__ is None or caught.value.__suppress_context__


def test_torch_tensors_in_host_memory_are_refused():
    torch = pytest.importorskip("torch")
    with pytest.raises(ArgumentError, match=r"argument 0 is a torch.Tensor in host memory.*on the GPU"):
        launcher(FakeGpu())(torch.zeros(3))


def test_errors_of_the_compiler_pass_through_once():
    calls = []

    def specialise(types):
        calls.append(types)
        raise KeyError("inside the compiler")

    with pytest.raises(KeyError, match="inside the compiler"):
        launcher(FakeGpu(), specialise)(1)
    assert len(calls) == 1


# Threads


def test_threads_share_a_launcher():
    gpu = FakeGpu()
    run = launcher(gpu)
    run(0, 0)

    def work(number):
        for step in range(300):
            run(number, step)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(1, 5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    seen = sorted(struct.unpack("ii", r.parameters) for r in gpu.records)
    assert seen == [(0, 0)] + [(n, s) for n in range(1, 5) for s in range(300)]


@pytest.mark.parametrize("before", [1, 2])  # launches: from the third one on, it is machine code
def test_launch_within_a_launch(before):
    """A slot in use is never handed out twice."""
    gpu = FakeGpu()
    run = launcher(gpu)
    for _ in range(before):
        run(1)

    def kernel(data):
        if struct.unpack("i", data)[0] == 2:
            run(3)

    gpu.kernel = kernel
    run(2)
    assert sorted(struct.unpack("i", r.parameters)[0] for r in gpu.records) == [1] * before + [2, 3]


def test_launches_without_blocks_do_nothing():
    for config in ((0, 128), ((4, 0), 128)):
        gpu, x = FakeGpu(), np.zeros(4)
        run = launcher(gpu, config=LaunchConfig.of(*config))
        for _ in range(3):
            run(OnGpu(x), 7)
            run(x, 7)  # which is copied
        run.prepared(OnGpu(x), 7)(OnGpu(x), 7)
        run.repeatable(OnGpu(x), 7).launch()
        assert gpu.loads and not gpu.records
        with pytest.raises(ArgumentError):
            run(OnGpu(x), "text")
