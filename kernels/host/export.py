"""`export_gemm(...)`: writes the kernel that `gemm` chooses as files for programs without Python."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import tensorcore_dsl as tc
from tensorcore_dsl.host import target_arch
from tensorcore_dsl.kernels.host.gemm import gemm
from tensorcore_dsl.kernels.host.plan import Plan
from tensorcore_dsl.kernels.host.planning import plan
from tensorcore_dsl.kernels.problem.recording import recorded

_OF_PLAN = ("beta", "alpha", "accumulate", "epilogue", "precision", "bits", "family", "config")


def export_gemm(
    folder: str | Path,
    a: Any,
    b: Any,
    c: Any = None,
    *,
    arch: str | None = None,
    name: str = "gemm",
    form: str = "cubin",
    **options: Any,
) -> Path:
    """Export the kernel that `gemm` chooses for a product of these shapes and layouts.

    The kernel takes A, B, C, D, alpha, beta, and then the values of `epilogue_args`. Without C, pass D in
    its place. The kernel is for these shapes alone, which the launcher in C checks. A sparse A and packed
    weights are the arrays that they are made of.

    Parameters
    ----------
    folder : str or Path
        For the files; made if it is not there.
    a, b, c : array
        As for `gemm`. Their types, shapes and strides count, and not their elements.
    arch : str, optional
        None: the architecture on which kernels run now.
    name : str
        Name of the files and of the functions in C.
    form : {"cubin", "ptx"}
        Machine code, or text that the driver compiles.
    **options : keywords
        As for `gemm`: alpha, beta, out, out_dtype, accumulate, epilogue, epilogue_args, precision, bits,
        family, config. alpha and beta tell whether they are 1 and 0, which have kernels of their own.

    Returns
    -------
    Path
        Path of the description in JSON; see `Kernel.export`.

    Raises
    ------
    ArgumentError
        Arguments that do not fit, or a product that takes more than one kernel.
    AssemblyError
        There is no assembler; `form="ptx"` needs none.

    Examples
    --------
    >>> import tempfile
    >>> a, b = np.empty((256, 128), np.float16), np.empty((128, 512), np.float16)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     kernels.export_gemm(folder, a, b, arch="sm_90a", form="ptx").name
    'gemm.json'
    """
    with tc.target("cpu", target_arch().name if arch is None else arch):
        options["config"], traits = _of_one_kernel(a, b, c, options)
        with recorded() as launches:
            gemm(a, b, c, **options)
    if len(launches) != 1:
        raise tc.ArgumentError(f"this product takes {len(launches)} kernels; one can be exported")
    (bound,) = launches
    return Path(
        bound.kernel.export(
            folder,
            dict(zip(bound.kernel.runtime_names, bound.types, strict=True)),
            arch=bound.arch,
            name=name,
            form=form,
            grid=bound.grid,
            block=bound.threads,
            pdl=bound.pdl,
            shapes=bound.shapes,
            about=_about(traits),
            **bound.constants,
        )
    )


def _of_one_kernel(a: Any, b: Any, c: Any, options: dict[str, Any]) -> tuple[Any, Any]:
    """The configuration that `gemm` chooses, and the traits of the product.

    K is undivided where its parts would need a second kernel.
    """
    known: dict[str, Any] = {key: options[key] for key in _OF_PLAN if key in options}
    if c is not None:
        known.setdefault("beta", 1)
    known = {key: value for key, value in known.items() if value is not None or key != "beta"}
    chosen: Plan = plan(
        a, b, c, options.get("out"), epilogue_args=tuple(options.get("epilogue_args") or ()), **known
    )
    if chosen.config is None:
        raise tc.ArgumentError("this product takes no kernel: D has no elements, or K is 0")
    for copy in chosen.copies:
        raise tc.ArgumentError(f"this product copies an operand, which takes a second kernel: {copy.why}")
    if chosen.split_operands:
        raise tc.ArgumentError(
            'f32 operands are split in a kernel of their own; precision="tf32", or '
            "config=kernels.HopperConfig(..., k_slabs=1), takes one kernel"
        )
    if chosen.partial_sums is not None:
        return replace(chosen.config, split_k=1), chosen.partial_sums
    if chosen.streamk is not None:
        return replace(chosen.config, streamk_units=0), chosen.traits
    return chosen.config, chosen.traits


def _about(traits: Any) -> str:
    """Text for the header: the product, and the arguments that this kernel does not read."""
    product = "D = epilogue(alpha A B + beta C)" if traits.epilogue else "D = alpha A B + beta C"
    unread = [] if traits.scaled else ["alpha is 1, and the argument is not read."]
    unread += [] if traits.has_c else ["beta is 0: beta and C are not read; pass D as C."]
    return "\n".join([f"{product}, for the shapes below.", *unread])
