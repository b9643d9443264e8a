"""Pictures of layouts and of swizzled shared memory."""
