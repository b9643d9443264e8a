"""The driver where there is no GPU, no numba-cuda, or Numba's simulator."""

import subprocess
import sys
from pathlib import Path

import pytest

from tensorcore_dsl.errors import LaunchError
from tensorcore_dsl.runtime import driver

pytest.importorskip("cuda.core", reason="needs nvJitLink")


@pytest.fixture
def uncached():
    """Numba is asked for a GPU anew, before and after."""
    for function in (driver.cuda_available, driver.cuda_driver):
        function.cache_clear()
    yield
    for function in (driver.cuda_available, driver.cuda_driver):
        function.cache_clear()


def test_no_gpu():
    if driver.cuda_available():
        pytest.skip("there is a GPU")
    with pytest.raises(LaunchError, match="there is no GPU that Numba can use"):
        driver.cuda_driver()


class Library:
    """A CUDA driver with so many GPUs; error: what cuInit returns."""

    def __init__(self, gpus, error=0):
        self.gpus, self.error = gpus, error

    def cuInit(self, flags):
        return self.error

    def cuDeviceGetCount(self, reference):
        reference._obj.value = self.gpus
        return 0


@pytest.mark.parametrize("library, warned", [(Library(2), 1), (Library(0), 0), (Library(1, 100), 0)])
def test_no_numba_cuda(monkeypatch, uncached, recwarn, library, warned):
    """Who has a GPU is told why it is not used, once."""

    def missing(name="numba.cuda"):
        raise ImportError(f"No module named {name!r}")

    monkeypatch.setattr(driver, "numba_cuda", missing)
    monkeypatch.setattr(driver, "find_spec", lambda name: None)
    monkeypatch.setattr(driver, "_driver_library", lambda: library)
    assert not driver.cuda_available() and not driver.cuda_available()
    assert len(recwarn) == warned
    for one in recwarn:
        assert "on the CPU: there is a GPU, but no numba-cuda; pip install" in str(one.message)
    with pytest.raises(LaunchError, match=r"tensorcore-dsl\[cu13\]"):
        driver.cuda_driver()


def test_simulator(monkeypatch, uncached):
    monkeypatch.setattr(driver, "simulated", lambda: True)
    assert not driver.cuda_available()
    with pytest.raises(LaunchError, match="NUMBA_ENABLE_CUDASIM"):
        driver.cuda_driver()


@pytest.mark.skipif(driver.cuda_available(), reason="there is a GPU")
@pytest.mark.skipif(driver._driver_library(), reason="there is a driver")
def test_asking_for_a_gpu_is_cheap():
    """Without a driver, nobody waits for the import of numba.cuda."""
    code = (
        "import sys; from tensorcore_dsl.runtime import driver; assert not driver.cuda_available();"
        "sys.exit('numba.cuda' in sys.modules)"
    )
    root = Path(__file__).resolve().parent.parent
    assert subprocess.run([sys.executable, "-c", code], cwd=root).returncode == 0
