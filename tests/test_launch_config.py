"""Configurations of a launch, and the structures that the driver gets."""

import ctypes

import numpy as np
import pytest

from tensorcore_dsl.errors import LaunchError
from tensorcore_dsl.runtime import launch
from tensorcore_dsl.runtime.arguments import Packer
from tensorcore_dsl.runtime.launch_buffer import LaunchBuffer
from tensorcore_dsl.runtime.launch_config import LaunchConfig


@pytest.mark.parametrize(
    ("options", "grid", "block"),
    [
        (dict(grid=3, block=64), (3, 1, 1), (64, 1, 1)),
        (dict(grid=(3, 4), block=[8, 2, 4]), (3, 4, 1), (8, 2, 4)),
        (dict(grid=np.int64(7), block=(np.int32(32),)), (7, 1, 1), (32, 1, 1)),
    ],
)
def test_grids_and_blocks_become_three_integers(options, grid, block):
    config = LaunchConfig.of(**options)
    assert (config.grid, config.block) == (grid, block)
    assert all(type(d) is int for d in config.grid + config.block)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (dict(grid=-1, block=1), r"grid is \(-1, 1, 1\)"),
        (dict(grid=(1, 65536), block=1), "grid is"),
        (dict(grid=1, block=(1, 1, 65)), "block is"),
        (dict(grid=1, block=(32, 33)), "1056 threads; 1024 are allowed"),
        (dict(grid=1.0, block=1), "one to three integers"),
        (dict(grid=(1, 2, 3, 4), block=1), "one to three integers"),
        (dict(grid=True, block=1), "one to three integers"),
        (dict(grid="1", block=1), "one to three integers"),
        (dict(grid=1, block=1, shared_bytes=-1), "less than none"),
        *((dict(grid=1, block=1, shared_bytes=n), "shared_bytes is") for n in ("1", 1.5, np.zeros(0))),
        (
            dict(grid=1, block=1, shared_bytes=2**31),
            "2147483648 bytes of dynamic shared memory: 32 bits with a sign",
        ),
        (
            dict(grid=1, block=1, shared_bytes=10**400),
            "too many bytes of dynamic shared memory: 32 bits with a sign",
        ),
        (dict(grid=3, block=1, cluster=2), "not a multiple of cluster"),
        (dict(grid=32, block=1, cluster=(8, 1, 1), shared_bytes=0), None),
        (dict(grid=(32, 4), block=1, cluster=(8, 4)), "32 blocks; 16 are allowed"),
    ],
    ids=str,
)
def test_sizes_that_no_launch_has_are_refused(options, text):
    if text is None:
        LaunchConfig.of(**options)
        return
    with pytest.raises(LaunchError, match=text):
        LaunchConfig.of(**options)


# What the driver gets, read by NVIDIA's own bindings.


def binding():
    return pytest.importorskip("cuda.bindings.driver")


@pytest.mark.parametrize(
    ("options", "attributes"),
    [
        ({}, []),
        (dict(cluster=(2, 1, 1)), [("CLUSTER_DIMENSION", (2, 1, 1))]),
        (dict(cooperative=True), [("COOPERATIVE", 1)]),
        (
            dict(cluster=(2, 2, 1), cooperative=True, pdl=True),
            [("COOPERATIVE", 1), ("CLUSTER_DIMENSION", (2, 2, 1)), ("PROGRAMMATIC_STREAM_SERIALIZATION", 1)],
        ),
    ],
    ids=str,
)
def test_launch_config_struct(options, attributes):
    driver = binding()
    config = LaunchConfig.of((6, 4, 2), (32, 3, 2), 1234, **options)
    buffer = LaunchBuffer(config, Packer([]), [])
    buffer.stream = 0x1122334455667788
    read = driver.CUlaunchConfig(_ptr=buffer.config)
    assert (read.gridDimX, read.gridDimY, read.gridDimZ) == (6, 4, 2)
    assert (read.blockDimX, read.blockDimY, read.blockDimZ) == (32, 3, 2)
    assert read.sharedMemBytes == 1234
    assert int(read.hStream) == 0x1122334455667788
    assert read.numAttrs == len(attributes)
    theirs = driver.CUlaunchConfig()
    theirs.attrs = [attribute(driver, *fields) for fields in attributes]
    assert attribute_bytes(buffer.config, len(attributes)) == attribute_bytes(
        theirs.getPtr(), len(attributes)
    )


def attribute(driver, name, value):
    made = driver.CUlaunchAttribute()
    made.id = getattr(driver.CUlaunchAttributeID, f"CU_LAUNCH_ATTRIBUTE_{name}")
    if isinstance(value, tuple):
        cluster = made.value.clusterDim
        cluster.x, cluster.y, cluster.z = value
    elif name == "COOPERATIVE":
        made.value.cooperative = value
    else:
        made.value.programmaticStreamSerializationAllowed = value
    return made


def attribute_bytes(config, count):
    """The array that CUlaunchConfig points to, 72 bytes each."""
    address = ctypes.c_uint64.from_address(config + 40).value
    return ctypes.string_at(address, 72 * count) if count else b""


def test_attribute_numbers():
    ids = binding().CUlaunchAttributeID
    assert ids.CU_LAUNCH_ATTRIBUTE_COOPERATIVE == 2
    assert ids.CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION == 4
    assert ids.CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION == 6
    results = binding().CUresult
    assert launch._NO_CONTEXT == results.CUDA_ERROR_INVALID_CONTEXT
    assert launch._WRONG_CONTEXT == results.CUDA_ERROR_INVALID_HANDLE


def test_functions_are_for_autotuned_kernels():
    with pytest.raises(LaunchError, match="grid is a function; kernels under tc.autotune take functions"):
        LaunchConfig.of(lambda meta: 1, 32)
