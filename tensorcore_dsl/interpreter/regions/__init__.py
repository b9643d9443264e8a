"""Steps of single threads, and the control flow between them, as machine code of their own."""
