"""The few words in which the programs for GPUs and for the CPU differ."""

from __future__ import annotations

from dataclasses import dataclass

from attnfuse.devices import Device
from attnfuse.ir.axes import DType
from attnfuse.plan.schedule import padded

Shape = tuple[int, ...]


@dataclass(frozen=True)
class Words:
    """How one kind of target spells buffers and loops.

    TileLang's C target has one memory and no tile layouts: everything is
    local, and loops over elements are plain loops. It has no bfloat16 and
    slow float16, so tiles are float32 there.

    Attributes:
        on_gpu: whether the target is a GPU.
        aligns: whether to tell TileLang that rows are aligned. Without it CUDA
            programs lose their asynchronous copies; with it TileLang 0.1.15
            makes vectors that its HIP code can't spell.
    """

    on_gpu: bool
    aligns: bool = False

    def shared(self, shape: Shape, dtype: DType) -> str:
        """A tile that all threads of a block see."""
        where = "shared" if self.on_gpu else "local"
        return f'T.alloc_{where}({shape}, "{self.tile(dtype)}")'

    def fragment(self, shape: Shape, dtype: DType = DType.float32) -> str:
        """A tile spread over the registers of a block's threads."""
        where = "fragment" if self.on_gpu else "local"
        return f'T.alloc_{where}({shape}, "{self.tile(dtype)}")'

    def each(self, *extents: int) -> str:
        """A loop over elements in any order."""
        loop = "Parallel" if self.on_gpu else "grid"
        return f"T.{loop}({', '.join(map(str, extents))})"

    def tile(self, dtype: DType) -> DType:
        """The element type of a tile of an input."""
        return dtype if self.on_gpu else DType.float32

    def stored(self, dtype: DType) -> DType:
        """The element type of a tensor in memory."""
        return DType.float32 if dtype is DType.bfloat16 and not self.on_gpu else dtype

    def features(self, count: int) -> int:
        """Features of a tile."""
        return padded(count) if self.on_gpu else count


def words_for(device: Device) -> Words:
    """The words for a device."""
    return Words(on_gpu=device.kind != "cpu", aligns=device.kind == "cuda")
