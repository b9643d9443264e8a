"""HTML page with a kernel's Python, IR, PTX and SASS side by side, and counts of an emulated run."""
