"""Describe a product, the kernels that can run it, the copies that they need, and the order of its sums."""
