"""Orders in which the threads of a launch run, other than the emulator's own."""
