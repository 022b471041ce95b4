"""The examples' programs on the CPU target against float64: groups, head dims, lengths, strides."""

from __future__ import annotations

import random
from dataclasses import dataclass, replace

import pytest
import torch
from cases import CASES, check
from common import Sizes
from draws import STRIDES, lengths, strided
from shown import EXAMPLES, Example
from torch import Tensor

import attnfuse as af

GROUPS = (1, 3, 4, 7)
HEAD_DIMS = (17, 40, 64, 72, 80, 96, 128, 192, 256)
DTYPES = (torch.float32, torch.float16, torch.float32, torch.bfloat16, torch.float32)
LENGTHS = (0, 1, 7, 63, 64, 65, 129, 300)
FEW = 3
"""Of so many kernels one is tested with few queries, too."""


@dataclass(frozen=True)
class Kernel:
    """A kernel of an example: what is static in it."""

    example: Example
    group: int
    key_heads: int
    head_dim: int
    dtype: torch.dtype

    def __str__(self) -> str:
        dtype = str(self.dtype).removeprefix("torch.")
        heads = f"{self.group * self.key_heads}x{self.key_heads}x{self.head_dim}"
        return f"{self.example.name}-{heads}-{dtype}"

    @property
    def has_few(self) -> bool:
        """Whether it is called with few queries as well, for which it is another kernel."""
        return KERNELS.index(self) % FEW == 0

    def sizes(self) -> list[Sizes]:
        """Every length for queries and for keys, equal ones, and a batch of 0."""
        chooser = random.Random(str(self))
        sizes = self.example.sized(self.group, self.key_heads, self.head_dim)
        pairs = [*lengths(chooser, LENGTHS), (65, 65), (200, 200)]
        pairs = [(q if q > 8 or self.has_few else q + 9, k) for q, k in pairs]
        drawn = [
            replace(sizes, q_len=q_len, kv_len=kv_len, batch=chooser.randint(1, 3))
            for q_len, kv_len in pairs
        ]
        return [*drawn, replace(sizes, q_len=17, kv_len=9, batch=0)]


def _kernels() -> list[Kernel]:
    """Each example with each group; head dims and element types in turn."""
    pairs = [(example, group) for example in EXAMPLES for group in GROUPS]
    return [
        Kernel(
            example,
            group,
            key_heads=1 + place // len(GROUPS) % 2,
            head_dim=HEAD_DIMS[place % len(HEAD_DIMS)],
            dtype=DTYPES[place % len(DTYPES)],
        )
        for place, (example, group) in enumerate(pairs)
    ]


KERNELS = _kernels()


@pytest.mark.parametrize("kernel", KERNELS, ids=str)
def test_program_keeps_the_budget_over_lengths_and_strides(kernel: Kernel) -> None:
    example, chooser = kernel.example, random.Random(str(kernel))
    for sizes in kernel.sizes():
        made = example.inputs(sizes, kernel.dtype)
        given = [
            strided(tensor, chooser.choice(STRIDES)) if own else tensor
            for tensor, own in zip(made, example.attended, strict=True)
        ]
        with af.use(cpu_threads=chooser.randint(1, 3)):
            got = the_tensor(example.variant(*given, **example.constants))
        exact, plain = (
            the_tensor(example.variant.reference(*given, exact=exact, **example.constants))
            for exact in (True, False)
        )
        assert got.dtype is plain.dtype and exact.dtype is torch.float64
        check([got], [exact], [plain])


def the_tensor(output: Tensor | tuple[Tensor, ...]) -> Tensor:
    """The one output that an example has."""
    assert isinstance(output, Tensor)
    return output


def test_every_example_has_every_group() -> None:
    for example in EXAMPLES:
        groups = {kernel.group for kernel in KERNELS if kernel.example is example}
        assert groups == set(GROUPS)


def test_every_head_dim_and_group_is_run_somewhere() -> None:
    cases = {case.head_dim for case in CASES}
    assert {16, 24, 32, *HEAD_DIMS} <= cases | {kernel.head_dim for kernel in KERNELS}
    groups = {case.heads // case.key_heads for case in CASES}
    assert set(GROUPS) <= groups & {kernel.group for kernel in KERNELS}


def test_every_element_type_has_every_group() -> None:
    for dtype in DTYPES:
        assert {kernel.group for kernel in KERNELS if kernel.dtype is dtype} == set(GROUPS)
