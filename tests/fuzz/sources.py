"""Changed source of kernels: compiled, printed as IR and PTX, and run."""

from __future__ import annotations

import ast
import copy
import random
from typing import Any

import tensorcore_dsl as tc
from tests.fuzz import corpus

EXPRESSIONS = (
    "0", "-1", "1.5", "1e400", "2**31", "2**64", "10**5000", "True", "None", "'s'", "b'x'", "()", "(1, 2)", "[]",
    "{}", "{1: 2}", "n", "x", "y", "i", "t", "total", "value", "tile", "bar", "map", "tc", "tc.f32", "tc.f16",
    "tc.threadIdx.x", "x[0]", "x[i]", "y[n]", "x.shape", "x.shape[0]", "x.at(0)", "tile[0]", "x[...]", "x[::2]",
    "x[n:]", "n + 1", "n / 0", "n % 0", "1 // 0", "n << 100", "n ** n", "-n", "~n", "not n", "n and x", "x @ y",
    "lambda a: a", "(lambda a: a)(n)", "[k for k in range(3)]", "{k for k in range(n)}", "(k for k in x)",
    "x if n else y", "f'{n}'", "f'{x!r:>{n}}'", "(q := n)", "*x", "range(n)", "range(10**9)", "len(x)", "abs(n)",
    "max(n)", "min()", "int(n)", "float('nan')", "print(n)", "math.sqrt(n)", "math.pi", "open", "type(n)",
    "isinstance(n, int)", "getattr(n, 'x')", "n.dtype", "n.foo", "undefined", "tc.zeros((4,), tc.f32)",
    "tc.shared((n,), tc.f32)", "tc.shared((10**9,), tc.f32)", "tc.shared((4,), tc.f32)", "tc.local((4,), tc.f32)",
    "tc.mma", "tc.emit('add.u32', n, n)", "tc.emit('trap')", "tc.emit(n)", "tc.i32(n)", "tc.f16(1e9)", "tc.s8(n)",
    "tc.shfl(n, n)", "tc.vote('any', n)", "tc.atomic('add', y.at(0), 1.0)", "tc.exp(n)", "tc.barrier()",
    "tc.mbarriers(0)", "tc.mbarriers(10**6)", "await n", "(yield n)", "__import__('os')", "n < i < 3", "n is None",
    "n in (1, 2)", "x == y", "super()", "tc.kernel", "tc.range(0, n, 0)", "slice(n)", "'%d' % n", "n.__class__",
)  # fmt: skip
STATEMENTS = (
    "return", "return n", "break", "continue", "pass", "raise ValueError(n)", "assert n", "del n", "global n",
    "import os", "n = 1", "n = 1.5", "n = x", "n += 1", "x = y", "i = None", "x[i] = n", "y[0] = 'a'", "x, y = y, x",
    "a, *b = 1, 2, 3", "n: int = 3", "tc.barrier()", "tc.syncwarp()", "breakpoint()", "tc.launch_bounds(64)",
    "print('%s', n)", "print(x)", "def inner(a):\n    return inner(a)\ninner(n)", "class C:\n    pass",
    "with n:\n    pass", "try:\n    n\nfinally:\n    pass", "match n:\n    case 1:\n        pass",
    "for a in x:\n    pass", "for a in range(n, 0, -1):\n    n = a", "for a in (1, 2):\n    n += a", "while n:\n    n -= 1",
    "while True:\n    pass", "for a in range(2):\n    break\nelse:\n    n = 0", "async def f():\n    pass", "nonlocal n",
    "for a in range(100000):\n    n += 1", "for a in tc.static_range(5):\n    n += a", "n.foo = 1", "tc.f32 = 1",
    "for x[0] in range(3):\n    pass", "for (a, b) in enumerate((1, 2)):\n    n += b", "'text'", "x[0][0] = 1",
)  # fmt: skip


def case(draw: random.Random) -> None:
    tree = ast.parse(draw.choice(list(corpus.SOURCES.values())))
    for _ in range(draw.choice((0, 1, 1, 1, 2, 3, 5))):
        change(draw, tree)
    try:
        source = ast.unparse(ast.fix_missing_locations(tree))
        kernel = corpus.load(source)
    except (
        SyntaxError,
        ValueError,
        RecursionError,
        AttributeError,
        TypeError,
        KeyError,
        NameError,
        ImportError,
    ) as error:
        if isinstance(error, tc.TensorCoreError):
            raise
        return  # Python itself refuses it
    given = corpus.arguments(draw)
    arch = draw.choice(("sm_90a", "sm_90a", "sm_90a", "sm_80", "sm_100a"))
    if draw.random() < 0.5:
        kernel.ptx(*given, arch=arch, lineinfo=draw.random() < 0.3)
    options: dict[str, Any] = {
        "arch": arch,
        "order": draw.choice((None, None, 1)),
        "profile": draw.random() < 0.2,
    }
    options["checks"] = draw.choice((None, True, False))
    kernel.emulator(**options)[draw.choice((1, 2)), draw.choice((corpus.BLOCK, 1, 40))](*given)


def change(draw: random.Random, tree: ast.Module) -> None:
    """One change of a statement or of an expression."""
    nodes = list(ast.walk(tree))
    bodies = [
        getattr(n, f) for n in nodes for f in ("body", "orelse") if isinstance(getattr(n, f, None), list)
    ]
    bodies = [body for body in bodies if body is not tree.body and body]
    if draw.random() < 0.5 and bodies:
        change_statements(draw, draw.choice(bodies), draw.choice(bodies))
        return
    places = [
        (node, field, place)
        for node in nodes
        for field, held in ast.iter_fields(node)
        for place, item in enumerate(held if isinstance(held, list) else [held])
        if isinstance(item, ast.expr) and field not in ("decorator_list", "targets", "target")
    ]
    node, field, place = draw.choice(places)
    held = getattr(node, field)
    if draw.random() < 0.4:
        other, name, at = draw.choice(places)
        found = getattr(other, name)
        new = copy.deepcopy(found[at] if isinstance(found, list) else found)
    else:
        new = ast.parse(draw.choice([e for e in EXPRESSIONS if not e.startswith("*")]), mode="eval").body
    if isinstance(held, list):
        held[place] = new
    else:
        setattr(node, field, new)


def change_statements(draw: random.Random, body: list[ast.stmt], other: list[ast.stmt]) -> None:
    at = draw.randrange(len(body))
    kind = draw.randrange(6)
    if kind == 0 and len(body) > 1:
        del body[at]
    elif kind == 1:
        body.insert(at, copy.deepcopy(draw.choice(other)))
    elif kind == 2:
        body[at], other[-1] = other[-1], body[at]
    elif kind == 3:
        heads = (
            "if i == 3:",
            "if n:",
            "for w in range(n):",
            "while n < 3:",
            "if True:",
            "for w in range(3):",
            "with tc:",
        )
        outer: Any = ast.parse(draw.choice(heads) + "\n    pass").body[0]
        outer.body = [body[at]]
        body[at] = outer
    elif kind == 4 and draw.random() < 0.1:
        depth = draw.choice((10, 150, 450))
        text = "if n == 0:\n    n = 1\n" + "".join(f"elif n == {k}:\n    n = {k}\n" for k in range(depth))
        body[at:at] = ast.parse(text).body
    else:
        body[at:at] = ast.parse(draw.choice(STATEMENTS)).body
