"""Drawings of fragment layouts and of swizzled shared memory, and HTML for notebooks."""
