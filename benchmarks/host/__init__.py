"""Benchmarks of host time: launches, compilation, first calls."""
