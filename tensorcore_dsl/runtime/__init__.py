"""Launch kernels: targets, arrays of all libraries, parameters, tensor maps, the driver."""
