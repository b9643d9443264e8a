"""Autotuning of users' kernels: `@tc.autotune` measures configurations, and keeps the fastest."""
