"""Planted bugs that the emulator does not report at the right line today: empty is the aim."""

MISSES: frozenset[str] = frozenset()
HUNG: frozenset[str] = frozenset()
