"""Benchmarks of programs on a GPU: attention, the tutorial, examples/, training."""
