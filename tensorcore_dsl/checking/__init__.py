"""Checked runs of kernels: findings, and the orders of threads that show them."""
