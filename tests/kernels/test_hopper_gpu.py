"""The `hopper` schedule on the GPU that is there, against float64."""

from __future__ import annotations

import random
from collections.abc import Generator
from dataclasses import replace
from typing import Any

import pytest
import torch
from cases import check
from draws import strided
from on_gpu import poison
from shown import EXAMPLES, Example
from torch import Tensor

import attnfuse as af
from attnfuse.compiled import Choice
from attnfuse.runtime.dispatch import sizes_of
from attnfuse.runtime.preparing import prepare

LENGTHS = (
    *((1, 1), (128, 128), (129, 1000), (300, 70), (7, 0), (65, 65), (5, 333)),
    *((640, 640), (1000, 1000), (127, 129), (128, 64), (256, 2000)),
)
"""Tiles that see nothing, one and many; tails; more queries than keys."""

ALIGNED = ("as made", "transposed", "expanded")
"""Strides that leave rows at multiples of 16 bytes, and with them the kernel."""

PAIRS = [
    (example, head_dim, (torch.bfloat16, torch.float16)[(place + head_dim // 64) % 2])
    for place, example in enumerate(EXAMPLES)
    for head_dim in (64, 128)
]

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(
        torch.cuda.is_available() and torch.cuda.get_device_capability() != (9, 0),
        reason="needs an H100 or H200",
    ),
]


@pytest.fixture(autouse=True)
def hopper_allowed() -> Generator[None]:
    """It is not among the schedules by default."""
    with af.use(schedules="hopper,pipelined"):
        yield


def choice_of(variant: af.Variant, tensors: list[Tensor], **constants: Any) -> Choice:
    """The kernels for any sizes."""
    return variant.compile(*tensors, **constants).choices[-1]


def outputs(variant: af.Variant, tensors: list[Tensor], **constants: Any) -> list[Tensor]:
    """The outputs by the kernels for any sizes, also where others are there for few queries."""
    compiled = variant.compile(*tensors, **constants)
    choice = compiled.choices[-1]
    launches = zip(choice.launches, choice.kernels, strict=True)
    triples = [(launch.part, launch.plan, kernel) for launch, kernel in launches]
    sizes = sizes_of(compiled.program, tensors)
    poison(tensors[0])
    return prepare(compiled.program, triples, tensors, sizes)(tensors)


def schedules(choice: Choice) -> set[str]:
    """The names of the schedules of its launches."""
    return {launch.plan.schedule.name for launch in choice.launches}


def name(value: object) -> str:
    """A readable name for a parametrised test."""
    return value.name if isinstance(value, Example) else str(value).removeprefix("torch.")


@pytest.mark.parametrize(("example", "head_dim", "dtype"), PAIRS, ids=name)
def test_examples_keep_the_budget(example: Example, head_dim: int, dtype: torch.dtype) -> None:
    chooser = random.Random(f"{example.name} {head_dim}")
    own_sizes = example.sized(chooser.choice((1, 3, 4)), 2, head_dim)
    for q_len, kv_len in LENGTHS:
        sizes = replace(own_sizes, q_len=q_len, kv_len=kv_len, batch=chooser.randint(1, 3))
        made = example.inputs(sizes, dtype, "cuda")
        given = [
            strided(tensor, chooser.choice(ALIGNED)) if own else tensor
            for tensor, own in zip(made, example.attended, strict=True)
        ]
        exact, plain = (
            example.variant.reference(*given, exact=exact, **example.constants)
            for exact in (True, False)
        )
        assert isinstance(exact, Tensor) and isinstance(plain, Tensor)
        check(outputs(example.variant, given, **example.constants), [exact], [plain])


@af.variant
def biased(
    q: af.Query, k: af.Key, v: af.Value, table: af.Captured, mode: str
) -> tuple[af.Traced, af.Traced]:
    """Forms of scores and masks, by the name of one."""
    s = af.scores(q, k)
    if mode == "full":
        pass
    elif mode == "softcap":
        s = af.mask(af.softcap(s, 30.0), af.causal())
    elif mode == "bias":
        s = af.mask(af.bias(s, table[af.h, af.q - af.k + 500]), af.causal("top_left"))
    elif mode == "window":
        s = af.mask(s, af.window(before=100, after=30))
    elif mode == "never":
        s = af.mask(s, af.k < af.q - 5000)
    else:
        s = af.mask(s, af.causal() | (af.k < 40))
    return af.attend(af.softmax(s), v), af.lse(s)


@pytest.mark.parametrize("mode", ["full", "softcap", "bias", "window", "never", "prefix"])
@pytest.mark.parametrize("shape", [(4, 2, 64, 64), (3, 1, 128, 128), (2, 2, 64, 128)], ids=str)
def test_outputs_and_statistics_of_all_kinds_of_tiles(
    mode: str, shape: tuple[int, int, int, int]
) -> None:
    heads, key_heads, head_dim, value_dim = shape
    generator = torch.Generator().manual_seed(len(mode))
    table = torch.randn(heads, 1000, generator=generator).cuda()
    for spread in (1.0, 30.0):
        for q_len, kv_len in LENGTHS:
            shapes = ((heads, q_len, head_dim), (key_heads, kv_len, head_dim))
            made = [
                torch.randn(2, *each, generator=generator).to("cuda", torch.bfloat16)
                for each in (*shapes, (key_heads, kv_len, value_dim))
            ]
            made[0] *= spread
            given = [*made, table]
            assert schedules(choice_of(biased, given, mode=mode)) == {"hopper"}
            exact = biased.reference(*given, mode=mode)
            plain = biased.reference(*given, mode=mode, exact=False)
            assert isinstance(exact, tuple) and isinstance(plain, tuple)
            check(outputs(biased, given, mode=mode), exact, plain)


def test_shared_keys_and_values_are_read_in_place() -> None:
    """Expanded over the batch: the stride is 0."""
    generator = torch.Generator().manual_seed(0)
    q = torch.randn(3, 4, 200, 64, generator=generator).half().cuda()
    k, v = (torch.randn(1, 2, 300, 64, generator=generator).half().cuda() for _ in range(2))
    given = [q, k.expand(3, -1, -1, -1), v.expand(3, -1, -1, -1), torch.zeros(4, 9, device="cuda")]
    exact = biased.reference(*given, mode="full")
    plain = biased.reference(*given, mode="full", exact=False)
    assert isinstance(exact, tuple) and isinstance(plain, tuple)
    check(outputs(biased, given, mode="full"), exact, plain)
