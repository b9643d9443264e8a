"""Which folders are installed under which names, and the long description.

The only top-level name is `tensorcore_dsl`: the folder `kernels` of the repository is installed as
`tensorcore_dsl.kernels`. `benchmarks`, `tests` and `docs` are not installed; the sdist has them.
All else is in pyproject.toml.
"""

import re
from pathlib import Path

from setuptools import find_packages, setup

# A page that shows the README alone has none of the files that it points to: their links become the
# text that names them.
_TO_A_FILE = re.compile(r"\[([^]]+)\]\((?!https?:|#)[^)]+\)")

README = Path(__file__).with_name("README.md").read_text("utf-8")

setup(
    long_description=_TO_A_FILE.sub(r"\1", README),
    long_description_content_type="text/markdown",
    packages=[
        *find_packages(include=["tensorcore_dsl*"]),
        *(f"tensorcore_dsl.{name}" for name in find_packages(include=["kernels*"])),
    ],
    package_dir={"tensorcore_dsl.kernels": "kernels"},
)
