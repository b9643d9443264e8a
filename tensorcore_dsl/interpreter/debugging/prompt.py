"""Prompt of the debugger: commands of pdb, and commands for threads."""

from __future__ import annotations

import ast
import builtins
import cmd
import linecache
import re
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tensorcore_dsl.errors import ArgumentError, DebuggerQuit, public
from tensorcore_dsl.interpreter.core.chunk import WARP
from tensorcore_dsl.interpreter.core.geometry import ranges
from tensorcore_dsl.interpreter.debugging.summaries import kind_of, matrices
from tensorcore_dsl.interpreter.debugging.viewpoint import SPECIAL, Namespace, Viewpoint
from tensorcore_dsl.interpreter.debugging.waits import Waits
from tensorcore_dsl.interpreter.display.contents import Indexed, Unreadable, barrier_state, shown
from tensorcore_dsl.ir import views
from tensorcore_dsl.ir.nodes import Mark

PROMPT = "(tcdb) "
_AROUND = 5  # lines that `list` shows before and after the current one
_INDEXED = "<indexed>"  # a name that no expression contains
_LINE = 80  # columns of a value in `locals`
_OPERATOR = re.compile(r"[-+*/%=<>&|^,!]|(if|in|is|and|or|not)\b")
_FILE = re.compile(r"/\S+:\d+$")
_STATEMENT = "the debugger evaluates expressions; it runs no statements and changes no variables"
_scripts: ContextVar[Iterator[str] | None] = ContextVar("script", default=None)


@public
def script(*commands: str) -> AbstractContextManager[None]:
    """Give these commands to the debugger, which prints them after its prompt.

    When they have ended, the next prompt quits (`DebuggerQuit`).

    Parameters
    ----------
    *commands : str
        What a user would type, a command each: "p x", "n", "c".

    Returns
    -------
    context manager
        Holds for the launches inside.

    Raises
    ------
    ArgumentError
        Commands that are no strings.

    See Also
    --------
    tensorcore_dsl.breakpoint : Where the debugger stops, with an example.
    """
    for command in commands:
        if not isinstance(command, str):
            raise ArgumentError(f"commands of the debugger are strings, not {command!r}")
    return _scripted(commands)


@contextmanager
def _scripted(commands: tuple[str, ...]) -> Iterator[None]:
    token = _scripts.set(iter(commands))
    try:
        yield
    finally:
        _scripts.reset(token)


@dataclass
class Resumption:
    """How a stopped thread goes on, and the breakpoints.

    Attributes
    ----------
    wanted : str
        "" up to a breakpoint, "step", "next", "return" or "until" (the line `until`).
    depth : int
        Calls around the statement at which it stopped.
    stopped : Mark or None
        The mark there.
    breaks : list
        (file, line) of breakpoints.
    """

    wanted: str = ""
    depth: int = 0
    until: int = 0
    stopped: Mark | None = None
    breaks: list[tuple[str, int]] = field(default_factory=list)


