"""Runs a `hopper` program's own text, with its barriers and without its numbers.

The program is Python; here it meets a `T` whose barriers are real ones between
Python threads, one for each warp group, and whose products and copies only
keep account of who reads and writes which buffer. What would hang on a GPU
ends in `Stuck`, what would be a race in `AssertionError`.
"""

# A program's text is run, and nothing in it has types.
# pyright: reportUnknownVariableType=false, reportUnknownMemberType=false

from __future__ import annotations

import contextlib
import threading
from collections.abc import Generator, Iterator
from dataclasses import dataclass, field
from typing import Any

GROUP = 128
PATIENCE = 10.0
"""Seconds without progress after which a warp group is stuck; no wait takes a hundredth of it."""


class Stuck(Exception):
    """A warp group waits for something that does not come."""


@dataclass
class Trace:
    """What the blocks of a run have done.

    Attributes:
        products: for each consumer warp group of each block, the key tiles whose scores and the
            value tiles it took, in order: (kind, place in memory).
        written: the places of the outputs that were stored.
    """

    products: dict[tuple[int, int], list[tuple[str, Any]]] = field(default_factory=dict)
    written: list[Any] = field(default_factory=list)


class Barrier:
    """An mbarrier: a phase ends when ``count`` arrivals have come."""

    def __init__(self, block: Block, count: int) -> None:
        self.block, self.count, self.left, self.phase = block, count, count, 0

    def arrive(self, by: int) -> None:
        with self.block.changed:
            self.left -= by
            assert self.left >= 0, "more arrivals than a phase has"
            if self.left == 0:
                self.left, self.phase = self.count, self.phase + 1
                self.block.changed.notify_all()

    def wait(self, parity: int) -> None:
        """Until the phase of this parity has ended. A fresh barrier's phase −1 has."""
        with self.block.changed:
            done = self.block.changed.wait_for(
                lambda: (self.phase - 1) % 2 == parity or self.block.failed, PATIENCE
            )
            if not done or self.block.failed:
                raise Stuck(f"a barrier of {self.count} arrivals, parity {parity}")


@dataclass(eq=False)
class Buffer:
    """A buffer in shared memory or in registers.

    Attributes:
        name: what kind it is.
        holds: the place in memory that was copied into it.
        readers: the warp groups that have not yet given it back.
    """

    name: str
    holds: Any = None
    readers: set[int] = field(default_factory=set)

    @property
    def data(self) -> Buffer:
        return self

    def __getitem__(self, index: Any) -> Any:
        return self

    def __setitem__(self, index: Any, value: Any) -> None:
        pass


class Buffers:
    """Buffers of one kind: a stage each."""

    def __init__(self, name: str, count: int) -> None:
        self.stages = [Buffer(name) for _ in range(count)]

    def __getitem__(self, index: Any) -> Buffer:
        return self.stages[index[0]]


