"""Regions: steps of single threads with the control flow between them, as machine code."""
