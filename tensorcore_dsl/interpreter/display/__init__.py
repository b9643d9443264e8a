"""Values in registers and memory, and states of barriers, as text."""
