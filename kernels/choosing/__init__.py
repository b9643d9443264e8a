"""Choose the kernel family and the configuration of a product."""
