"""Bit-exact arithmetic of tensor cores and scalar instructions, per architecture."""
