"""The operators as PyTorch sees them: checked, faked, traced, transformed, and called at once."""

# What transforms functions has no types in PyTorch.
# pyright: reportUnknownMemberType=false, reportUnknownLambdaType=false
# pyright: reportUnknownArgumentType=false, reportUnknownVariableType=false

from __future__ import annotations

import copy
import inspect
import pickle
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier
from typing import Any, Literal

import pytest
import torch
from attending import (
    assert_all_close,
    attended,
    biased,
    by_reference,
    capped,
    leaves,
    plain,
    tensors,
    weighed,
)
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils._python_dispatch import TorchDispatchMode

import attnfuse as af
from attnfuse.errors import NoBackward, NoSecondDerivative, NoVmap
from attnfuse.runtime import ops
from attnfuse.runtime.definitions import define
from attnfuse.runtime.stats import reset_stats, stats

pytestmark = pytest.mark.filterwarnings("ignore:.*its kernels have no backward pass:UserWarning")

PASSED = {"SUCCESS"}

check: Callable[..., dict[str, str]] = torch.library.opcheck


def key_of_biased(dtype: torch.dtype = torch.float32) -> str:
    return define(biased.trace(*tensors(dtype=dtype)))


def laid_out(how: str) -> list[Tensor]:
    """Arguments of `biased` that lie in memory in some way."""
    q, k, v, table, doc = tensors()
    match how:
        case "transposed":
            q, k, v = (each.transpose(1, 2).contiguous().transpose(1, 2) for each in (q, k, v))
        case "sliced":
            q, k, v = (torch.nn.functional.pad(each, (0, 4, 1, 2)) for each in (q, k, v))
            q, k, v = (each[:, :, 1:-2, :-4] for each in (q, k, v))
        case "expanded":
            q, k, v, table = q[:1].expand_as(q), k[:, :1].expand_as(k), v, table[:1].expand(4, -1)
        case "one tensor":
            v = k
        case _:
            pass
    return [q, k, v, table, doc]


@pytest.mark.parametrize("how", ["contiguous", "transposed", "sliced", "expanded", "one tensor"])
@pytest.mark.parametrize("wanted", [(), (0, 1, 2, 3), (1, 3)], ids=str)
def test_pytorch_s_own_checks_pass(how: str, wanted: tuple[int, ...]) -> None:
    inputs = laid_out(how)
    for place in wanted:
        inputs[place] = inputs[place].detach().requires_grad_()
    own = define(biased.trace(*inputs))
    assert set(check(torch.ops.attnfuse.attention_fwd.default, (inputs, own)).values()) == PASSED


@pytest.mark.parametrize("how", ["contiguous", "sliced", "expanded"])
def test_pytorch_s_own_checks_of_the_gradients_pass(how: str) -> None:
    inputs = laid_out(how)
    of_outputs = [torch.randn(2, 4, 16, 9).transpose(2, 3), torch.ones(()).expand(2, 4, 9)]
    arguments = (inputs, of_outputs, [True, False, True, True, False], key_of_biased())
    assert set(check(torch.ops.attnfuse.attention_bwd.default, arguments).values()) == PASSED


@st.composite
def placed(draw: st.DrawFn, shape: tuple[int, int, int, int]) -> Tensor:
    """A tensor whose rows are aligned, the dimensions before them in any order, with gaps."""
    order = draw(st.permutations(range(3)))
    gaps = draw(st.tuples(*[st.integers(0, 2)] * 3))
    expanded = draw(st.sampled_from((None, None, 0, 1)))
    sizes = [shape[place] + gaps[place] for place in order]
    memory = torch.randn(*sizes, 16).permute(*(order.index(place) for place in range(3)), 3)
    cut = memory[: shape[0], : shape[1], : shape[2]]
    if expanded is not None and shape[expanded] > 0:
        cut = cut.narrow(expanded, 0, 1).expand(shape)
    return cut


