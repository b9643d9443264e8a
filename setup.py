"""Which folders are installed under which names; everything else is in setup.cfg.

The only top-level name is `tensorcore_dsl`: the folder `kernels` of the repository is installed as
`tensorcore_dsl.kernels`. `benchmarks`, `tests` and `docs` are not installed.
"""

from setuptools import find_packages, setup

setup(
    packages=[
        *find_packages(include=["tensorcore_dsl*"]),
        *(f"tensorcore_dsl.{name}" for name in find_packages(include=["kernels*"])),
    ],
    package_dir={"tensorcore_dsl.kernels": "kernels"},
)
