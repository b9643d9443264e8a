"""Checked runs of kernels: what was found, and the orders of threads that show it."""
