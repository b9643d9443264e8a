"""Random products: `python -m tests.fuzz.products` compares whole ones on a GPU and in emulation, and
`python -m tests.fuzz.ways` the ways in which the emulator may run them.
"""
