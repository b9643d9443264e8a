"""How fast are GEMMs, launches, the emulator, the compiler? `python -m benchmarks --help`."""
