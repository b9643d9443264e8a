"""Measure how well `gemm` chooses configurations, and train its choice from measured times."""
