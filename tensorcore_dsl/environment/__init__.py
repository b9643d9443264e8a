"""What a process finds around it: variables of the environment, caches on disk, compiled loops."""
