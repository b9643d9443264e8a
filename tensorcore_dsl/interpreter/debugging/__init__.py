"""Shows what kernels compute: the debugger, traces of variables, and printed matrices."""
