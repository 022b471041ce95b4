"""The examples as modules: each one's variant, and its tensors for any sizes and element type."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from types import ModuleType

import torch
from common import Sizes
from torch import Tensor

import attnfuse as af

PATHS = sorted((Path(__file__).parents[2] / "examples").glob("[0-9]*.py"))
"""The scripts, which import what they share, `common`, as if they were run."""

LAYERS: Mapping[str, tuple[Mapping[str, int | None], ...]] = {
    "gemma2": ({"window": None}, {"window": 100})
}
"""The constants of variants that have any: each choice is a kernel."""


@dataclass(frozen=True)
class Example:
    """One variant of one example, with its constants."""

    module: ModuleType
    variant: af.Variant
    constants: Mapping[str, int | None]

    @property
    def name(self) -> str:
        """The variant's name, and its constants where they are given."""
        given = [f"{name}_{value}" for name, value in self.constants.items() if value is not None]
        return "_".join((self.variant.name, *given))

    @property
    def sizes(self) -> Sizes:
        """What the script runs."""
        sizes: Sizes = self.module.SIZES
        return sizes

    def sized(self, group: int, key_heads: int, head_dim: int) -> Sizes:
        """Other heads and features; values are as wide as the model's are beside its keys."""
        value_dim = head_dim * self.sizes.value_dim // self.sizes.head_dim
        heads = group * key_heads
        return replace(
            self.sizes, heads=heads, key_heads=key_heads, head_dim=head_dim, value_dim=value_dim
        )

    @cached_property
    def attended(self) -> tuple[bool, ...]:
        """For each tensor, whether it is a query, key or value: these share an element type."""
        tensors: tuple[Tensor, ...] = self.module.inputs(replace(self.sizes, q_len=3, kv_len=3))
        traced = self.variant.trace(*tensors, **self.constants)
        return tuple(term["role"] != "captured" for term in traced.inputs)

    def inputs(self, sizes: Sizes, dtype: torch.dtype, device: str = "cpu") -> list[Tensor]:
        """The variant's tensors; views stay views."""
        made: tuple[Tensor, ...] = self.module.inputs(sizes)
        pairs = zip(made, self.attended, strict=True)
        return [converted(x, dtype if own else x.dtype, device) for x, own in pairs]


def converted(tensor: Tensor, dtype: torch.dtype, device: str) -> Tensor:
    """The same view of what it is a view of, in another element type or on another device."""
    entries = tensor.untyped_storage().nbytes() // tensor.itemsize
    whole = tensor.as_strided((entries,), (1,), 0).to(device, dtype)
    return whole.as_strided(tensor.shape, tensor.stride(), tensor.storage_offset())


def load(path: Path) -> ModuleType:
    """An example as a module of its own, whose `main` isn't run."""
    spec = importlib.util.spec_from_file_location(f"example_{path.stem}", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _examples(module: ModuleType) -> list[Example]:
    (variant,) = (each for each in vars(module).values() if isinstance(each, af.Variant))
    return [Example(module, variant, each) for each in LAYERS.get(variant.name, ({},))]


EXAMPLES = tuple(example for path in PATHS for example in _examples(load(path)))
"""Every variant of every example; one that has constants once for each choice of them."""
