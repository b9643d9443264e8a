"""`export_repository(...)`: a folder of exported kernels that Hugging Face's `kernels` loads."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from pathlib import Path

from tensorcore_dsl.arch import arch as arch_named
from tensorcore_dsl.errors import ArgumentError, public
from tensorcore_dsl.export.interface import Interface
from tensorcore_dsl.export.write import identifier

VARIANT = "torch-cuda"  # for every version of torch: the code has no symbols of it


@public
def export_repository(
    folder: str | Path,
    name: str,
    exported: Sequence[str | Path],
    *,
    version: int = 1,
    license: str = "Apache-2.0",
) -> Path:
    """Make a repository of exported kernels for the library `kernels` of Hugging Face.

    `kernels.get_local_kernel(folder)` returns a module with an `ExportedKernel` for each. The machine
    that loads it needs this package, and no source of the kernels.

    Parameters
    ----------
    folder : str or Path
        Of the repository; made if it is not there.
    name : str
        Of the repository and of its module.
    exported : sequence of Path
        What `kernel.export` has returned.
    version : int
        Of the repository's interface.
    license : str
        As SPDX names it.

    Returns
    -------
    Path
        Of the folder.

    Raises
    ------
    ArgumentError
        No exported kernel, two of one name, or a folder that cannot be written.

    Examples
    --------
    After an export, for instance in a build::

        path = scale.export("exported", [array, tc.f32], arch="sm_90a", grid=132)
        tc.export_repository("repository", "my_kernels", [path])
    """
    paths = [Path(path) for path in exported]
    interfaces = [Interface.read(path) for path in paths]
    names = [interface.name for interface in interfaces]
    if not names or len({*names}) < len(names):
        raise ArgumentError(f"the kernels of a repository have names that differ: {names} were given")
    build = Path(folder) / "build" / VARIANT
    metadata = {
        "name": identifier(name).replace("_", "-"),
        "id": f"{name}_{version}",
        "version": version,
        "license": license,
        "python-depends": [],
        "backend": {"type": "cuda", "archs": sorted({_capability(i) for i in interfaces})},
    }
    loads = [f'{n} = load_exported(Path(__file__).with_name("{n}.json"))' for n in names]
    module = [
        f'"""Kernels that {interfaces[0].made_by} has exported: {", ".join(names)}."""\n',
        "from pathlib import Path\n",
        "from tensorcore_dsl import load_exported\n",
        *loads,
        f"\n__all__ = {names!r}\n",
    ]
    card = f"---\nlicense: {license.lower()}\ntags:\n- kernels\n---\n\n# {name}\n"
    card += "".join(f"\n## {i.name}\n\n{i.about}\n" for i in interfaces)
    try:
        build.mkdir(parents=True, exist_ok=True)
        (build / "__init__.py").write_text("\n".join(module), encoding="utf-8")
        (build / "metadata.json").write_text(json.dumps(metadata, indent=2) + "\n", encoding="utf-8")
        (Path(folder) / "README.md").write_text(card, encoding="utf-8")
        for path, interface in zip(paths, interfaces, strict=True):
            shutil.copy(path, build / f"{interface.name}.json")
            shutil.copy(path.with_name(interface.code), build / interface.code)
    except OSError as error:
        raise ArgumentError(f"cannot write to {str(folder)!r}: {error.strerror or error}") from None
    return Path(folder)


def _capability(interface: Interface) -> str:
    """The GPUs that a kernel runs on, as "9.0a", "8.0" or "8.0+PTX"."""
    arch = arch_named(interface.cubin.arch)
    suffix = arch.name.removeprefix(f"sm_{arch.number}")
    is_portable_text = interface.code.endswith(".ptx") and not suffix
    return f"{arch.number // 10}.{arch.number % 10}{suffix}{'+PTX' if is_portable_text else ''}"
