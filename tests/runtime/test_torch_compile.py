"""`torch.compile`, `torch.export` and checkpointing: what they record, and that it is right."""

# What transforms functions has no types in PyTorch.
# pyright: reportUnknownMemberType=false, reportUnknownLambdaType=false
# pyright: reportUnknownArgumentType=false, reportUnknownVariableType=false

from __future__ import annotations

import copy
import gc
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch._dynamo
from attending import (
    assert_all_close,
    attended,
    biased,
    by_reference,
    gradients,
    leaves,
    tensors,
    weighed,
)
from torch import Tensor
from torch._dynamo.backends.common import aot_autograd
from torch._dynamo.exc import TorchRuntimeError, Unsupported
from torch.export import Dim
from torch.utils.checkpoint import (
    CheckpointPolicy,
    checkpoint,
    create_selective_checkpoint_contexts,
)

import attnfuse as af
from attnfuse.runtime import ops
from attnfuse.runtime.definitions import define
from attnfuse.runtime.stats import reset_stats, stats

pytestmark = pytest.mark.filterwarnings("ignore:.*its kernels have no backward pass:UserWarning")

ROOT = Path(__file__).parents[2]

Function = Callable[..., Any]


@pytest.fixture(autouse=True)
def forget_graphs() -> None:
    """Graphs of one test don't count towards the limits of the next one."""
    torch._dynamo.reset()


def boxed(graph: torch.fx.GraphModule) -> Function:
    """A graph as AOTAutograd calls it: with one list, which is emptied."""
    function: Any = lambda given: graph(*given)  # noqa: E731 - it is given an attribute
    function._boxed_call = True
    return function


class Compiled:
    """A function under `torch.compile`, its graphs counted, with the keys of what they call."""

    def __init__(
        self, function: Function, dynamic: bool | None = True, fullgraph: bool = True
    ) -> None:
        self.graphs = 0
        self.keys: list[str] = []
        backend = aot_autograd(fw_compiler=self._note, bw_compiler=self._leave)
        self._compiled: Function = torch.compile(
            function, fullgraph=fullgraph, dynamic=dynamic, backend=backend
        )

    def _note(self, graph: torch.fx.GraphModule, inputs: object) -> Function:
        self.graphs += 1
        calls = [node for node in graph.graph.nodes if node.target is ops.attention_fwd]
        self.keys += [str(node.args[1]) for node in calls]
        return boxed(graph)

    def _leave(self, graph: torch.fx.GraphModule, inputs: object) -> Function:
        return boxed(graph)

    def __call__(self, *args: object, **kwargs: object) -> Any:
        return self._compiled(*args, **kwargs)


# -- numbers -------------------------------------------------------------------------------


def surrounded(*given: Tensor) -> tuple[Tensor, Tensor]:
    """An attention among other operations."""
    q, *others = given
    out, lse = attended(q * 2.0, *others)
    return out + 1.0, lse * 0.5


@pytest.mark.parametrize("dynamic", [True, False])
def test_compiled_functions_equal_eager_ones(dynamic: bool | None) -> None:
    compiled = Compiled(surrounded, dynamic)
    for batch, q_len, kv_len in ((2, 9, 9), (2, 12, 12), (3, 33, 5)):
        given = tensors(batch, q_len, kv_len)
        for one, other in zip(compiled(*given), surrounded(*given), strict=True):
            assert torch.equal(one, other) and one.stride() == other.stride()
        assert_all_close(gradients(compiled, given), gradients(by_surrounded_reference, given))


def by_surrounded_reference(*given: Tensor) -> tuple[Tensor, Tensor]:
    out, lse = by_reference(given[0] * 2.0, *given[1:])
    return out + 1.0, lse * 0.5


def test_inductor_equals_eager() -> None:
    compiled: Function = torch.compile(surrounded, fullgraph=True, dynamic=True)
    given = tensors()
    assert_all_close(compiled(*given), surrounded(*given))
    assert_all_close(gradients(compiled, given), gradients(by_surrounded_reference, given))


def test_one_dynamic_graph_serves_all_lengths() -> None:
    compiled, trained = Compiled(attended), Compiled(attended)
    for length in (9, 12, 40, 33, 70, 21):
        given = tensors(2, length)
        assert torch.equal(compiled(*given)[0], attended(*given)[0])
        weighed(*trained(*leaves(given))).backward()  # type: ignore[no-untyped-call]
    assert (compiled.graphs, trained.graphs) == (1, 1)
    compiled(*tensors(2, 1))  # a length of 1 is special to torch.compile
    assert compiled.graphs == 2


