"""How tensor cores and scalar instructions round, per architecture: models as data, compiled loops."""
