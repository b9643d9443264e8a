"""Products beside the fastest libraries: problems, rivals, ceilings, results."""