def test_other_element_types_head_dims_and_layouts_are_compiled_anew() -> None:
    compiled = Compiled(attended)
    q, k, v, table, doc = tensors()
    across = [q.transpose(1, 2).contiguous().transpose(1, 2), k, v[:, :1].expand_as(v), table, doc]
    keys: set[str] = set()
    for given in (tensors(), tensors(dtype=torch.bfloat16), across):
        got, wanted = compiled(*given), attended(*given)
        assert_all_close(got, wanted, atol=0)
        assert [each.stride() for each in got] == [each.stride() for each in wanted]
        keys.add(define(biased.trace(*given)))
    meta = [tensor.to("meta") for tensor in tensors(head_dim=8)]
    assert compiled(*meta)[0].shape == meta[0].shape
    assert set(compiled.keys) == {*keys, define(biased.trace(*meta))} and len(keys) == 2


# -- which program a graph gets ------------------------------------------------------------


def meta(batch: int = 2, length: int = 9) -> list[Tensor]:
    """Queries, keys and values without data: graphs over them need no kernel."""
    return [tensor.to("meta") for tensor in tensors(batch, length)[:3]]


@af.variant
def adjustable(
    q: af.Query,
    k: af.Key,
    v: af.Value,
    width: int,
    cap: float | None = None,
    kind: str = "open",
) -> af.Traced:
    """Constants of every type."""
    s = af.scores(q, k)
    if cap is not None:
        s = af.softcap(s, cap)
    if kind == "causal":
        s = af.mask(s, af.causal())
    return af.attend(af.softmax(af.mask(s, af.window(before=width))), v)


@pytest.mark.parametrize("dynamic", [True, False, None])
def test_each_constant_gets_its_own_program(dynamic: bool | None) -> None:
    def function(q: Tensor, k: Tensor, v: Tensor, *args: Any, **kwargs: Any) -> Any:
        return adjustable(q, k, v, *args, **kwargs)

    compiled = Compiled(function, dynamic)
    calls: tuple[tuple[tuple[Any, ...], dict[str, Any]], ...] = (
        ((3,), {}),
        ((4,), {}),
        ((5,), {"cap": 3.5}),
        ((5,), {"cap": 4.5}),
        ((5, None, "causal"), {}),
        ((0,), {"kind": "causal", "cap": None}),
    )
    wanted: list[str] = []
    for args, kwargs in calls:
        compiled(*meta(), *args, **kwargs)
        wanted.append(define(adjustable.trace(*meta(), *args, **kwargs)))
        assert compiled.keys[-1] == wanted[-1]
    assert len(set(wanted)) == len(calls)
    compiled(*meta(), *calls[0][0])
    assert len(compiled.keys) == len(calls)


def test_a_constant_may_come_from_a_shape() -> None:
    compiled = Compiled(lambda q, k, v: adjustable(q, k, v, q.shape[2] - 4, q.shape[3] ** 0.5))
    for length in (9, 7):
        compiled(*meta(2, length))
        assert compiled.keys[-1] == define(adjustable.trace(*meta(), length - 4, 4.0))
    assert compiled.graphs == 2


def number(value: float) -> af.Variant:
    """A variant of its own for each number."""

    @af.variant
    def scaled(q: af.Query, k: af.Key, v: af.Value) -> af.Traced:
        return af.attend(af.softmax(af.scores(q, k) * value), v)

    return scaled


def key_of(own: af.Variant) -> str:
    return define(own.trace(*meta()))


class Layer(torch.nn.Module):
    """Holds a variant, and what it captures."""

    def __init__(self, own: af.Variant, *captured: Tensor) -> None:
        super().__init__()
        self.own = own
        self.captured = torch.nn.ParameterList(captured)

    def forward(self, *given: Tensor) -> Any:
        return self.own(*given, *self.captured)


def test_variants_come_from_anywhere() -> None:
    one, other = number(1.5), number(2.5)
    layers = [Layer(one), Layer(other)]

    def both(q: Tensor, k: Tensor, v: Tensor) -> Any:
        return one(q, k, v), other(q, k=k, v=v), [layer(q, k, v) for layer in layers]

    compiled = Compiled(both)
    compiled(*meta())
    assert sorted(set(compiled.keys)) == sorted([key_of(one), key_of(other)])

    given = Compiled(lambda own, *tensors: own(*tensors))
    for own in (one, other, one):
        given(own, *meta())
    assert given.keys == [key_of(one), key_of(other)] and given.graphs == 2


