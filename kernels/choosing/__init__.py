"""Choose the kernel family and the configuration of a product, and the kernels of attention."""
