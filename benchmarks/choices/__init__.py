"""How well `gemm` chooses a configuration, and from what it learns that."""
