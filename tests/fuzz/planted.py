"""Work for the tests of the fuzzer's processes."""

from __future__ import annotations

import os
import time


def work(number: int) -> dict[str, int]:
    """A case of the products, some of which die or hang."""
    if number == 3:
        os._exit(5)
    if number == 5:
        time.sleep(600)
    return {"hash": number}
