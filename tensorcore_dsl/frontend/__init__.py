"""From a Python function to IR: a partial evaluator of its syntax tree."""
