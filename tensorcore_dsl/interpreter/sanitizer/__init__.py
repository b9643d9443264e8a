"""Checks that hardware does not make: races, missing fences, operands overwritten in flight."""
