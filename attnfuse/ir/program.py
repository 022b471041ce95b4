"""A traced variant: named inputs and outputs of one term graph."""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import blake2b

from attnfuse.ir.term import Term, walk


@dataclass(frozen=True)
class Program:
    """A term graph with names at its ends.

    Attributes:
        name: what the variant is called.
        inputs: the input terms, in the order of the variant's tensor parameters.
        outputs: the roots, in the order in which the variant returns them.
    """

    name: str
    inputs: tuple[Term, ...]
    outputs: tuple[Term, ...]

    @property
    def digest(self) -> str:
        """A hash of the program that is the same in every process."""
        parts = [self.name, *(term.digest for term in (*self.inputs, *self.outputs))]
        return blake2b("\0".join(parts).encode(), digest_size=16).hexdigest()

    def terms(self) -> tuple[Term, ...]:
        """Every term that the outputs need, operands before their users."""
        return tuple(walk(*self.outputs))

    def __str__(self) -> str:
        from attnfuse.ir.printing import listing

        return listing(self)
