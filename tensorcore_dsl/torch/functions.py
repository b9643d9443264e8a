"""The functions of `tensorcore_dsl.kernels` that are operators of PyTorch, for its users."""

from __future__ import annotations

import torch

import tensorcore_dsl as tc
import tensorcore_dsl.kernels as kernels
from tensorcore_dsl.torch import attention_operators, operators
from tensorcore_dsl.torch.packed_operators import packed_gemm

BLOCK = 128


def gemm(
    a: torch.Tensor,
    b: torch.Tensor | kernels.PackedWeights,
    c: torch.Tensor | None = None,
    *,
    alpha: float = 1,
    beta: float = 1,
    out_dtype: torch.dtype | None = None,
    precision: str | None = None,
    accumulate: str | None = None,
    bits: str = "any",
) -> torch.Tensor:
    """alpha A B + beta C, the operator `tensorcore_dsl::gemm`; see `kernels.gemm`.

    a, b: (M, K) and (K, N), or batches of them in a leading axis; one may be a matrix for all.
    c: of a shape that broadcasts to the result. out_dtype: of the result; default: A's, bf16 of
    fp8 and s32 of s8. precision: "f32" or "tf32" of f32 products. accumulate: "f16" of f16
    products, "fast" of fp8 ones. bits: "any" or "batch_invariant".

    The gradients of A and B are products by the same kernels, of the incoming gradient rounded to
    A's type; the gradient of C is the sum over what was broadcast. They have the layout of the
    operand that they belong to. Tensors of fp8 have no gradients: ArgumentError.

    b may be what `kernels.pack` makes of tensors. The operator is then `tensorcore_dsl::packed_gemm`,
    with gradients of A and C; it has no `precision`, `accumulate` and `bits`.
    """
    if isinstance(b, kernels.PackedWeights):
        if (precision, accumulate, bits) != (None, None, "any"):
            raise tc.ArgumentError(
                "b is PackedWeights, whose products have no precision, accumulate and bits"
            )
        weights = b.words, b.scales, b.zeros
        return packed_gemm(a, *weights, c, dtype=str(b.dtype), alpha=alpha, beta=beta, out_dtype=out_dtype)
    return operators.gemm(
        a,
        b,
        c,
        alpha=alpha,
        beta=beta,
        out_dtype=out_dtype,
        precision=precision,
        accumulate=accumulate,
        bits=bits,
    )


def swiglu(x: torch.Tensor, w_gate: torch.Tensor, w_up: torch.Tensor, *, bits: str = "any") -> torch.Tensor:
    """silu(x w_gate) * (x w_up), the operator `tensorcore_dsl::swiglu`; see `kernels.swiglu`.

    x: (M, K); w_gate, w_up: (K, N) with K contiguous, `w.t()` of weights stored as (N, K); all bf16
    or f16. Only x and the weights are kept for the gradients, which compute both products again,
    in f32.
    """
    return operators.swiglu(x, w_gate, w_up, bits=bits)


def grouped_gemm(
    a: torch.Tensor, b: torch.Tensor, offsets: torch.Tensor, *, bits: str = "any"
) -> torch.Tensor:
    """Rows offsets[g] to offsets[g + 1] of A times b[g]: `tensorcore_dsl::grouped_gemm`.

    a: (rows, K) with K contiguous; b: (groups, K, N); both bf16 or f16. offsets: (groups + 1),
    int32, ascending from 0 to rows, on the device of A, where neither this nor the gradients wait
    for them. See `kernels.grouped_gemm`, and `kernels.k_grouped_gemm` for the gradient of B.
    """
    return operators.grouped_gemm(a, b, offsets, bits=bits)


def k_grouped_gemm(
    a: torch.Tensor, b: torch.Tensor, offsets: torch.Tensor, *, bits: str = "any"
) -> torch.Tensor:
    """Columns offsets[g] to offsets[g + 1] of A times the same rows of B: (groups, M, N).

    a: (M, K) with M contiguous; b: (K, N) with N contiguous. The operator
    `tensorcore_dsl::k_grouped_gemm`; see `kernels.k_grouped_gemm`.
    """
    return operators.k_grouped_gemm(a, b, offsets, bits=bits)


