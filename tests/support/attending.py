"""One attention that tests of the runtime share, so that few kernels are built."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

import attnfuse as af

LONGEST = 96
"""How many positions `tensors` has documents for."""


@af.variant
def biased(
    q: af.Query, k: af.Key, v: af.Value, table: af.Captured, doc: af.Captured
) -> tuple[af.Traced, af.Traced]:
    """A relative bias, and documents that see themselves and earlier ones; with log-sum-exp."""
    s = af.bias(af.scores(q, k), table[af.h, af.q - af.k + 8])
    s = af.mask(s, doc[af.b, af.k] <= doc[af.b, af.q])
    return af.attend(af.softmax(s), v), af.lse(s)


def plain(q: af.Query, k: af.Key, v: af.Value) -> af.Traced:
    """No kernel of it is meant to be built: tests make variants of it that only they have."""
    return af.attend(af.softmax(af.scores(q, k)), v)


def capped(cap: float) -> af.Variant:
    """A variant that nothing has compiled yet, where no other test takes this number."""

    @af.variant
    def fresh(q: af.Query, k: af.Key, v: af.Value) -> af.Traced:
        return af.attend(af.softmax(af.softcap(af.scores(q, k), cap)), v)

    return fresh


def tensors(
    batch: int = 2,
    q_len: int = 9,
    kv_len: int | None = None,
    dtype: torch.dtype = torch.float32,
    head_dim: int = 16,
) -> list[Tensor]:
    """Random arguments for `biased`: query, key, value, table and documents."""
    generator = torch.Generator().manual_seed(0)
    kv_len = q_len if kv_len is None else kv_len
    shapes = ((4, q_len, head_dim), (2, kv_len, head_dim), (2, kv_len, head_dim))
    qkv = [torch.randn(batch, *shape, generator=generator).to(dtype) for shape in shapes]
    table = torch.randn(4, 17, generator=generator)
    return [*qkv, table, torch.arange(LONGEST).expand(batch, LONGEST) // 6]


def attended(*given: Tensor) -> tuple[Tensor, Tensor]:
    """The outputs of `biased`, of which there are two."""
    out, lse = biased(*given)
    return out, lse


def by_reference(*given: Tensor) -> tuple[Tensor, Tensor]:
    """The same by the reference backend, rounded as kernels round."""
    out, lse = biased.reference(*given, exact=False)
    return out, lse


def leaves(given: Sequence[Tensor]) -> list[Tensor]:
    """Tensors of the same values and strides; those of floats require gradients."""
    return [tensor.detach().requires_grad_(tensor.is_floating_point()) for tensor in given]


def weighed(out: Tensor, lse: Tensor) -> Tensor:
    """A number that depends on every entry of the outputs, on each in another way."""
    weights = torch.linspace(-1, 1, out.numel(), dtype=out.dtype, device=out.device)
    return (out * weights.view(out.shape)).sum() + lse.cos().sum()


def gradients(
    function: Callable[..., tuple[Tensor, Tensor]],
    given: Sequence[Tensor],
    loss: Callable[[Tensor, Tensor], Tensor] = weighed,
) -> list[Tensor]:
    """The gradients of all arguments of floats."""
    own = leaves(given)
    loss(*function(*own)).backward()  # type: ignore[no-untyped-call]
    wanted = [tensor for tensor in own if tensor.requires_grad]
    return [torch.zeros_like(each) if each.grad is None else each.grad for each in wanted]


def assert_all_close(got: Sequence[Tensor], wanted: Sequence[Tensor], atol: float = 1e-5) -> None:
    """Each tensor is within rounding of its counterpart, and of its type."""
    for one, other in zip(got, wanted, strict=True):
        torch.testing.assert_close(one, other, atol=atol, rtol=1e-5)
