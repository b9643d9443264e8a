"""Scripts that emulate in a process of their own, which tests interrupt and whose memory they measure."""

from __future__ import annotations

import atexit
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

SCRIPT = """
import resource, signal, threading
import numpy as np
import tensorcore_dsl as tc

signal.signal(signal.SIGINT, signal.default_int_handler)  # a parent in the background ignores it

@tc.kernel
def work(out, turns):
    total = tc.f32(0)
    for turn in range(turns):
        total = total * 0.5 + 1.0
    out[tc.threadIdx.x] = total

def emulate(grid, turns):
    work.emulator(checks=False)[grid, 32](np.zeros(32, np.float32), turns)

def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024

emulate(1, 1)
"""


def start(code: str) -> subprocess.Popen[str]:
    """A process that runs the script and then `code`."""
    with tempfile.NamedTemporaryFile("w", suffix=".py", delete=False) as file:
        file.write(SCRIPT + code)
    atexit.register(Path(file.name).unlink, missing_ok=True)
    return subprocess.Popen(
        [sys.executable, file.name], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def interrupted(code: str) -> str:
    """What a process writes to stderr that gets a Ctrl-C after "ready", and would run for hours."""
    process = start(code)
    assert process.stdout is not None and process.stdout.readline() == "ready\n"
    time.sleep(0.5)
    assert process.poll() is None, "it ended before the interrupt"
    process.send_signal(signal.SIGINT)
    return ended(process)[1]


def ended(process: subprocess.Popen[str]) -> tuple[str, str]:
    """What a process has written, which must end within 20 seconds."""
    try:
        return process.communicate(timeout=20)
    finally:
        process.kill()
