"""Passes that copy: the same bits from keys that lie in memory in any way, features contiguous."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import attnfuse as af
from attnfuse.plan import Pass


@af.variant
def read(q: af.Query, k: af.Key, v: af.Value, copy: bool) -> tuple[af.Traced, af.Traced]:
    """Causal; keys and values as they lie in memory, or copied before."""
    keys, values = (af.stored(k), af.stored(v)) if copy else (k, v)
    s = af.mask(af.scores(q, keys), af.causal())
    return af.attend(af.softmax(s), values), af.lse(s)


def lying(tensor: Tensor, how: str) -> Tensor:
    """The same numbers, elsewhere in memory."""
    if how == "transposed":  # (batch, head, feature, length)
        return tensor.mT.contiguous().mT
    if how == "strided":
        return torch.stack((tensor, torch.full_like(tensor, float("nan"))), -1)[..., 0]
    wide = torch.nn.functional.pad(tensor, (1, 2), value=float("nan"))
    return wide[..., 1:-2]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
@pytest.mark.parametrize("how", ["transposed", "strided", "unaligned"])
def test_copies_have_contiguous_features_and_equal_bits(how: str, dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(0)
    for q_len, kv_len in ((70, 130), (5, 1), (3, 0)):
        shapes = ((2, 4, q_len, 40), (2, 2, kv_len, 40), (2, 2, kv_len, 24))
        q, k, v = (torch.randn(shape, generator=generator).to(dtype) for shape in shapes)
        direct, copied = (read(q, lying(k, how), lying(v, how), copy) for copy in (False, True))
        assert isinstance(direct, tuple) and isinstance(copied, tuple)
        assert all(torch.equal(one, other) for one, other in zip(direct, copied, strict=True))
        plain = read(q, k, v, False)
        assert isinstance(plain, tuple)
        torch.testing.assert_close(copied[0], plain[0])


@pytest.mark.parametrize("device", ["cpu", "h200", "rtx3090", "mi300x"])
def test_a_copy_is_a_pass_without_steps(device: str) -> None:
    q = torch.empty(1, 4, 8, 64, dtype=torch.float16, device="meta")
    k = torch.empty(1, 2, 64, 8, dtype=torch.float16, device="meta").mT
    *passes, last = read.compile(q, k, k, True, device=device).launches
    assert [launch.plan.name for launch in passes] == ["read_stored0", "read_stored1"]
    for launch, role in zip(passes, "kv", strict=True):
        plan = launch.plan
        assert isinstance(plan, Pass) and plan.load.steps == ()
        assert not plan.parameter(role).pattern.contiguous
        assert plan.results[0].pattern.contiguous and plan.results[0].pattern.aligned
        assert f"{plan.name}_kernel" in launch.lowered.text
    assert all(last.plan.parameter(f"stored{n}").pattern.contiguous for n in (0, 1))