class Prompt(cmd.Cmd):
    """One stop: reads commands until one of them goes on."""

    prompt = PROMPT
    doc_header = "Commands (help COMMAND explains one):"
    _SHORT = {
        "p": "print", "s": "step", "n": "next", "c": "continue", "cont": "continue", "w": "where",
        "bt": "where", "q": "quit", "exit": "quit", "l": "list", "b": "break", "cl": "clear",
        "r": "return", "u": "up", "d": "down", "unt": "until", "h": "help", "a": "locals",
        "args": "locals", "pp": "print",
    }  # fmt: skip

    def __init__(self, plan: Resumption, view: Viewpoint) -> None:
        super().__init__(stdin=sys.stdin, stdout=sys.stdout)
        self.plan, self.view = plan, view
        self.script = _scripts.get()
        self.use_rawinput = self.script is None

    @property
    def waits(self) -> Waits:
        return Waits(self.ctx, self.plan.stopped)

    @property
    def ctx(self) -> Any:
        return self.view.machine.ctx

    # -- the loop ------------------------------------------------------------------------------

    def start(self) -> None:
        """Say where the threads stopped, and read commands until one goes on."""
        self._show_position(stopped=True)
        self.cmdloop()

    def cmdloop(self, intro: Any = None) -> None:
        if self.script is None:
            self._read_keyboard()
            return
        going = None
        while not going:
            line = next(self.script, "EOF")
            self._say(f"{PROMPT}{line}" if line != "EOF" else PROMPT)
            going = self.onecmd(line)

    def _read_keyboard(self) -> None:
        while True:
            try:
                super().cmdloop()
                return
            except KeyboardInterrupt:
                self._say("\n(quit stops the emulation)")
            except OSError as error:  # pytest raises it for captured input
                raise DebuggerQuit(
                    f"the debugger cannot read commands: {error} tc.debugger.script(...) gives it some",
                    self.view.loc,
                ) from None

    def _say(self, text: str) -> None:
        self.stdout.write(text + "\n")

    def parseline(self, line: str) -> tuple[str | None, str | None, str]:
        """The command and its argument; `c[0]` and `n + 1` are expressions, no commands."""
        name, argument, whole = super().parseline(line)
        typed, name = name or "", self._SHORT.get(name or "", name)
        close = whole.startswith(f"{typed}{argument}") and (argument or "").startswith((".", "[", "("))
        if name == "print":
            expression = close and typed != name and typed in self.view.namespace().variables
        else:
            expression = (close and name != "thread") or bool(_OPERATOR.match(argument or ""))
            expression = expression and not _FILE.match(argument or "")
        return (None, None, whole) if expression and typed else (name, argument, whole)

    def emptyline(self) -> bool:
        return False

    def default(self, line: str) -> None:
        """Like pdb, take anything else for an expression."""
        if line == "EOF":
            self.do_EOF("")
        self.do_print(line.removeprefix("!"))

    def completenames(self, text: str, *ignored: Any) -> list[str]:
        variables = [name for name in self.view.namespace() if name.startswith(text)]
        return [*super().completenames(text, *ignored), *variables]

    def completedefault(self, text: str, *ignored: Any) -> list[str]:
        """Complete the names of an expression."""
        names = {*self.view.namespace(), *SPECIAL, "np"}
        return sorted(name for name in names if name.startswith(text))

    def get_names(self) -> list[str]:
        return [name for name in super().get_names() if name != "do_EOF"]

    def do_help(self, argument: str) -> bool | None:
        """help [COMMAND]: list the commands, or explain one."""
        return super().do_help(self._SHORT.get(argument, argument))

    # -- going on ------------------------------------------------------------------------------

    def _go(self, wanted: str, until: int = 0) -> bool:
        plan = self.plan
        plan.wanted, plan.depth, plan.until = wanted, len(self.view.chain), until
        return True

    def do_step(self, _: str) -> bool:
        """step (s): go on to the next line of this thread, also in functions that it calls."""
        return self._go("step")

    def do_next(self, _: str) -> bool:
        """next (n): go on to the next line of this thread in this function."""
        return self._go("next")

    def do_continue(self, _: str) -> bool:
        """continue (c): go on to the next breakpoint."""
        return self._go("")

    def do_return(self, _: str) -> bool:
        """return (r): go on until this function has returned."""
        return self._go("return")

    def do_until(self, argument: str) -> bool:
        """until [LINE]: go on to a line that is greater than this one, or is at least LINE."""
        loc = self.view.loc
        here = loc.line + 1 if loc is not None else 0
        if argument and not argument.isdigit():
            self._say(f"*** until takes a line, not {argument!r}")
            return False
        return self._go("until", int(argument) if argument else here)

    def do_quit(self, _: str) -> bool:
        """quit (q): stop the emulation with DebuggerQuit."""
        raise DebuggerQuit("the debugger was left with quit", self.view.loc)

    def do_EOF(self, _: str) -> bool:
        """The end of the input quits."""
        if self.script is None:
            self._say("")
        raise DebuggerQuit("the debugger's input ended", self.view.loc)

    # -- breakpoints ---------------------------------------------------------------------------

    def do_break(self, argument: str) -> None:
        """break [[FILE:]LINE]: stop at a line too; without a line, list these breakpoints."""
        if not argument:
            for filename, line in self.plan.breaks:
                self._say(f"{filename}:{line}")
            return
        at = self._line(argument)
        if at is None:
            return
        lines = {
            (m.loc.filename, m.loc.line)
            for m in self.ctx.program.marks.values()
            if m.loc is not None and m.kind == "line"
        }
        if at not in lines:
            near = sorted(line for name, line in lines if name == at[0])
            self._say(
                f"*** no statement of the kernel starts at {at[0]}:{at[1]}; "
                f"lines {ranges(np.array(near, int)) or 'of this file: none'}"
            )
            return
        self.plan.breaks.append(at)
        self._say(f"breakpoint at {at[0]}:{at[1]}")

    def do_clear(self, argument: str) -> None:
        """clear [[FILE:]LINE]: remove a breakpoint that `break` set, or all."""
        at = self._line(argument) if argument else None
        self.plan.breaks = [b for b in self.plan.breaks if at and b != at]

    def _line(self, text: str) -> tuple[str, int] | None:
        filename, _, line = text.strip().rpartition(":")
        loc = self.view.loc
        if not line.isdigit():
            self._say(f"*** a line, or file:line, is needed, not {text!r}")
            return None
        if not filename and loc is not None:
            filename = loc.filename
        known = {m.loc.filename for m in self.ctx.program.marks.values() if m.loc is not None}
        ends = [name for name in sorted(known) if f"/{name}".endswith(f"/{filename}")]
        return (ends[0] if ends else filename, int(line))

    # -- showing -------------------------------------------------------------------------------

    def do_print(self, expression: str) -> None:
        """print (p) EXPRESSION: variables, special registers (threadIdx.x), NumPy (np).

        A scalar has a value for each lane of the warp (or one, after `lane`); a fragment is its
        matrix; tiles, arrays and lists are indexed as in Python, by a scalar on which all lanes
        agree too. Masked (--): no value here.
        """
        if not expression:
            self._say("*** print takes an expression")
            return
        names = self.view.namespace()
        try:
            tree = _Indices().visit(ast.parse(expression, mode="eval"))
            value = eval(compile(tree, "<tcdb>", "eval"), _Globals(names), names)
        except SyntaxError as error:
            message = f"SyntaxError: {error.msg} (help lists the commands)"
            why = _STATEMENT if _is_statement(expression) else message
            self._say(f"*** {why}")
        except Exception as error:
            self._say(f"*** {type(error).__name__}: {error}")
        else:
            self._say(shown(value))

    def do_locals(self, _: str) -> None:
        """locals (a): the variables of this function, each on a line."""
        names = self.view.namespace()
        width = max(map(len, names), default=0)
        for name in names:
            self._say(f"{name:<{width}} = {self._summary(names, name)}")

    def _summary(self, names: Namespace, name: str) -> str:
        view = names.variables[name]
        try:
            value = names.contents.read(view)
        except Unreadable as error:
            return f"<{error}>"
        kind = kind_of(view)
        if isinstance(value, np.ndarray) and value.ndim > 1:
            return kind
        if isinstance(view, views.BarrierView) and view.count is not None:
            return f"{view.count} mbarriers, phase {', '.join(str(s.phase) for s in value)}"
        if isinstance(view, views.Container) and (inside := matrices(view)):
            return inside
        return f"{_cut(shown(value, 8).splitlines()[0])}{f'  ({kind})' if kind else ''}"

    def do_where(self, _: str) -> None:
        """where (w, bt): the line, and the calls that led here."""
        for level, loc in enumerate(self.view.chain):
            mark = "->" if level == self.view.level else "  "
            self._say(f"{mark} {loc.filename}({loc.line}){loc.function}()")
            self._say(loc.excerpt() or "    ?")

    def do_list(self, _: str) -> None:
        """list (l): the source around the line."""
        loc = self.view.loc
        if loc is None:
            return
        lines = linecache.getlines(loc.filename)
        first = max(loc.line - _AROUND, 1)
        for number in range(first, min(loc.line + _AROUND, len(lines)) + 1):
            sign = "->" if number == loc.line else "  "
            self._say(f"{number:>4} {sign} {lines[number - 1].rstrip()}".rstrip())

    # -- the viewpoint -------------------------------------------------------------------------

    def do_up(self, _: str) -> None:
        """up (u): look at the function that called this one."""
        self._level(self.view.level + 1)

    def do_down(self, _: str) -> None:
        """down (d): look at the function that this one called."""
        self._level(self.view.level - 1)

    def _level(self, level: int) -> None:
        if not 0 <= level < len(self.view.chain):
            self._say("*** there is no such call")
            return
        self.view = self.view.moved(level=level)
        self._show_position()

    def do_lane(self, argument: str) -> None:
        """lane [N]: look at lane N of the warp alone; without N, at the whole warp."""
        if not argument:
            self._look(self.view.thread, True)
        elif argument.isdigit() and int(argument) < WARP:
            self._look(self.view.warp.start + int(argument), False)
        else:
            self._say(f"*** lanes are 0 to 31, not {argument!r}")

    def do_warp(self, argument: str) -> None:
        """warp N: look at warp N of the CTA."""
        per = self.ctx.group // WARP
        if not argument.isdigit() or int(argument) >= per:
            self._say(f"*** warps of the CTA are 0 to {per - 1}, not {argument!r}")
            return
        first = self.view.thread // self.ctx.group * self.ctx.group + int(argument) * WARP
        self._look(first, True)

    def do_thread(self, argument: str) -> None:
        """thread [(BX, BY, BZ)] (TX, TY, TZ): look at one thread; trailing zeros may be missing."""
        groups = re.findall(r"\(([^)]*)\)|(\d+)", argument)
        try:
            indices = [_index(tuple or number) for tuple, number in groups]
        except ValueError:
            indices = []
        geometry = self.ctx.geometry
        if len(indices) not in (1, 2):
            self._say("*** thread takes one or two indices, such as thread (0, 1) (5)")
            return
        cta = self.view.thread // self.ctx.group
        if len(indices) == 2:
            ctas = [geometry.cta(c * self.ctx.group) for c in range(geometry.ctas)]
            if indices[0] not in ctas:
                self._say(f"*** CTA {indices[0]} does not run now: CTAs {ctas[0]} to {ctas[-1]} do")
                return
            cta = ctas.index(indices[0])
        (x, y, z), (nx, ny, _) = indices[-1], geometry.block
        if any(i >= n for i, n in zip(indices[-1], geometry.block, strict=True)):
            self._say(f"*** thread {indices[-1]} does not exist: the size of a CTA is {geometry.block}")
            return
        self._look(cta * self.ctx.group + x + nx * (y + ny * z), False)

    def _look(self, thread: int, whole_warp: bool) -> None:
        level = self.view.level if self.view.here[thread] else 0
        view = self.view.moved(thread=thread, whole_warp=whole_warp, level=level)
        if whole_warp and not view.here[thread]:  # the first lane that is still there
            alive = np.flatnonzero(self.ctx.alive[view.warp])
            view = view.moved(thread=view.warp.start + int(alive[0])) if len(alive) else view
        self.view = view
        self._show_position()

    def _show_position(self, stopped: bool = False) -> None:
        loc, view = self.view.loc, self.view
        mask = self.ctx.mask
        threads, elsewhere = np.count_nonzero(mask), mask.copy()
        elsewhere[view.warp] = False
        more = f" (of {threads} threads that are here)" if stopped and elsewhere.any() else ""
        self._say(f"{view.described()}{more}")
        if loc is None:
            self._say("it has not started" if self.ctx.alive[view.thread] else "it has ended")
            return
        self._say(f"> {loc.filename}({loc.line}){loc.function}()")
        mark = view.mark
        if mark is not None and mark.kind == "end" and view.level == 0:
            self._say("-> (the end of the kernel)")
            return
        self._say(f"-> {linecache.getline(loc.filename, loc.line).strip()}")

    # -- threads and barriers ------------------------------------------------------------------

    def do_warps(self, argument: str) -> None:
        """warps [all]: where the warps of this CTA (of all running CTAs) are, and what they
        wait for."""
        ctx = self.ctx
        own_cta = self.view.thread // ctx.group
        ctas = range(ctx.geometry.ctas) if argument == "all" else (own_cta,)
        rows: list[tuple[str, ...]] = []
        for cta in ctas:
            for first in range(cta * ctx.group, (cta + 1) * ctx.group, WARP):
                rows += self.waits.rows(first)
        widths = [max(len(row[i]) for row in rows) for i in range(3)]
        for row in rows:
            cells = "  ".join(cell.ljust(w) for cell, w in zip(row, widths))
            self._say(f"{cells}  {row[3]}".rstrip())

    def do_barriers(self, _: str) -> None:
        """barriers: the named barriers in use and the mbarriers of this CTA."""
        ctx, cta = self.ctx, self.view.thread // self.ctx.group
        used = np.flatnonzero(ctx.barriers.expected[cta])
        texts = [self.waits.named_barrier(cta, int(number)) for number in used]
        slots = map(int, np.flatnonzero(ctx.mbarriers.index[cta]))
        texts += [self.waits.mbarrier(cta, s) for s in slots if barrier_state(ctx, cta, s).count]
        self._say("\n".join(texts) or "no barrier is in use")


class _Indices(ast.NodeTransformer):
    """Indexes containers by `Indexed`."""

    def visit_Subscript(self, node: ast.Subscript) -> ast.AST:
        self.generic_visit(node)
        node.value = ast.Call(ast.Name(_INDEXED, ast.Load()), [node.value], [])
        return ast.fix_missing_locations(node)


class _Globals(dict[str, Any]):
    """The names of a viewpoint for functions and comprehensions within an expression."""

    def __init__(self, names: Namespace) -> None:
        super().__init__({"__builtins__": builtins, _INDEXED: Indexed})
        self.names = names

    def __missing__(self, name: str) -> Any:
        return self.names[name]


def _is_statement(text: str) -> bool:
    try:
        compile(text, "<input>", "exec")
    except SyntaxError:
        return False
    return True


def _index(text: str) -> tuple[int, ...]:
    """Up to three numbers; missing ones are 0."""
    numbers = [int(part) for part in text.split(",") if part.strip()]
    if not 1 <= len(numbers) <= 3:
        raise ValueError(text)
    return tuple(numbers + [0] * (3 - len(numbers)))


def _cut(text: str) -> str:
    return text if len(text) <= _LINE else f"{text[:_LINE]}..."
