"""Tests compare what processes print: the notice of compilations would depend on what is cached."""

import os

os.environ.setdefault("TENSORCORE_DSL_NOTICE", "off")
