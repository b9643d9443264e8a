"""From IR to machine code: the PTX printer, the assemblers, their diagnostics, and the caches."""
