"""Compiles a kernel to a flat program and runs it for the threads of a chunk of CTAs."""
