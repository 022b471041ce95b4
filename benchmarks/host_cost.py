"""What a cached call costs on the host, beside PyTorch's own: the time until it has been enqueued.

    python benchmarks/host_cost.py [--json benchmarks/results/host_cost.json]

The tensors are so small that the GPU never keeps the host waiting. Also: the time from a new
variant to its first result, built from nothing and found on disk by another process.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from datetime import date
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention.flex_attention import create_block_mask, flex_attention
from torch.nn.functional import scaled_dot_product_attention

import attnfuse as af
from attnfuse.versions import version_line

SHAPE = (1, 8, 128, 64)
CALLS, ROUNDS = 200, 15


@af.variant
def causal(q: af.Query, k: af.Key, v: af.Value) -> af.Traced:
    """One launch."""
    return af.attend(af.softmax(af.mask(af.scores(q, k), af.causal())), v)


@af.variant
def rotated(q: af.Query, k: af.Key, v: af.Value, cos: af.Captured, sin: af.Captured) -> af.Traced:
    """Two launches: keys are rotated beforehand."""
    s = af.scores(af.rope(q, cos, sin), af.stored(af.rope(k, cos, sin)))
    return af.attend(af.softmax(af.mask(s, af.causal())), v)


FIRST = """
import sys, time
sys.path.insert(0, {folder!r})
import torch
from host_cost import rotated, tensors
q, k, v, cos, sin = tensors()
torch.cuda.synchronize()
began = time.perf_counter()
rotated(q, k, v, cos, sin)
torch.cuda.synchronize()
print(time.perf_counter() - began, "tilelang" in sys.modules)
"""


def tensors() -> list[Tensor]:
    """Queries, keys, values and RoPE tables."""
    qkv = [torch.randn(SHAPE, device="cuda", dtype=torch.bfloat16) for _ in range(3)]
    return qkv + [torch.randn(SHAPE[2], SHAPE[3] // 2, device="cuda") for _ in range(2)]


def microseconds(call: Callable[[], object]) -> float:
    """How long the host takes to enqueue one call."""
    torch.cuda.synchronize()
    began = time.perf_counter()
    for _ in range(CALLS):
        call()
    took = time.perf_counter() - began
    torch.cuda.synchronize()
    return took / CALLS * 1e6


def calls() -> dict[str, Callable[[], object]]:
    """What is compared; each is warm."""
    q, k, v, cos, sin = tensors()
    own_q, own_k, own_v = (each.clone().requires_grad_() for each in (q, k, v))
    mask = create_block_mask(
        lambda b, h, i, j: i >= j, None, None, SHAPE[2], SHAPE[2], device="cuda"
    )
    compiler: Any = torch
    flex = compiler.compile(flex_attention, fullgraph=True)  # whose types pyright doesn't know
    found: dict[str, Callable[[], object]] = {
        "attnfuse one launch": lambda: causal(q, k, v),
        "attnfuse two launches": lambda: rotated(q, k, v, cos, sin),
        "attnfuse one launch, with gradients": lambda: causal(own_q, own_k, own_v),
        "sdpa": lambda: scaled_dot_product_attention(q, k, v, is_causal=True),
        "sdpa, with gradients": lambda: scaled_dot_product_attention(
            own_q, own_k, own_v, is_causal=True
        ),
        "flex_attention compiled": lambda: flex(q, k, v, block_mask=mask),
        "flex_attention compiled, with gradients": lambda: flex(
            own_q, own_k, own_v, block_mask=mask
        ),
    }
    for call in found.values():
        for _ in range(3):
            call()
    return found


def growing(first: int) -> float:
    """Microseconds of a call with a length that was never seen before, as in decoding."""
    q, k, v, _, _ = tensors()
    longer = [torch.cat([x] * 8, dim=2) for x in (k, v)]
    torch.cuda.synchronize()
    began = time.perf_counter()
    for length in range(first, first + CALLS):
        causal(q[:, :, :1], longer[0][:, :, :length], longer[1][:, :, :length])
    return (time.perf_counter() - began) / CALLS * 1e6


def first_result(cache: str) -> dict[str, object]:
    """Seconds to the first result of a variant of two launches, in a new process."""
    script = FIRST.format(folder=str(Path(__file__).parent))
    environment = os.environ | {"ATTNFUSE_CACHE_DIR": cache}
    done = subprocess.run(
        [sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=True
    )
    seconds, imported = done.stdout.split()[-2:]
    return {"seconds": float(seconds), "imported_tilelang": imported == "True"}


def measure() -> dict[str, object]:
    """All of it."""
    with tempfile.TemporaryDirectory() as cache:
        cold, warm = first_result(cache), first_result(cache)
    found = calls()
    rounds = [{name: microseconds(call) for name, call in found.items()} for _ in range(ROUNDS)]
    medians = {name: statistics.median(each[name] for each in rounds) for name in found}
    growing(100)  # builds the kernel for few queries
    return {
        "environment": {
            "gpu": torch.cuda.get_device_name(),
            "versions": f"{version_line()}, torch {torch.__version__}",
            "date": date.today().isoformat(),
            "command": "python benchmarks/host_cost.py",
        },
        "shape": SHAPE,
        "host_microseconds": {name: round(value, 2) for name, value in medians.items()},
        "host_microseconds_of_a_new_length": round(growing(301), 2),
        "first_result_built": cold,
        "first_result_from_disk": warm,
    }


def main() -> None:
    """Measure, print, and write where asked."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    text = json.dumps(measure(), indent=2)
    print(text)
    if given.json is not None:
        given.json.write_text(text + "\n", "utf-8")


if __name__ == "__main__":
    main()
