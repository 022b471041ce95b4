"""Gradients: right, laid out as promised, and refused where they can't be had."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from attending import (
    assert_all_close,
    attended,
    biased,
    by_reference,
    capped,
    gradients,
    leaves,
    plain,
    tensors,
    weighed,
)
from torch import Tensor

import attnfuse as af
from attnfuse.errors import NoBackward, NoSecondDerivative
from attnfuse.runtime import gradients as gradients_module
from attnfuse.runtime import ops
from attnfuse.runtime.definitions import define
from attnfuse.runtime.stats import reset_stats, stats

pytestmark = pytest.mark.filterwarnings("ignore:.*its kernels have no backward pass:UserWarning")


Loss = Callable[[Tensor, Tensor], Tensor]


def laid_out(given: list[Tensor]) -> list[Tensor]:
    """Transposed queries, keys and values with gaps between rows."""
    q, k, v, table, doc = given
    q = q.transpose(1, 2).contiguous().transpose(1, 2)
    k, v = (torch.nn.functional.pad(tensor, (0, 4))[..., :-4] for tensor in (k, v))
    return [q, k, v, table, doc]


def only_out(out: Tensor, lse: Tensor) -> Tensor:
    return out.sum()  # its gradient is an expanded 1


def only_lse(out: Tensor, lse: Tensor) -> Tensor:
    return lse.sin().sum()


def strided(out: Tensor, lse: Tensor) -> Tensor:
    weights = torch.linspace(-1, 1, out.numel()).view(out.transpose(1, 3).shape)
    return (out.transpose(1, 3) * weights).sum() + lse[:, ::2].sum()


@pytest.mark.parametrize("loss", [weighed, only_out, only_lse, strided])
@pytest.mark.parametrize("lengths", [(9, 9), (5, 11)])
def test_gradients_are_those_of_the_reference(loss: Loss, lengths: tuple[int, int]) -> None:
    for given in (tensors(2, *lengths), laid_out(tensors(2, *lengths))):
        found = gradients(attended, given, loss)
        assert_all_close(found, gradients(by_reference, given, loss))
        assert sum(float(each.abs().sum()) for each in found) > 1


@pytest.mark.parametrize("sizes", [(0, 9, 9), (2, 0, 9), (2, 9, 0)])
def test_gradients_of_nothing_are_zeros(sizes: tuple[int, int, int]) -> None:
    found = gradients(attended, tensors(*sizes), only_out)
    assert all(not each.any() for each in found)


def test_one_tensor_as_query_key_and_value_gets_the_sum() -> None:
    own, other = torch.randn(2, 2, 9, 16, requires_grad=True), capped(101.0)
    out, wanted = other(own, own, own), other.reference(own, own, own, exact=False)
    assert isinstance(out, Tensor) and isinstance(wanted, Tensor)
    (got,) = torch.autograd.grad(out.square().sum(), own)
    assert_all_close([got], torch.autograd.grad(wanted.square().sum(), own))


def test_what_outputs_do_not_depend_on_gets_zeros() -> None:
    """Neither what is only compared, nor what isn't used at all."""

    @af.variant
    def indifferent(
        q: af.Query, k: af.Key, v: af.Value, limit: af.Captured, unused: af.Captured
    ) -> af.Traced:
        s = af.mask(af.scores(q, k), limit[af.k] > 0)
        return af.attend(af.softmax(s), v)

    limit, unused = torch.ones(9, requires_grad=True), torch.ones(3, requires_grad=True)
    out = indifferent(*tensors()[:3], limit, unused)
    assert isinstance(out, Tensor)
    found = torch.autograd.grad(out.sum(), (limit, unused))
    assert [tuple(each.shape) for each in found] == [(9,), (3,)]
    assert not any(each.any() for each in found)


def test_gradients_lie_in_memory_like_the_inputs_and_like_the_fakes() -> None:
    key = define(biased.trace(*tensors()))
    for given in (tensors(), laid_out(tensors()), tensors(1, 1, 1), tensors(2, 0, 3)):
        wanted = [True, False, True, True, False]
        of_outputs = [torch.randn_like(output) for output in attended(*given)]
        found = ops.attention_bwd(given, of_outputs, wanted, key)
        meta = [[tensor.to("meta") for tensor in each] for each in (given, of_outputs)]
        fakes = ops.attention_bwd(meta[0], meta[1], wanted, key)
        places = [(each.shape, each.stride(), each.dtype) for each in found]
        assert places == [(each.shape, each.stride(), each.dtype) for each in fakes]
        assert found[0].stride() == given[0].stride()
        assert all(each.stride() == torch.empty(each.shape).stride() for each in found[1:])


