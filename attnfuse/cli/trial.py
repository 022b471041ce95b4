"""A small kernel, built from nothing and run, to see whether that works here."""

from __future__ import annotations

import tempfile
import time

import torch
from torch import Tensor

from attnfuse.blocks import attend, scores, softmax
from attnfuse.compiler import compile_program
from attnfuse.devices import find_device
from attnfuse.runtime.dispatch import patterns_of, sizes_of
from attnfuse.settings import use
from attnfuse.traced import Key, Query, Traced, Value
from attnfuse.variant import variant


def _plain(q: Query, k: Key, v: Value) -> Traced:
    return attend(softmax(scores(q, k)), v)


def run() -> tuple[float, float]:
    """Build the kernel for the CPU in a folder of its own, and run it.

    Returns:
        Seconds until it has answered, and its largest error.

    Raises:
        BuildFailed: the compiler refused it.
    """
    trial = variant(_plain)
    qkv = [torch.randn(1, 2, 70, 16) for _ in range(3)]
    program = trial.trace(*qkv)
    patterns = dict(zip("qkv", patterns_of(program, qkv), strict=True))
    began = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder, use(cache_dir=folder):
        made = compile_program(program, find_device("cpu"), patterns)  # nothing from memory
        (out,) = made.prepare(qkv, sizes_of(program, qkv))(qkv)
    took = time.perf_counter() - began
    exact = trial.reference(*qkv)
    assert isinstance(exact, Tensor)
    return took, float((out.double() - exact).abs().max())
