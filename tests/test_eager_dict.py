"""Cached properties of objects that several threads use."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1] / "tensorcore_dsl"

# While one thread makes the `__dict__` of a step, and that collects garbage, another thread asks for
# cached properties of the same step. The memory of freed dictionaries is checked.
RACE = """
import gc, threading
from tensorcore_dsl.interpreter.core.program import Step

gc.disable()
steps = [Step(None, None) for _ in range(500)]
others = [{} for _ in range(200)]  # so that Python has no spare dictionary
now, asked, answered = [None], threading.Event(), threading.Event()

def ask(step):
    return step.counted, step.uses_mbarrier, step.tracked, step.changes

def other():
    while asked.wait() and now[0] is not None:
        asked.clear()
        ask(now[0])
        answered.set()

def collecting(phase, _):
    if phase == "start" and now[0] is not None and threading.current_thread() is threading.main_thread():
        answered.clear()
        asked.set()
        answered.wait()

thread = threading.Thread(target=other)
thread.start()
gc.callbacks.append(collecting)
gc.set_threshold(1)
for step in steps:
    now[0] = step
    gc.enable()
    vars(step)
    gc.disable()
    ask(step)
now[0] = None
asked.set()
thread.join()
del steps, step
gc.collect()
print("fine")
"""


def test_a_collection_while_another_thread_asks():
    options = {"env": {"PYTHONMALLOC": "debug", "PATH": ""}, "cwd": PACKAGE.parent}
    ended = subprocess.run([sys.executable, "-c", RACE], capture_output=True, text=True, **options)
    assert (ended.returncode, ended.stdout) == (0, "fine\n"), ended.stderr[-2000:]


def classes_with_cached_properties() -> list[tuple[str, list[str]]]:
    classes = []
    for path in sorted(PACKAGE.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ClassDef):
                marks = [d for f in node.body if isinstance(f, ast.FunctionDef) for d in f.decorator_list]
                if any("cached_property" in ast.unparse(mark) for mark in marks):
                    classes.append((node.name, [ast.unparse(base) for base in node.bases]))
    return classes


@pytest.mark.quick
def test_classes_with_cached_properties_have_it():
    classes = classes_with_cached_properties()
    assert len(classes) > 20
    assert {n for n, bases in classes if "EagerDict" not in bases} == {"ExecutionContext"}  # a Chunk has it
