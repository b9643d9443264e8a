"""Run-time values of a kernel under compilation, their operators, and the builder of its IR."""
