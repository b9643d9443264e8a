"""What the host's part of a launch takes: launching, compiling, the first call."""