def test_gradients_reach_the_leaves_of_expanded_tensors() -> None:
    q, k, v, table, doc = tensors()
    own = [k[:, :1].clone().requires_grad_(), table[:1].clone().requires_grad_()]

    def loss(function: Callable[..., tuple[Tensor, Tensor]]) -> Tensor:
        given = (q, own[0].expand(-1, 2, -1, -1), v, own[1].expand(4, -1), doc)
        return weighed(*function(*given))

    found = torch.autograd.grad(loss(attended), own)
    assert_all_close(found, torch.autograd.grad(loss(by_reference), own))


def test_the_reference_passes_gradcheck() -> None:
    q, k, v, table, doc = tensors(1, 3, 4, torch.float64, head_dim=2)
    own = leaves([q, k, v, table.double()])

    def function(*given: Tensor) -> tuple[Tensor, Tensor]:
        return by_reference(*given, doc)

    assert torch.autograd.gradcheck(function, own)


def test_the_operator_s_gradients_pass_for_the_reference_s_in_float64() -> None:
    given = tensors(1, 3, 4, torch.float64)
    key = define(biased.trace(*given))
    own = leaves(given)
    outputs = by_reference(*own)
    of_outputs = [torch.randn_like(output) for output in outputs]
    found = ops.attention_bwd(given, of_outputs, [True, True, True, True, False], key)
    wanted = torch.autograd.grad(outputs, own[:4], of_outputs)
    assert_all_close(found, wanted, atol=1e-12)


def test_autocast_does_not_reach_into_the_backward_pass() -> None:
    own = leaves(tensors())
    loss = weighed(*attended(*own))
    wanted = torch.autograd.grad(loss, own[:4], retain_graph=True)
    with torch.autocast("cpu", torch.bfloat16):
        assert_all_close(torch.autograd.grad(loss, own[:4]), wanted, atol=0)


def test_autocast_does_not_reach_into_the_reference() -> None:
    wanted = by_reference(*tensors())
    with torch.autocast("cpu", torch.bfloat16):
        assert_all_close(by_reference(*tensors()), wanted, atol=0)


# -- refusals ------------------------------------------------------------------------------


def test_the_setting_refuses_before_anything_is_built(tmp_path: Path) -> None:
    variant, given = capped(102.0), leaves(tensors()[:3])
    reset_stats()
    problem = r"fresh: q, k, v requires a gradient, and ATTNFUSE_BACKWARD is raise; set it to ref"
    with af.use(backward="raise", cache_dir=tmp_path):
        with pytest.raises(NoBackward, match=problem):
            variant(*given)
        assert (stats().compilations, stats().builds, stats().calls) == (0, 0, 0)
        with torch.no_grad():
            attended(*leaves(tensors()))


def test_only_what_requires_a_gradient_is_named() -> None:
    given = tensors()
    given[3].requires_grad_()
    with af.use(backward="raise"), pytest.raises(NoBackward, match="biased: table requires"):
        biased(*given)


def test_too_many_scores_are_refused_with_the_numbers() -> None:
    given = leaves(tensors(2, 9, 11))
    with af.use(reference_limit=98):
        with pytest.raises(
            NoBackward, match=r"hold 99 scores a head, above the limit of 98; raise"
        ):
            biased(*given)
        attended(*(tensor.detach() for tensor in given))
    for enough in (99, 0):
        with af.use(reference_limit=enough):
            weighed(*attended(*given)).backward()  # type: ignore[no-untyped-call]


def test_gradients_of_gradients_are_refused() -> None:
    own = leaves(tensors())
    (found,) = torch.autograd.grad(weighed(*attended(*own)), own[:1], create_graph=True)
    assert found.requires_grad
    with pytest.raises(NoSecondDerivative, match=r"biased: its gradients can't be differentiated"):
        torch.autograd.grad(found.sum(), own[1])


def test_the_warning_comes_once_for_each_variant() -> None:
    gradients_module._warn_once.cache_clear()  # pyright: ignore[reportPrivateUsage]
    given = [torch.empty(1, 1, 4, 8, device="meta", requires_grad=True)] * 3
    for name in ("one", "other"):
        own = af.variant(plain)
        own.name = name
        with pytest.warns(UserWarning, match=rf"{name}: its kernels have no backward pass") as said:
            own(*given)
        assert said[0].filename == __file__
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            own(*given)
            own(*(tensor[:, :, :2] for tensor in given))