@st.composite
def arguments(draw: st.DrawFn) -> list[Tensor]:
    batch = draw(st.integers(0, 2))
    q_len, kv_len = (draw(st.sampled_from((0, 1, 2, 9))) for _ in range(2))
    q = draw(placed((batch, 4, q_len, 16)))
    k, v = (draw(placed((batch, 2, kv_len, 16))) for _ in range(2))
    return [q, k, v, *tensors(batch)[3:]]


@settings(max_examples=150)
@given(arguments())
def test_outputs_lie_in_memory_as_the_fakes_say(inputs: list[Tensor]) -> None:
    found = ops.attention_fwd(inputs, key_of_biased())
    with FakeTensorMode() as mode:
        same: list[Any] = [mode.from_tensor(tensor) for tensor in inputs]
        fakes = ops.attention_fwd(same, key_of_biased())
    for one, other in zip(found, fakes, strict=True):
        assert (one.shape, one.stride(), one.dtype) == (other.shape, other.stride(), other.dtype)


def test_fakes_touch_no_kernel() -> None:
    own, meta = af.variant(plain), [tensor.to("meta") for tensor in tensors()[:3]]
    reset_stats()
    with FakeTensorMode() as mode:
        fake = own(*(mode.from_tensor(tensor) for tensor in tensors()[:3]))
    for out in (fake, own(*meta), own(*leaves(meta))):
        assert isinstance(out, Tensor) and out.shape == meta[0].shape
    assert (stats().calls, stats().compilations, stats().builds) == (0, 0, 0)


# -- tracing, modes, subclasses ------------------------------------------------------------


@pytest.mark.parametrize("mode", ["real", "fake", "symbolic"])
def test_a_call_is_one_node_of_a_graph(mode: Literal["real", "fake", "symbolic"]) -> None:
    graph = make_fx(attended, tracing_mode=mode)(*tensors()).graph
    targets = [node.target for node in graph.nodes if node.op == "call_function"]
    assert [target for target in targets if "getitem" not in str(target)] == [ops.attention_fwd]


def test_a_symbolic_constant_becomes_a_number() -> None:
    @af.variant
    def near(q: af.Query, k: af.Key, v: af.Value, width: int) -> af.Traced:
        return af.attend(af.softmax(af.mask(af.scores(q, k), af.window(before=width))), v)

    def function(q: Tensor, k: Tensor, v: Tensor) -> Any:
        return near(q, k, v, q.shape[2] - 5)

    meta = [tensor.to("meta") for tensor in tensors()[:3]]
    graph = make_fx(function, tracing_mode="symbolic")(*meta).graph
    (key,) = (node.args[1] for node in graph.nodes if node.target is ops.attention_fwd)
    assert key == define(near.trace(*meta, 4))


class Seen(TorchDispatchMode):
    """Notes each operator that is called."""

    def __init__(self) -> None:
        super().__init__()
        self.operators: list[object] = []

    def __torch_dispatch__(
        self, func: Any, types: object, args: Any = (), kwargs: Any = None
    ) -> Any:
        self.operators.append(func)
        return func(*args, **(kwargs or {}))


def test_a_dispatch_mode_sees_the_operator() -> None:
    with Seen() as seen:
        attended(*tensors())
    assert ops.attention_fwd in seen.operators


class Noting(Tensor):
    """A subclass with its own way of calling functions, under autograd as any."""

    called: list[object] = []  # noqa: RUF012 - shared on purpose

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        cls.called.append(func)
        return super().__torch_function__(func, types, args, kwargs or {})


class Trivial(Tensor):
    """A subclass that does nothing of its own."""


@pytest.mark.parametrize("kind", [Noting, Trivial])
def test_subclasses_do_as_they_do_with_any_operator(kind: type[Tensor]) -> None:
    inputs = tensors()
    wanted = attended(*inputs)
    own = inputs[0].as_subclass(kind).requires_grad_()
    got = attended(own, *inputs[1:])
    assert all(type(each) is kind for each in got)
    assert_all_close([each.detach().as_subclass(Tensor) for each in got], wanted, atol=0)
    weighed(*got).backward()  # type: ignore[no-untyped-call]
    assert own.grad is not None and own.grad.any()
    assert kind is Trivial or ops.attention_fwd in Noting.called


