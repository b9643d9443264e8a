"""`ldmatrix`, `stmatrix` and `movmatrix` (9.7.14.5.15 to .17)."""

from __future__ import annotations

from typing import Any

import numpy as np

from tensorcore_dsl.isa.context import Context
from tensorcore_dsl.isa.effects import WARP
from tensorcore_dsl.isa.generic import Lanes, shared_only
from tensorcore_dsl.isa.spec import Instruction, row
from tensorcore_dsl.isa.warp import LANES, active, warps
from tensorcore_dsl.lowering import compiled


def _whole(ctx: Context) -> np.ndarray:
    """(warps, 1) bool of the active warps; Divergence if a warp is active in part."""
    active_warps = ctx.whole_warps()
    return active(ctx)[:, :1] if active_warps is None else active_warps[:, None]


def _row_bytes(ctx: Context, instr: Instruction, address: Any, width: int) -> np.ndarray:
    """(warps, matrices, rows, 16) bytes of the rows at the lanes' addresses."""
    matrices, rows = int(instr.params["x"]), _rows(instr)
    taking = _whole(ctx) & (matrices * rows > LANES)
    address = shared_only(instr, address, taking.ravel())
    lanes: Any = Lanes(ctx, taking)
    words = ctx.shared.load(lanes, warps(ctx, address).ravel(), 4, width // 4)
    row_bytes = np.ascontiguousarray(words.T.astype(np.uint32)).view(np.uint8)
    return row_bytes.reshape(-1, 32, width)[:, : matrices * rows].reshape(-1, matrices, rows, width)


def _halves(ctx: Context, instr: Instruction, address: Any) -> np.ndarray:
    """Matrices of 16-bit elements, loaded by the machine in one step."""
    matrices = int(instr.params["x"])
    lanes: Any = ctx
    if ctx.active is not None or matrices < 4 or not instr.params["s"]:
        lanes = Lanes(ctx, _whole(ctx) & (matrices * 8 > LANES))
        address = shared_only(instr, address, lanes.active)
    if np.ndim(address) == 0:
        address = np.full(ctx.threads, address)
    return ctx.shared.load_matrices(lanes, address, matrices, bool(instr.params.get("trans")))


def _rows(instr: Instruction) -> int:
    return 16 if instr.params["shape"].startswith("m16") else 8


def load(ctx: Context, instr: Instruction, address: Any) -> np.ndarray:
    """ldmatrix: rows of 16 bytes become fragments."""
    kind = instr.params["t"]
    if kind == "b16":
        registers = _halves(ctx, instr, address)
    elif kind == "s4":
        registers = _fragments((_unpack(_row_bytes(ctx, instr, address, 8), 4) ^ 8) - np.uint8(8))
    else:
        elements = _row_bytes(ctx, instr, address, 16)
        pad = instr.params.get("pad")
        if pad:
            bits = {"p32": 6, "p64": 4}[pad]
            elements = _unpack(elements[..., : 2 * bits], bits)
        registers = _fragments(elements.swapaxes(-1, -2) if instr.params.get("trans") else elements)
    return registers if len(registers) > 1 else registers[0]


def _unpack(packed: np.ndarray, bits: int) -> np.ndarray:
    """Unpack elements of 4 or 6 bits, each into the low bits of a byte."""
    flat = np.unpackbits(packed, axis=-1, bitorder="little")
    fields = flat.reshape(*packed.shape[:-1], 16, bits)
    return np.packbits(fields, axis=-1, bitorder="little")[..., 0]


def _fragments(matrix: np.ndarray) -> np.ndarray:
    """(warps, matrices, rows, cols) to (registers, T): a register holds 4 bytes of row lane // 4.

    Rows 8 to 15 of a matrix with 16 rows go to the next register.
    """
    count, matrices, rows, cols = matrix.shape
    per = 4 // matrix.itemsize
    blocks = matrix.reshape(count, matrices, rows // 8, 8, cols // (4 * per), 4, per)
    words = np.ascontiguousarray(blocks.transpose(1, 4, 2, 0, 3, 5, 6))
    return words.view(np.uint32).reshape(-1, count * 32)


def store(ctx: Context, instr: Instruction, address: Any, value: Any) -> None:
    """stmatrix: the inverse of ldmatrix; 16x8 matrices of bytes are stored by columns."""
    matrices = int(instr.params["x"])
    words = np.broadcast_to(np.asarray(value, np.uint32), (matrices, ctx.threads))
    rows = np.empty((4, ctx.threads), np.uint32)
    if instr.params["t"] == "b8":  # byte 2i + j is row g + 8i of column 2q + j, stored by columns
        data_bytes = np.ascontiguousarray(words.reshape(matrices, -1, 8, 4)).view(np.uint8)
        data_bytes = data_bytes.reshape(matrices, -1, 8, 4, 2, 2).transpose(1, 0, 3, 5, 4, 2)
        row_words = np.ascontiguousarray(data_bytes).view(np.uint32).reshape(-1, matrices * 8, 4)
        rows.reshape(4, -1, 32)[:, :, : matrices * 8] = row_words.transpose(2, 0, 1)
    else:
        _rows_of_elements(np.ascontiguousarray(words), bool(instr.params["trans"]), rows)
    taking: Any = Lanes(ctx, _whole(ctx) & (matrices * 8 > LANES))
    address = shared_only(instr, address, taking.active)
    ctx.shared.store(taking, warps(ctx, address).ravel(), rows)


@compiled
def _rows_of_elements(words: Any, transposed: bool, rows: Any) -> None:
    """Compute the rows of 8x8 matrices of 16-bit elements, or their columns if `transposed`.

    words: (matrices, T); lane i holds elements 2 (i % 4) and 2 (i % 4) + 1 of row i // 4. rows: (4, T);
    lane 8 m + r receives row r of matrix m.
    """
    for warp in range(0, words.shape[1], 32):
        for matrix in range(words.shape[0]):
            for line in range(8):
                lane, half = warp + 8 * matrix + line, 16 * (line % 2)
                for i in range(4):
                    if transposed:
                        source = warp + 8 * i + line // 2
                        low = words[matrix, source] >> half & 0xFFFF
                        high = words[matrix, source + 4] >> half & 0xFFFF
                        rows[i, lane] = low | high << 16
                    else:
                        rows[i, lane] = words[matrix, warp + 4 * line + i]


def transpose(ctx: Context, instr: Instruction, a: Any) -> np.ndarray:
    """movmatrix: transpose an 8x8 matrix of 16-bit elements across the warp."""
    _whole(ctx)
    words = np.ascontiguousarray(warps(ctx, np.asarray(a, np.uint32)))
    elements = words.view(np.uint16).reshape(-1, 8, 8)
    return np.ascontiguousarray(elements.swapaxes(1, 2)).view(np.uint32).ravel()


# The lanes whose addresses name rows of 16 bytes: one a row of each matrix.
LOAD8, LOAD16 = "load p {in} 16 lanes={x}*8", "load p {in} 16 lanes={x}*16"
STORE8 = "store p {in} 16 lanes={x}*8"
# What `.s8.s4` loads was measured on an H100 (vLLM, pull request 50096, commit 3406be9f0d7): rows of
# 8 bytes, the first element in the low bits, fragments as of 8-bit elements.
LOAD_S4 = "load p {in} 8 lanes={x}*8"
COMMON: Any = {"s_at_in": ".shared/u32/shared /u64/generic", "effects": WARP}
FAMILY8 = "100f 110f 120f"
# Numbers of matrices, with the templates of loads and stores: braces enclose a single register too.
COUNTS = ("1", "{{{d}}}, {p}", "{p}, {{{r}}}"), ("2 4", "", "")

# fmt: off
ROWS = (
    #   mnemonic                                                 operands                   section         execute  axes
    *[row("ldmatrix.sync.aligned.{shape}.x{x}{trans}{s}.{t}",    "d:b32*{x} = p:[{at}]",    "9.7.14.5.15",  load, shape="m8n8", x=_x, trans="- .trans", t="b16", **COMMON, access=LOAD8, requires="75", ptx="6.5", template=_loaded)
      for _x, _loaded, _ in COUNTS],
    row("ldmatrix.sync.aligned.{shape}.x{x}{trans}{s}.{t}",      "d:b32*{n} = p:[{at}]",    "9.7.14.5.15",  load, shape="m16n16", x_n="1/2 2/4", trans=".trans", t="b8", **COMMON, access=LOAD16, requires=FAMILY8, ptx="8.6"),
    row("ldmatrix.sync.aligned.{shape}.x{x}{trans}{s}.b8x16.{src}_{pad}", "d:b32*{n} = p:[{at}]", "9.7.14.5.15", load, shape="m16n16", x_n="1/2 2/4", trans=".trans", t="b8", src_pad="b6x16/p32 b4x16/p64", **COMMON, access=LOAD16, requires=FAMILY8, ptx="8.6"),
    *[row("ldmatrix.sync.aligned.{shape}.x{x}{s}.b8x16.{src}_{pad}", "d:b32*{x} = p:[{at}]", "9.7.14.5.15", load, shape="m8n16", x=_x, t="b8", src_pad="b6x16/p32 b4x16/p64", **COMMON, access=LOAD8, requires=FAMILY8, ptx="8.6", template=_loaded)
      for _x, _loaded, _ in COUNTS],
    *[row("ldmatrix.sync.aligned.{shape}.x{x}{s}.s8.{t}",        "d:b32*{x} = p:[{at}]",    "9.7.14.5.15",  load, shape="m8n16", x=_x, t="s4", **COMMON, access=LOAD_S4, requires=f"90a {FAMILY8}", ptx="9.4", template=_loaded)
      for _x, _loaded, _ in COUNTS],
    *[row("stmatrix.sync.aligned.{shape}.x{x}{trans}{s}.{t}",    "p:[{at}], r:b32*{x}",     "9.7.14.5.16",  store, shape=_shape, x=_x, trans=_trans, t=_type, **COMMON, access=STORE8, requires=_sm, ptx=_ptx, template=_stored)
      for _shape, _trans, _type, _sm, _ptx in (("m8n8", "- .trans", "b16", "90", "7.8"), ("m16n8", ".trans", "b8", FAMILY8, "8.6"))
      for _x, _, _stored in COUNTS],
    row("movmatrix.sync.aligned.{shape}.trans.b16",              "d:b32 = a:b32",           "9.7.14.5.17",  transpose, shape="m8n8", effects=WARP, requires="75", ptx="7.8"),
)
# fmt: on
