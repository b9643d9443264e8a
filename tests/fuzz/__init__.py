"""A fuzzer: odd input of every kind, after which only errors of the library are allowed.

`python -m tests.fuzz --seconds 60 --seed 1` runs all families of cases in turn; `--family emulated
--seed 17 --cases 1` runs a case again. A case draws its input from its seed alone. It fails by an
exception that is no TensorCoreError, by a crash of the process, by a hang, or by too much memory.

| family | input |
| --- | --- |
| `emulated` | `tc.emulate` of any instruction of the table on odd operands |
| `ir_text` | changed IR text: parse, verify, print as PTX, run |
| `sources` | changed source of kernels: compile, print as PTX, run |
| `launches` | odd grids, blocks, options and arguments |
| `capsules` | broken DLPack objects, `__cuda_array_interface__` and streams |

`python -m tests.fuzz.products` compares random whole products on a GPU and in emulation, and
`python -m tests.fuzz.ways` the ways in which the emulator may run them.
"""