def scaled_gemm(
    a: torch.Tensor,
    b: torch.Tensor,
    a_scales: torch.Tensor | None = None,
    b_scales: torch.Tensor | None = None,
    *,
    out_dtype: torch.dtype | None = None,
    bits: str = "any",
) -> torch.Tensor:
    """The product of fp8 matrices with scales of blocks, `tensorcore_dsl::scaled_gemm`.

    a: (M, K), b: (K, N) with K contiguous in both. Either both are fp8 and come with their scales,
    f32: a_scales (M, ceil(K / 128)), b_scales (ceil(K / 128), ceil(N / 128)); see
    `kernels.scaled_gemm`. Or neither has scales: then bf16, f16 or f32 operands are quantised to
    e4m3 here (`quantize`), and their gradients are those of the product without rounding (the
    straight-through estimate), products of the operands as they were given. out_dtype: default
    bf16 of fp8 operands, else the type of the operands, f32 or 16 bits.
    """
    if (a_scales is None) != (b_scales is None):
        name = "a_scales" if b_scales is None else "b_scales"
        raise tc.ArgumentError(f"only {name} are given; both operands have scales, or neither")
    if a_scales is not None:
        return operators.scaled_gemm(a, b, a_scales, b_scales, out_dtype=out_dtype, bits=bits)
    if a.dtype != b.dtype:
        raise tc.ArgumentError(f"a holds {a.dtype} but b holds {b.dtype}; convert one")
    with torch.no_grad():
        a_fp8, a_scales = quantize(a, 1)
        b_fp8, b_scales = quantize(b.mT, BLOCK)
    return operators.scaled_gemm(
        a_fp8, b_fp8.mT, a_scales, b_scales.mT, a, b, out_dtype=out_dtype or a.dtype, bits=bits
    )


def attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    *,
    causal: bool = False,
    window: tuple[int | None, int | None] | None = None,
    scale: float | None = None,
    softcap: float | None = None,
    cu_seqlens: torch.Tensor | tuple[torch.Tensor, torch.Tensor] | None = None,
    return_lse: bool = False,
) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
    """softmax(scale q kᵀ) v, the operator `tensorcore_dsl::attention`; see `kernels.attention`.

    q: (batch, heads, queries, D); k, v: (batch, key heads, keys, D), all bf16 or f16. causal,
    window, scale, softcap: as for `kernels.attention`. cu_seqlens: int32, on the device of q: the
    starts of packed sequences, or a tuple for queries and for keys. return_lse: returns (out, lse).

    out has the order of q's axes in memory, and each gradient that of its operand. Gradients are by
    `kernels.attention_backward`, also through lse. They have no derivatives: ArgumentError.
    """
    if window is not None and len(window) != 2:
        raise tc.ArgumentError(f"window is {window!r}; it must be (left, right), each a number or None")
    left, right = window or (None, None)
    starts = cu_seqlens if isinstance(cu_seqlens, tuple) else (cu_seqlens, cu_seqlens)
    out, lse = attention_operators.attention(
        q, k, v, *starts, causal=causal, left=left, right=right, scale=scale, softcap=softcap
    )
    return (out, lse) if return_lse else out


def scaled_dot_product_attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_mask: torch.Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> torch.Tensor:
    """`attention` with the arguments of torch.nn.functional.scaled_dot_product_attention.

    query, key, value: (batch, heads, length, D), bf16 or f16. is_causal: query i sees the keys up to
    i, also where there are more keys than queries. Raises ArgumentError with a mask, with dropout,
    for other than four axes, and for fewer heads of key and value without enable_gqa.
    """
    if attn_mask is not None or dropout_p:
        unsupported = "attn_mask" if attn_mask is not None else f"dropout_p={dropout_p}"
        raise tc.ArgumentError(
            f"{unsupported} is given; masks are is_causal, or `attention` with window=, and "
            f"there is no dropout"
        )
    operators._rank((4,), query, key, value)
    heads, key_heads = query.shape[1], key.shape[1]
    if heads != key_heads and not enable_gqa:
        raise tc.ArgumentError(f"{heads} heads share {key_heads} heads of key: pass enable_gqa=True")
    if not is_causal:
        return attention(query, key, value, scale=scale)  # type: ignore[return-value]
    queries = query.shape[2]  # keys after them are not seen, and `attention` aligns the ends
    key, value = key[:, :, :queries], value[:, :, :queries]
    window = None, queries - key.shape[2]
    return attention(query, key, value, window=window, scale=scale)  # type: ignore[return-value]


def quantize(
    x: torch.Tensor, rows: int = 1, dtype: torch.dtype = torch.float8_e4m3fn
) -> tuple[torch.Tensor, torch.Tensor]:
    """x in fp8, and the scales of its blocks of `rows` rows and 128 columns.

    x: (M, K), floats. Returns (M, K) of `dtype` and (ceil(M / rows), ceil(K / 128)) f32: each
    element times its block's scale is x, rounded. The largest element of a block becomes the
    largest number of `dtype`.
    """
    if x.ndim != 2 or not x.is_floating_point():
        raise tc.ArgumentError(f"x holds {x.dtype} of shape {tuple(x.shape)}; a float matrix is needed")
    M, K = x.shape
    high, wide = -(-M // rows), -(-K // BLOCK)
    padded = torch.nn.functional.pad(x.float(), (0, wide * BLOCK - K, 0, high * rows - M))
    blocks = padded.view(high, rows, wide, BLOCK)
    most = torch.finfo(dtype).max
    scales = blocks.abs().amax(dim=(1, 3)).clamp(min=1e-30) / most
    scaled = (blocks / scales[:, None, :, None]).clamp(-most, most)
    return scaled.view(high * rows, wide * BLOCK)[:M, :K].to(dtype).contiguous(), scales
