"""What the examples' kernels need on NVIDIA GPUs, as nvcc says: registers, spills, shared memory.

make resources

Needs nvcc and no GPU. Each launch of each example, at the model's head dims, is lowered and
compiled for each architecture that there is a device profile for.
"""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Iterator
from dataclasses import asdict, replace
from datetime import date
from pathlib import Path
from typing import Any

import torch
from nvcc import command, resources
from shown import EXAMPLES, Example

from attnfuse.backends.tilelang.compilers import version_of
from attnfuse.devices import all_devices
from attnfuse.errors import DoesNotFitDevice
from attnfuse.versions import version_line

ARCHS = sorted({device.arch for device in all_devices().values() if device.kind == "cuda"})
DTYPE = torch.bfloat16
Row = dict[str, Any]
HEADING = (
    f"{'example':20} {'launch':20} {'arch':8} {'tiles':>8} {'threads':>7} {'registers':>9} "
    f"{'stores+loads':>13} {'shared':>7} {'lines':>5}"
)
"""Stores and loads are bytes of spilled registers."""


def rows(example: Example, arch: str) -> Iterator[Row]:
    """What each launch of an example needs on an architecture, or how much is too much for it."""
    tensors = example.inputs(replace(example.sizes, q_len=16, kv_len=16), DTYPE, "meta")
    try:
        launches = example.variant.compile(*tensors, **example.constants, device=arch).launches
    except DoesNotFitDevice as refused:
        yield {"example": example.name, "arch": arch, "refused": str(refused)}
        return
    for launch in launches:
        tiles = launch.plan.schedule
        chosen = {"tiles": f"{tiles.block_q}x{tiles.block_k}", "threads": tiles.threads}
        place = {"example": example.name, "launch": launch.plan.name, "arch": arch}
        yield place | chosen | asdict(resources(launch))


def shown(row: Row) -> str:
    """A row of the table."""
    where = f"{row['example']:20} {row.get('launch', ''):20} {row['arch']:8}"
    if "refused" in row:
        return f"{where} {row['refused']}"
    spilled = f"{row['spill_stores']}+{row['spill_loads']}"
    return (
        f"{where} {row['tiles']:>8} {row['threads']:7} {row['registers']:9} {spilled:>13} "
        f"{row['shared_memory']:7} {row['lines']:5}"
    )


def environment() -> dict[str, str]:
    """What the figures depend on."""
    nvcc, *options = command("ARCH", Path("kernel.cu"))
    found = re.search(r"release \S+ (V\S+)", version_of(nvcc))
    assert found is not None
    words = ("nvcc", *(word for word in options if not word.startswith("-I")))
    return {
        "nvcc": found[1],
        "versions": version_line(),
        "dtype": str(DTYPE).removeprefix("torch."),
        "date": str(date.today()),
        "command": "make resources",
        "compiled by": " ".join(words),
    }


def written(report: list[Row]) -> str:
    """The report as JSON, a line for each kernel."""
    lines = ",\n".join(f"    {json.dumps(row)}" for row in report)
    head = json.dumps(environment(), indent=4).replace("\n}", "\n  }")
    return f'{{\n  "environment": {head},\n  "kernels": [\n{lines}\n  ]\n}}\n'


def main() -> None:
    """Compile everything, print a table, and write the JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path, required=True)
    options = parser.parse_args()
    print(HEADING)
    report: list[Row] = []
    for example in EXAMPLES:
        for arch in ARCHS:
            for row in rows(example, arch):
                print(shown(row), flush=True)
                report.append(row)
    options.json.write_text(written(report), encoding="utf-8")


if __name__ == "__main__":
    main()