def test_a_variant_that_takes_another_s_place_is_not_taken_for_it() -> None:
    """Not even where it lies in the same memory."""
    compiled = Compiled(lambda own, *tensors: own(*tensors))
    for value in range(5):
        own = number(float(value + 3))
        compiled(own, *meta())
        assert compiled.keys[-1] == key_of(own)
        del own
        gc.collect()
    assert compiled.graphs == 5
    handles = {number(1.0)._handle for _ in range(50)}  # pyright: ignore[reportPrivateUsage]
    assert len(handles) == 50


def test_a_copied_module_is_compiled_when_the_first_one_is_gone() -> None:
    layer = Layer(number(10.0))
    other = copy.deepcopy(layer)
    own = other.own
    del layer
    gc.collect()
    compiled = Compiled(other)
    compiled(*meta())
    assert compiled.keys == [key_of(own)]


def test_a_variant_made_within_the_compiled_function_breaks_the_graph() -> None:
    def function(*given: Tensor) -> Any:
        return number(11.0)(*given) * 2

    out = torch.compile(function, backend="eager")(*meta())
    assert out.shape == meta()[0].shape
    with pytest.raises(Unsupported):
        torch.compile(function, backend="eager", fullgraph=True)(*meta())


def test_captured_tensors_that_require_gradients() -> None:
    q, k, v, table, doc = tensors()
    layer = Layer(biased, torch.nn.Parameter(table), torch.nn.Parameter(doc, requires_grad=False))
    weighed(*Compiled(layer)(q, k, v)).backward()  # type: ignore[no-untyped-call]
    (wanted,) = gradients(lambda own: by_reference(q, k, v, own, doc), [table])
    got = layer.captured[0].grad
    assert got is not None
    assert_all_close([got], [wanted])


def test_the_reference_may_be_compiled() -> None:
    assert_all_close(Compiled(by_reference)(*tensors()), by_reference(*tensors()))


def test_what_is_wrong_is_said() -> None:
    q, k, v, table, doc = tensors()
    with pytest.raises(TorchRuntimeError, match=r"WrongShape.*biased: v has shape.*k has"):
        Compiled(attended)(q, k[:, :, :4], v, table, doc)
    with pytest.raises(Unsupported, match="missing a required argument: 'table'"):
        Compiled(lambda *given: biased(*given))(q, k, v)
    with af.use(backward="raise"), pytest.raises(Unsupported, match=r"NoBackward.*q, k, v, table"):
        Compiled(attended)(*leaves(tensors()))


def test_a_graph_is_not_used_for_what_would_be_refused() -> None:
    """`doc` is long enough at first."""
    compiled, (q, k, v, table, doc) = Compiled(attended), tensors(2, 20)
    compiled(q, k, v, table, doc[:, :20])
    with pytest.raises(TorchRuntimeError, match=r"WrongShape.*doc has shape.*at least"):
        compiled(q, k, v, table, doc[:, :19])


def test_gradients_may_be_wanted_only_later() -> None:
    compiled = Compiled(attended)
    compiled(*tensors())
    assert_all_close(gradients(compiled, tensors()), gradients(by_reference, tensors()))
    with torch.no_grad():
        assert not compiled(*leaves(tensors()))[0].requires_grad


def test_autocast_within_and_around_a_compiled_function() -> None:
    def within(*given: Tensor) -> tuple[Tensor, Tensor]:
        with torch.autocast("cpu", torch.bfloat16):
            return attended(*given)

    compiled = Compiled(within)
    wanted = within(*tensors())
    assert wanted[0].dtype is torch.bfloat16
    assert_all_close(compiled(*tensors()), wanted, atol=0)
    with torch.autocast("cpu", torch.bfloat16):
        assert_all_close(Compiled(attended)(*tensors()), wanted, atol=0)
    found = gradients(compiled, tensors())
    assert {each.dtype for each in found} == {torch.float32}
    assert_all_close(found, gradients(within, tensors()), atol=1e-2)


# -- checkpointing -------------------------------------------------------------------------


def saving(context: object, operator: object, *args: object, **kwargs: object) -> CheckpointPolicy:
    """A policy that keeps the outputs of attentions and computes the rest again."""
    kept = operator == torch.ops.attnfuse.attention_fwd.default
    return CheckpointPolicy.MUST_SAVE if kept else CheckpointPolicy.PREFER_RECOMPUTE


def selective() -> Any:
    return create_selective_checkpoint_contexts(saving)


WAYS: dict[str, tuple[dict[str, Any], int]] = {
    "reentrant": ({"use_reentrant": True}, 2),
    "not reentrant": ({"use_reentrant": False}, 2),
    "selective": ({"use_reentrant": False, "context_fn": selective}, 1),
}


