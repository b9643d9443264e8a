"""How tensor cores and scalar instructions round, per architecture: data over compiled loops."""
