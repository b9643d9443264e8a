"""Compiles a kernel to a flat program, runs it for the threads of a chunk of CTAs, and reports hangs."""
