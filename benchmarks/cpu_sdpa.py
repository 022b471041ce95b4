"""Our CPU program beside torch's SDPA on the CPU: causal attention in float32.

python benchmarks/cpu_sdpa.py [--threads 1] [--json benchmarks/results/cpu_sdpa.json]
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import sys
import time
from collections.abc import Callable
from datetime import date
from pathlib import Path

import torch
from torch.nn.functional import scaled_dot_product_attention

import attnfuse as af
from attnfuse.versions import version_line

SHAPE = (1, 8, 1024, 64)
ROUNDS = 50
PAUSE = 0.02
"""Seconds before each call: OpenMP's threads spin for milliseconds after torch's operations,
and would hold a core that whatever comes next wants to use."""


@af.variant
def causal(q: af.Query, k: af.Key, v: af.Value) -> af.Traced:
    """Causal attention."""
    return af.attend(af.softmax(af.mask(af.scores(q, k), af.causal())), v)


def milliseconds(call: Callable[[], object]) -> float:
    """How long one call takes."""
    began = time.perf_counter()
    call()
    return (time.perf_counter() - began) * 1e3


def measure(threads: int) -> dict[str, float]:
    """Median milliseconds of both, in turns, and their ratio."""
    torch.set_num_threads(threads)
    generator = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(SHAPE, generator=generator) for _ in range(3))
    calls: dict[str, Callable[[], object]] = {
        "attnfuse": lambda: causal(q, k, v),
        "sdpa": lambda: scaled_dot_product_attention(q, k, v, is_causal=True),
    }
    for call in calls.values():
        call()
    times: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(ROUNDS):
        for name, call in calls.items():
            time.sleep(PAUSE)
            times[name].append(milliseconds(call))
    medians = {name: statistics.median(each) for name, each in times.items()}
    return medians | {"ratio": medians["attnfuse"] / medians["sdpa"]}


def main() -> None:
    """Measure, print, and write the JSON where asked."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    result = measure(options.threads)
    print(
        f"{options.threads} threads: attnfuse {result['attnfuse']:.1f} ms, "
        f"sdpa {result['sdpa']:.1f} ms, ratio {result['ratio']:.2f}"
    )
    if options.json:
        environment = {
            "processor": processor(),
            "versions": f"{version_line()}, torch {torch.__version__}",
            "date": str(date.today()),
            "command": " ".join(["python", *sys.argv]),
        }
        report = {"environment": environment, "shape": SHAPE, "threads": options.threads} | result
        options.json.parent.mkdir(parents=True, exist_ok=True)
        options.json.write_text(json.dumps(report, indent=2) + "\n")


def processor() -> str:
    """The processor's name."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return next(line.split(": ")[1] for line in lines if line.startswith("model name"))


if __name__ == "__main__":
    main()
