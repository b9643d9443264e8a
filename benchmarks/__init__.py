"""How fast it is: products, launches, the emulator, the compiler. `python -m benchmarks --help`."""