def test_parameters_and_buffers() -> None:
    inputs = tensors()
    wanted = attended(*inputs)
    table = torch.nn.Parameter(inputs[3])
    got = attended(*inputs[:3], table, torch.nn.Buffer(inputs[4]))
    assert_all_close(got, wanted, atol=0)
    weighed(*got).backward()  # type: ignore[no-untyped-call]
    assert table.grad is not None and table.grad.any()


def test_nothing_is_recorded_where_gradients_are_off() -> None:
    own = leaves(tensors())
    with af.use(backward="raise"):
        for off in (torch.no_grad, torch.inference_mode):
            with off():
                out, lse = attended(*own)
            assert not out.requires_grad and not lse.requires_grad
            assert out.is_inference() is (off is torch.inference_mode)
            assert_all_close([out], [attended(*tensors())[0]], atol=0)


# -- torch.func ----------------------------------------------------------------------------


def loss_by(
    function: Callable[..., tuple[Tensor, Tensor]],
) -> Callable[[Tensor], Tensor]:
    return lambda q: weighed(*function(q, *tensors()[1:]))


def test_torch_func_grad_works() -> None:
    q = tensors()[0]
    own, reference = loss_by(attended), loss_by(by_reference)
    assert_all_close([torch.func.grad(own)(q)], [torch.func.grad(reference)(q)])

    def twice(loss: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
        """An outer gradient, through an inner one that needs no second derivative of attention."""
        return lambda q: torch.func.grad(lambda p: (p * loss(q)).sum())(q).sum()

    assert_all_close([torch.func.grad(twice(own))(q)], [torch.func.grad(twice(reference))(q)], 1e-3)


def test_the_operator_itself_works_under_torch_func() -> None:
    """As an exported graph calls it."""

    def loss(q: Tensor) -> Tensor:
        out, lse = ops.attention_fwd([q, *tensors()[1:]], key_of_biased())
        return weighed(out, lse)

    q = tensors()[0]
    assert_all_close([torch.func.grad(loss)(q)], [torch.func.grad(loss_by(by_reference))(q)])


def test_what_torch_func_can_not_have_is_refused() -> None:
    (q, *others), loss = tensors(), loss_by(attended)
    with pytest.raises(NoSecondDerivative, match="biased: "):
        torch.func.grad(lambda p: torch.func.grad(loss)(p).sum())(q)
    with pytest.raises(NoVmap, match=r"give the mapped dimension as a batch dimension"):
        torch.vmap(lambda p: attended(p, *others))(q.expand(3, *q.shape))
    with pytest.raises(NoVmap, match=r"give the mapped dimension as a batch dimension"):
        torch.func.jacrev(lambda p: attended(p, *others)[1])(q)
    problem = "biased: q requires a gradient, and its kernels have no forward-mode derivative"
    with pytest.raises(NoBackward, match=problem):
        torch.func.jvp(loss, (q,), (q,))


def test_forward_mode_is_refused_and_not_silently_zero() -> None:
    forward_ad = torch.autograd.forward_ad
    with forward_ad.dual_level():
        dual = forward_ad.make_dual(tensors()[3], torch.ones(4, 17))
        with pytest.raises(NoBackward, match="biased: table requires"):
            attended(*tensors()[:3], dual, tensors()[4])
        attended(*tensors())


# -- autocast ------------------------------------------------------------------------------


@pytest.fixture
def keys(monkeypatch: pytest.MonkeyPatch) -> list[tuple[list[Tensor], str]]:
    """What the operator is called with, by variants that are given meta tensors."""
    called: list[tuple[list[Tensor], str]] = []
    attend = ops.attend

    def note(inputs: list[Tensor], key: str) -> list[Tensor]:
        called.append((inputs, key))
        return attend(inputs, key)

    monkeypatch.setattr(ops, "attend", note)
    return called


FLOATS = (torch.float32, torch.float16, torch.bfloat16)


@pytest.mark.parametrize("dtypes", [(one, other) for one in FLOATS for other in FLOATS], ids=str)
def test_autocast_casts_as_for_pytorch_s_own_attention(
    dtypes: tuple[torch.dtype, torch.dtype], keys: list[tuple[list[Tensor], str]]
) -> None:
    q, k, v, table, doc = tensors()
    q, k, v = q.to(dtypes[0]), k.to(dtypes[0]), v.to(dtypes[1])
    with torch.autocast("cpu", torch.bfloat16):
        wide = torch.nn.functional.scaled_dot_product_attention(q, q, q.to(dtypes[1]))
        out, lse = attended(q, k, v, table, doc)
    assert (out.dtype, lse.dtype) == (wide.dtype, torch.float32) and out.dtype is torch.bfloat16
    ((inputs, _),) = keys
    assert [each.dtype for each in inputs[:3]] == [torch.bfloat16] * 3
    assert inputs[3] is table and inputs[4] is doc
    assert_all_close([out], [attended(*inputs)[0]], atol=0)


def test_autocast_leaves_float64_alone(keys: list[tuple[list[Tensor], str]]) -> None:
    double = [tensor.to("meta", torch.float64) for tensor in tensors()[:3]]
    q = torch.randn(1, 1, 2, 8, dtype=torch.float64)
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.nn.functional.scaled_dot_product_attention(q, q, q).dtype is torch.float64
        out = af.variant(plain)(*double)
    assert isinstance(out, Tensor) and out.dtype is torch.float64


def test_gradients_arrive_in_the_type_from_before_autocast() -> None:
    own = leaves(tensors())
    with torch.autocast("cpu", torch.bfloat16):
        loss = weighed(*attended(*own))
    loss.backward()  # type: ignore[no-untyped-call]
    low = leaves([each.bfloat16() for each in own[:3]])
    weighed(*attended(*low, *own[3:])).backward()  # type: ignore[no-untyped-call]
    for one, other in zip(own[:3], low, strict=False):
        assert one.grad is not None and other.grad is not None and one.grad.any()
        assert one.grad.dtype is torch.float32
        assert_all_close([one.grad], [other.grad.float()], atol=0)


# -- what a call remembers -----------------------------------------------------------------


def picky(
    q: af.Query, k: af.Key, v: af.Value, table: af.Captured, n: object = None, m: object = 0
) -> af.Traced:
    """Its program depends on everything that a program may depend on."""
    s = af.scores(q, k) + table[af.h % 2, 0]
    for constant in (n, m):
        match constant:
            case None:
                continue
            case bool():
                s = s * 3.0 if constant else s * 5.0
            case str():
                s = s + float(len(constant))
            case int() | float():
                s = s + constant if isinstance(constant, int) else af.tanh(s) * constant
            case _:
                raise AssertionError(constant)
    return af.attend(af.softmax(s), v)


CONSTANTS = (None, True, False, 1, 0, 1.0, 0.0, -0.0, 2.5, float("nan"), "", "1", "True")


@st.composite
def calls(draw: st.DrawFn) -> tuple[list[object], dict[str, object]]:
    """Arguments of `picky` on the meta device, by position and by name in any order."""
    dtype = draw(st.sampled_from((torch.float16, torch.float32)))
    heads, key_heads = draw(st.sampled_from(((2, 2), (2, 1), (4, 2))))
    head_dim, rank = draw(st.sampled_from((8, 16))), draw(st.sampled_from((1, 1, 2)))
    q, k, v = (
        torch.empty(*(2,) * rank, number, 3, head_dim, dtype=dtype, device="meta")
        for number in (heads, key_heads, key_heads)
    )
    k = q if heads == key_heads and draw(st.booleans()) else k
    table = torch.empty(2, draw(st.sampled_from((1, 4))), device="meta")
    arguments: dict[str, object] = {"q": q, "k": k, "v": k if draw(st.booleans()) else v}
    arguments["table"] = table
    for name in ("n", "m"):
        if draw(st.booleans()):
            arguments[name] = draw(st.sampled_from(CONSTANTS))
    names = list(arguments)
    by_position = draw(st.integers(0, len(names) if "n" in names or "m" not in names else 4))
    by_name = draw(st.permutations(names[by_position:]))
    return (
        [arguments[name] for name in names[:by_position]],
        {name: arguments[name] for name in by_name},
    )


def assert_own_program(own: af.Variant, *args: object, **kwargs: object) -> None:
    """A call reaches the operator with what a variant without a past makes of it."""
    called: list[tuple[list[Tensor], str]] = []

    def attend(inputs: list[Tensor], key: str) -> list[Tensor]:
        called.append((inputs, key))
        return inputs

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ops, "attend", attend)
        own(*args, **kwargs)
    ((inputs, key),) = called
    assert key == define(af.variant(picky).trace(*args, **kwargs))
    bound = inspect.signature(picky).bind(*args, **kwargs).arguments
    wanted = [each for each in bound.values() if isinstance(each, Tensor)]
    assert list(map(id, inputs)) == list(map(id, wanted))


