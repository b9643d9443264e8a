"""Drawings of fragment layouts and of swizzled shared memory."""
