"""From a Python function to IR: values, builder, language, evaluator."""