@settings(max_examples=40)
@given(st.lists(calls(), min_size=2, max_size=8))
def test_a_call_never_gets_another_call_s_program(
    sequence: list[tuple[list[object], dict[str, object]]],
) -> None:
    own = af.variant(picky)
    for args, kwargs in (*sequence, *sequence):
        assert_own_program(own, *args, **kwargs)


@pytest.mark.parametrize("constants", [CONSTANTS, CONSTANTS[::-1]], ids=["forth", "back"])
def test_constants_that_python_calls_equal_are_told_apart(constants: tuple[object, ...]) -> None:
    own, q = af.variant(picky), torch.empty(1, 2, 3, 8, device="meta")
    for constant in (*constants, *constants):
        assert_own_program(own, q, q, q, torch.empty(2, 1, device="meta"), constant)


def test_wrong_arguments_are_refused_as_by_any_function() -> None:
    own, inputs = af.variant(plain), tensors()
    for autocast in (False, True):
        with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
            with pytest.raises(TypeError, match="missing a required argument: 'v'"):
                own(*inputs[:2])
            with pytest.raises(TypeError, match="too many positional arguments"):
                own(*inputs[:4])
            with pytest.raises(TypeError, match="unexpected keyword argument 'table'"):
                own(*inputs[:3], table=inputs[3])
            with pytest.raises(TypeError, match="multiple values for argument 'q'"):
                own(*inputs[:3], q=inputs[0])


