"""Emits what every program begins with: origin, symbols, parameters, the grid."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager

from attnfuse.backends.tilelang.names import identifier
from attnfuse.backends.tilelang.text import Text
from attnfuse.backends.tilelang.words import Words
from attnfuse.ir.axes import Symbol
from attnfuse.plan.kernel import Parameter, Plan

RANGE_PARAMETERS = ("first_block", "blocks", "first_head", "heads", "first_entry", "entries")
"""What a CPU kernel is told: which blocks of queries, heads and batch entries are its own."""


def write_header(text: Text, plan: Plan, heading: str, *, prelude: str = "") -> None:
    """Write the docstring, the symbols and, if any, the text of CUDA functions."""
    text.line(f'"""{heading}"""')
    text.line()
    text.line("import tilelang.language as T")
    text.line()
    text.line("LOG2E = 1.4426950408889634")
    text.comment("sizes that are known at the call")
    for symbol in symbols(plan):
        text.line(f'{symbol} = T.dynamic("{symbol}")')
    text.comment("strides, in elements")
    for parameter in tensors(plan):
        for name in strides(parameter):
            if name != "1":
                text.line(f'{name} = T.dynamic("{name}", "int64")')
    if prelude:
        text.comment("functions in CUDA")
        for line in ('PRELUDE = r"""', *prelude.splitlines(), '"""'):
            text.line(line)
    text.line()
    text.line()


@contextmanager
def write_signature(text: Text, plan: Plan, words: Words) -> Generator[None]:
    """Write the kernel's parameters and its grid; what is written within is one block's work."""
    with write_parameters(text, plan, words):
        if words.aligns:
            _write_alignment(text, plan)
        with text.block(_grid(plan, words)):
            _write_indices(text, plan, words)
            yield


@contextmanager
def write_parameters(text: Text, plan: Plan, words: Words) -> Generator[None]:
    """Write the kernel's parameters; what is written within is the function's body."""
    text.line("@T.prim_func")
    text.line(f"def {plan.name}(")
    for parameter in tensors(plan):
        text.line(f"    {identifier(parameter.name)}: {_tensor(parameter, words)},")
    if not words.on_gpu:
        text.line("    # the part of the grid that this call computes")
        for name in RANGE_PARAMETERS:
            text.line(f"    {name}: T.int32,")
    with text.block("):"):
        yield


def tensors(plan: Plan) -> tuple[Parameter, ...]:
    """What a kernel reads and writes, in the order of its parameters."""
    return (*plan.parameters, *plan.results)


def symbols(plan: Plan) -> list[Symbol]:
    """The symbolic sizes of a plan."""
    sizes = (size for parameter in tensors(plan) for size in parameter.sizes)
    return list(dict.fromkeys(size for size in sizes if isinstance(size, Symbol)))


def strides(parameter: Parameter) -> list[str]:
    """The text of each stride of a tensor: a symbol's name, or 1."""
    names = [f"{parameter.name}_stride_{label}" for label in parameter.labels]
    if parameter.pattern.contiguous:
        names[-1:] = ["1"]
    return names


def batch_labels(plan: Plan) -> list[str]:
    """The labels of the batch axes."""
    return [label for label in plan.results[0].labels if label.startswith("b")]


def block_indices(plan: Plan) -> dict[str, str]:
    """The text of the indices that are the same for a whole block, by name."""
    labels = batch_labels(plan)
    sizes = dict(zip(plan.results[0].labels, plan.results[0].sizes, strict=True))
    flat = labels[0]
    for label in labels[1:]:
        flat = f"({flat}) * {sizes[label]} + {label}"
    return {label: label for label in labels} | {"b": flat, "h": "h"}


def key_head(plan: Plan, parameter: str) -> str:
    """The text of the key head that a block's query head reads."""
    place = len(batch_labels(plan))
    query_heads, own = plan.results[0].sizes[place], plan.parameter(parameter).sizes[place]
    assert isinstance(query_heads, int) and isinstance(own, int)
    return "h" if query_heads == own else f"h // {query_heads // own}"


def _tensor(parameter: Parameter, words: Words) -> str:
    shape = ", ".join(map(str, parameter.sizes)) or "1"
    dtype = words.stored(parameter.dtype)
    return f'T.StridedTensor([{shape}], [{", ".join(strides(parameter))}], "{dtype}")'


def _write_alignment(text: Text, plan: Plan) -> None:
    """Tell the compiler which rows start at multiples of 16 bytes."""
    for parameter in tensors(plan):
        if parameter.pattern.aligned and parameter.labels[-1:] in (("d",), ("e",)):
            step = 16 // parameter.dtype.itemsize
            for name in strides(parameter)[:-1]:
                text.line(f"T.assume({name} % {step} == 0)")


def _grid(plan: Plan, words: Words) -> str:
    sizes = dict(zip(plan.results[0].labels, plan.results[0].sizes, strict=True))
    if not words.on_gpu:
        return "with T.Kernel(blocks, heads, entries) as (own_block, head, own_entry):"
    blocks = f"T.ceildiv({sizes[plan.rows]}, {plan.schedule.block_q})"
    entries = " * ".join(str(sizes[label]) for label in batch_labels(plan))
    launch = f"{blocks}, {sizes['h']}, {entries}, threads={plan.schedule.threads}"
    return f"with T.Kernel({launch}) as (block, h, entry):"


def _write_indices(text: Text, plan: Plan, words: Words) -> None:
    if not words.on_gpu:
        text.line("block = first_block + own_block")
        text.line("h = first_head + head")
        text.line("entry = first_entry + own_entry")
    sizes = dict(zip(plan.results[0].labels, plan.results[0].sizes, strict=True))
    labels, rest = batch_labels(plan), "entry"
    for label in reversed(labels[1:]):
        text.line(f"{label} = T.floormod({rest}, {sizes[label]})")
        rest = f"T.floordiv({rest}, {sizes[label]})"
    text.line(f"{labels[0]} = {rest}")
