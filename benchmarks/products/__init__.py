"""GEMMs compared with the fastest libraries: problems, baselines, ceilings, results."""