def test_a_variant_is_copied_and_pickled_as_a_function_is() -> None:
    assert copy.deepcopy(biased) is biased and copy.copy(biased) is biased
    assert pickle.loads(pickle.dumps(biased)) is biased


# -- threads, and how often something is built ---------------------------------------------


def test_two_threads_that_call_a_new_variant_build_it_once(tmp_path: Path) -> None:
    own, inputs, barrier = capped(103.0), tensors()[:3], Barrier(2)

    def call() -> Tensor:
        barrier.wait()
        with af.use(cache_dir=tmp_path):
            out = own(*inputs)
        assert isinstance(out, Tensor)
        return out

    reset_stats()
    with ThreadPoolExecutor(2) as pool:
        one, other = (each.result() for each in [pool.submit(call) for _ in range(2)])
    assert torch.equal(one, other)
    with af.use(cache_dir=tmp_path):
        choices = own.compile(*inputs).choices
    assert (stats().traces, stats().builds, stats().calls) == (1, 1, 2)
    assert stats().compilations == len(choices)


def test_each_choice_is_built_once_whatever_lengths_come(tmp_path: Path) -> None:
    own = capped(104.0)
    reset_stats()
    with af.use(cache_dir=tmp_path):
        choices = own.compile(*tensors()[:3]).choices
        (guard,) = (choice.guard for choice in choices[:-1])
        assert guard is not None
        within = [length for length in range(1, 51) if length <= guard.most]
        for length in within:
            own(*tensors(1, length)[:3])
        assert stats().builds == 1
        for length in range(1, 51):
            for batch in (0, 1, 2, 3):
                own(*tensors(batch, length)[:3])
    assert (stats().builds, stats().traces) == (len(choices), 1) == (2, 1)
    assert stats().calls == 200 + len(within)