@pytest.mark.parametrize("way", WAYS)
def test_checkpoints_call_the_kernel_as_often_as_they_should(way: str) -> None:
    options, calls = WAYS[way]

    def function(*given: Tensor) -> Any:
        return checkpoint(surrounded, *given, **options)

    wanted = gradients(by_surrounded_reference, tensors())
    reset_stats()
    assert_all_close(gradients(function, tensors()), wanted)
    assert stats().calls == calls


def test_selective_checkpoints_within_a_compiled_function() -> None:
    def function(*given: Tensor) -> Any:
        return checkpoint(surrounded, *given, use_reentrant=False, context_fn=selective)

    compiled, wanted = Compiled(function), gradients(by_surrounded_reference, tensors())
    reset_stats()
    assert_all_close(gradients(compiled, tensors()), wanted)
    assert stats().calls == 1


# -- export --------------------------------------------------------------------------------


class Model(torch.nn.Module):
    """An attention with learnt parameters around it and in it."""

    def __init__(self) -> None:
        super().__init__()
        *_, table, doc = tensors(1)
        self.own = biased
        self.inner = torch.nn.Linear(16, 16)
        self.table = torch.nn.Parameter(table)
        self.register_buffer("doc", doc.clone())

    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        doc = self.get_buffer("doc").expand(q.shape[0], -1)
        out, lse = self.own(self.inner(q), k, v, self.table, doc=doc)
        return out + lse[..., None]


def exported(model: Model, strict: bool) -> torch.export.ExportedProgram:
    batch, q_len, kv_len = Dim("batch", max=8), Dim("q_len", max=64), Dim("kv_len", max=64)
    shapes = ({0: batch, 2: q_len}, {0: batch, 2: kv_len}, {0: batch, 2: kv_len})
    given = tuple(tensors(2, 9, 11)[:3])
    return torch.export.export(model, given, dynamic_shapes=shapes, strict=strict)


@pytest.mark.parametrize("strict", [True, False])
def test_exported_models_equal_eager_ones_at_all_sizes(strict: bool) -> None:
    model = Model()
    program = exported(model, strict)
    calls = [node for node in program.graph.nodes if node.target is ops.attention_fwd]
    assert len(calls) == 1
    for own in (program.module(), program.run_decompositions().module()):
        for sizes in ((2, 9, 11), (1, 33, 20), (5, 12, 64)):
            given = tensors(*sizes)[:3]
            assert torch.equal(own(*given), model(*given))
    (got,) = torch.autograd.grad(program.module()(*tensors()[:3]).sum(), [model.table])
    (wanted,) = torch.autograd.grad(model(*tensors()[:3]).sum(), [model.table])
    assert_all_close([got], [wanted])


LOADS = """
import sys, torch
import attnfuse as af
import attnfuse.variant

model = torch.export.load(sys.argv[1]).module()
given, wanted = torch.load(sys.argv[2])
try:
    model(*given)
except af.errors.UnknownDefinition as error:
    print(error)
with af.use(cache_dir=sys.argv[3]):
    got = model(*given)
assert torch.equal(got, wanted), (got - wanted).abs().max()
assert (af.stats().traces, af.stats().builds, af.stats().fallbacks) == (0, 0, 0), af.stats()
"""


def test_a_saved_model_runs_in_a_process_that_never_saw_the_variant(tmp_path: Path) -> None:
    """With the definition, and what was built; with another cache it says what is missing."""
    model, given = Model().requires_grad_(False), tensors(3, 12)[:3]
    program, numbers = tmp_path / "model.pt2", tmp_path / "numbers.pt"
    torch.export.save(exported(model, strict=False), program)
    torch.save((given, model(*given)), numbers)
    done = subprocess.run(
        [sys.executable, "-c", LOADS, program, numbers, af.get_settings().cache_dir],
        env=os.environ | {"ATTNFUSE_CACHE_DIR": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    key, folder = define(biased.trace(*tensors())), tmp_path / "definitions"
    assert f"there is no definition of attention {key} in {folder}; compile or" in done.stdout
    assert "set ATTNFUSE_CACHE_DIR to the folder" in done.stdout


# -- the page ------------------------------------------------------------------------------


def test_all_of_the_page_is_true(tmp_path: Path) -> None:
    page = ROOT / "docs" / "pytorch.md"
    command = [sys.executable, str(ROOT / "tests" / "support" / "tutorial.py"), str(page)]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert int(done.stdout.splitlines()[-1].split()[0]) >= 5
