"""A kernel's parameters as the driver wants them: packed, each where a C struct would have it."""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from attnfuse.backends.tilelang.binaries import Built
from attnfuse.backends.tilelang.driver import encode_tensor_map
from attnfuse.backends.tilelang.header import tensors
from attnfuse.backends.tilelang.names import identifier
from attnfuse.backends.tilelang.tensor_maps import TensorMap
from attnfuse.plan.kernel import Plan

_NUMBERS = {"int": "i", "int64_t": "q"}
"""How `struct` spells the types of numbers."""

_ADDRESS, _TENSOR_MAP = "Q", "128s"
_KEPT = 256


class Arguments:
    """The layout of a kernel's parameters.

    TileLang puts what stands for tensors first, then the numbers.

    Args:
        plan: what the kernel does.
        built: its binary.
        offsets: where each parameter begins, in bytes.
    """

    def __init__(self, plan: Plan, built: Built, offsets: Sequence[int]) -> None:
        places = {identifier(each.name): place for place, each in enumerate(tensors(plan))}
        maps = {each.name: each for each in built.tensor_maps}
        self._tensors: list[tuple[int, TensorMap | None]] = []
        self._numbers: list[str] = []
        layout = "="
        for (name, kind), offset in zip(built.parameters, offsets, strict=True):
            layout += f"{offset - struct.calcsize(layout)}x"
            if kind in _NUMBERS:
                self._numbers.append(name)
                layout += _NUMBERS[kind]
            else:
                assert not self._numbers
                own = maps.get(name)
                self._tensors.append((places[own.tensor if own else name], own))
                layout += _TENSOR_MAP if own else _ADDRESS
        self._struct = struct.Struct(layout)
        self.size = self._struct.size

    def told(self, values: Mapping[str, int]) -> Told:
        """The arguments for these sizes and strides, by name."""
        numbers = tuple(values[name] for name in self._numbers)
        encoded = tuple(
            (place, _Encoded(own, values) if own else None) for place, own in self._tensors
        )
        return Told(encoded, numbers, self._struct)


@dataclass(frozen=True)
class Told:
    """Arguments that lack the addresses of the tensors."""

    tensors: tuple[tuple[int, _Encoded | None], ...]
    numbers: tuple[int, ...]
    layout: struct.Struct

    def __call__(self, addresses: Sequence[int]) -> bytes:
        """The packed arguments.

        Args:
            addresses: those of the plan's inputs and of its outputs, in order; the last one is
                of a tensor that has elements.
        """
        first = [
            own(addresses[place] or addresses[-1]) if own else addresses[place]
            for place, own in self.tensors
        ]
        return self.layout.pack(*first, *self.numbers)


@dataclass(frozen=True)
class _Encoded:
    """A tensor map for any address. The same addresses come again and again."""

    tensor_map: TensorMap
    values: Mapping[str, int]
    known: dict[int, bytes] = field(default_factory=dict[int, bytes])

    def __call__(self, address: int) -> bytes:
        found = self.known.get(address)
        if found is None:
            if len(self.known) >= _KEPT:
                self.known.clear()
            found = encode_tensor_map(self.tensor_map, address, self.values)
            self.known[address] = found
        return found