class Tensor:
    """A tensor in memory."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __getitem__(self, index: Any) -> Any:
        return self.name, *(i.start if isinstance(i, slice) else i for i in index)

    def __setitem__(self, index: Any, value: Any) -> None:
        pass


class Block:
    """What the warp groups of one block share."""

    def __init__(self, groups: int) -> None:
        self.groups, self.failed = groups, False
        self.changed = threading.Condition(threading.RLock())
        self.made: dict[int, Any] = {}
        self.meetings = threading.Barrier(groups - 1)

    def shared(self, place: int, value: Any) -> Any:
        """What the first warp group allocates at a place of the program, for all of them."""
        with self.changed:
            return self.made.setdefault(place, value)


class Language:
    """The `T` of one warp group of one block.

    Args:
        block: what it shares.
        number: the number of the block.
        group: the number of the warp group; 0 is the producer.
        sizes: what symbols stand for.
        trace: where to write down what it does.
    """

    int32 = "int32"

    class GemmWarpPolicy:
        """Which warps multiply which rows; they keep to their own."""

        FullRow = "FullRow"

    def __init__(
        self, block: Block, number: int, group: int, sizes: dict[str, int], trace: Trace
    ) -> None:
        self.block, self.number, self.group = block, number, group
        self.sizes, self.done = sizes, trace.products.setdefault((number, group), [])
        self.trace, self.allocated = trace, 0
        self.flying: list[tuple[Any, ...]] = []

    # -- the program's frame -----------------------------------------------------------------

    def dynamic(self, name: str, dtype: str = "") -> int:
        return self.sizes.get(name, 1)

    def StridedTensor(self, *args: Any) -> None:
        pass

    def prim_func(self, function: Any) -> Any:
        return function

    @contextlib.contextmanager
    def Kernel(self, blocks: int, **kwargs: Any) -> Generator[int]:
        yield self.number

    def get_thread_binding(self) -> int:
        return self.group * GROUP + 1  # no multiple of 4: statistics are not written

    def set_max_nreg(self, count: int, more: int) -> None:
        pass

    # -- arithmetic --------------------------------------------------------------------------

    min, max = staticmethod(min), staticmethod(max)

    def ceildiv(self, a: int, b: int) -> int:
        return -(-a // b)

    def Or(self, a: Any, b: Any) -> bool:
        return bool(a or b)

    def infinity(self, dtype: str) -> float:
        return float("inf")

    def float32(self, value: float) -> float:
        return value

    def evaluate(self, value: Any) -> None:
        pass

    def serial(self, count: int) -> range:
        return range(count)

    def Parallel(self, *extents: int) -> Iterator[Any]:
        return iter(())

    # -- buffers -----------------------------------------------------------------------------

    def _place(self) -> int:
        self.allocated += 1
        return self.allocated

    def alloc_shared(self, shape: tuple[int, ...], dtype: str) -> Any:
        place = self._place()
        made = Buffers("stage", shape[0]) if len(shape) == 3 else Buffer("tile")
        return self.block.shared(place, made)

    def alloc_barrier(self, counts: int | list[int]) -> Any:
        place, block = self._place(), self.block
        if isinstance(counts, int):
            return block.shared(place, Barrier(block, counts))
        return block.shared(place, [Barrier(block, count) for count in counts])

    def alloc_fragment(self, shape: tuple[int, ...], dtype: str) -> Buffer:
        self._place()
        return Buffer("fragment")

    alloc_local = alloc_fragment

    def alloc_var(self, dtype: str, init: int = 0) -> int:
        return init

    def fill(self, buffer: Buffer, value: float) -> None:
        self._untouched(buffer)

    # -- copies ------------------------------------------------------------------------------

    def tma_copy(
        self, source: Any, tile: Buffer, barrier: Barrier, annotations: dict[str, int]
    ) -> None:
        with self.block.changed:
            assert not tile.readers, f"{source} overwrites {tile.holds}, which is being read"
            tile.holds = source
            tile.readers = set(range(1, self.block.groups))
        barrier.arrive(1)

    def copy(self, source: Any, target: Any) -> None:
        if isinstance(target, tuple):
            if self.group == 1:
                self.trace.written.append(target)
            return
        self._untouched(source)
        self._untouched(target)

    def fence_proxy_async(self) -> None:
        pass

    # -- the matrix unit ---------------------------------------------------------------------

    def wgmma_gemm(self, left: Buffer, right: Buffer, total: Buffer, **how: Any) -> None:
        for tile in (left, right):
            if tile.name != "fragment":
                assert self.group in tile.readers, f"{tile.holds} is read though given back"
        kind = "values" if left.name == "fragment" else "scores"
        self.done.append((kind, right.holds if kind == "values" else (left.holds, right.holds)))
        self.flying.append((left, right, total))

    def wait_wgmma(self, left: int) -> None:
        self.flying = self.flying[len(self.flying) - left :] if left else []

    def _untouched(self, buffer: Any) -> None:
        assert not any(buffer is each for one in self.flying for each in one), "still in use"

    def call_extern(self, dtype: str, name: str, *arguments: Any) -> None:
        for each in arguments:
            self._untouched(each)

    # -- barriers ----------------------------------------------------------------------------

    def barrier_wait(self, barrier: Barrier, parity: int) -> None:
        barrier.wait(parity)

    def barrier_arrive(self, barrier: Barrier) -> None:
        for tile in self._guarded(barrier):
            self._untouched(tile)
            with self.block.changed:
                tile.readers.discard(self.group)
        barrier.arrive(GROUP)

    def _guarded(self, barrier: Barrier) -> list[Buffer]:
        """The buffers that a barrier says are empty; barriers are allocated in their order."""
        order = [self.block.made[place] for place in sorted(self.block.made)]
        tiles = [each for each in order if isinstance(each, Buffers)]
        queries = next(each for each in order if isinstance(each, Buffer))
        barriers: list[Any] = [each for each in order if isinstance(each, list | Barrier)]
        _, q_empty, _, k_empty, _, v_empty = barriers
        if barrier is q_empty:
            return [queries]
        for empties, own in zip((k_empty, v_empty), tiles, strict=True):
            for stage, each in enumerate(empties):
                if each is barrier:
                    return [own.stages[stage]]
        raise AssertionError("a consumer arrives where the producer should")

    def sync_threads(self, number: int, count: int) -> None:
        assert count == (self.block.groups - 1) * GROUP
        try:
            self.block.meetings.wait(PATIENCE)
        except threading.BrokenBarrierError as error:
            raise Stuck("consumers that wait for each other") from error


def run(text: str, name: str, groups: int, blocks: int, sizes: dict[str, int]) -> Trace:
    """Run a program.

    Args:
        text: the program.
        name: its function.
        groups: warp groups of a block.
        blocks: how many blocks there are.
        sizes: what symbols stand for; strides don't matter.

    Raises:
        Stuck: a warp group waits for what doesn't come.
        AssertionError: a buffer is read or written by two at once.
    """
    code = compile(text.replace("import tilelang.language as T", ""), name, "exec")
    trace, errors = Trace(), list[BaseException]()

    def work(block: Block, number: int, group: int) -> None:
        scope: dict[str, Any] = {"T": Language(block, number, group, sizes, trace)}
        try:
            exec(code, scope)
            function = scope[name]
            count = function.__code__.co_argcount
            function(*map(Tensor, function.__code__.co_varnames[:count]))
        except BaseException as error:
            errors.append(error)
            with block.changed:
                block.failed = True
                block.changed.notify_all()
            block.meetings.abort()

    for number in range(blocks):
        block = Block(groups)
        threads = [
            threading.Thread(target=work, args=(block, number, group)) for group in range(groups)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    serious = [error for error in errors if not isinstance(error, Stuck)]
    for error in (*serious, *errors):
        raise error
    return trace
