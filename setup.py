"""Which folders are installed under which names, and the long description.

The only top-level name is `tensorcore_dsl`: the folder `kernels` of the repository is installed as
`tensorcore_dsl.kernels`. `benchmarks`, `tests` and `docs` are not installed; the sdist has them.
All else is in pyproject.toml.
"""

import os
import re
from pathlib import Path

from setuptools import find_packages, setup

HERE = Path(__file__).parent
README = (HERE / "README.md").read_text("utf-8")

# A page that shows the README alone has none of the files that it points to. Their links lead to
# the repository, if the variable REPOSITORY says where it is (paths as on GitHub); if not, they are
# plain text. Programs stay as they are: launches look like links.
REPOSITORY = os.environ.get("REPOSITORY", "").rstrip("/")
LINK = rf"[\1]({REPOSITORY}/blob/HEAD/\2)" if REPOSITORY else r"\1"
URLS = {
    "Repository": REPOSITORY,
    "Documentation": f"{REPOSITORY}/tree/HEAD/docs",
    "Changelog": f"{REPOSITORY}/blob/HEAD/CHANGELOG.md",
    "Issues": f"{REPOSITORY}/issues",
}
PROGRAM = re.compile(r"(^```.*?^```$)", re.MULTILINE | re.DOTALL)
DESCRIPTION = "".join(
    part if part.startswith("```") else re.sub(r"\[([^]]+)\]\((?!https?:|#)([^)]+)\)", LINK, part)
    for part in PROGRAM.split(README)
)

setup(
    long_description=DESCRIPTION,
    long_description_content_type="text/markdown",
    project_urls=URLS if REPOSITORY else {},
    packages=[
        *find_packages(include=["tensorcore_dsl*"]),
        *(f"tensorcore_dsl.{name}" for name in find_packages(include=["kernels*"])),
    ],
    package_dir={"tensorcore_dsl.kernels": "kernels"},
)
