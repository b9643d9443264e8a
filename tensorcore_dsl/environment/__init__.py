"""Environment of a process: variables, caches on disk, compiled loops."""
