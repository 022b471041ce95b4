"""Llama 3 8B's attention: rotary embeddings, grouped queries, causal mask.

Compiles it for this machine, runs it, compares it with the float64 reference,
and writes what the compiler generates for several GPUs into ``out/``.

    make demo
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from pathlib import Path

import torch
from common import Sizes
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

import attnfuse as af

SIZES = Sizes(heads=32, key_heads=8, head_dim=128, value_dim=128, q_len=1024, kv_len=1024)
THETA = 500000.0
DEVICES = ("h200", "rtx3090", "a100", "mi300x")
OUT = Path(__file__).parents[1] / "out"


@af.variant
def llama(q: af.Query, k: af.Key, v: af.Value, cos: af.Captured, sin: af.Captured) -> af.Traced:
    """RoPE in the half-split convention, scores scaled by 1/√head_dim, causal softmax."""
    s = af.scores(af.rope(q, cos, sin), af.rope(k, cos, sin))
    s = af.mask(s, af.causal())
    return af.attend(af.softmax(s), v)


def inputs(sizes: Sizes) -> tuple[Tensor, ...]:
    """Random queries, keys and values, and rotation tables."""
    return (*sizes.qkv(), *af.rope_tables(sizes.positions, sizes.rotary_dim, theta=THETA))


def inputs_on(device: str, dtype: torch.dtype) -> tuple[Tensor, ...]:
    """Those of the model's shape; the tables stay in float32."""
    q, k, v, *tables = inputs(SIZES)
    qkv = (each.to(device, dtype) for each in (q, k, v))
    return (*qkv, *(table.to(device) for table in tables))


def run_here(device: str, dtype: torch.dtype) -> None:
    """Compile, run and check on one of this machine's devices."""
    tensors = inputs_on(device, dtype)
    began = time.perf_counter()
    out = llama(*tensors)
    first = time.perf_counter() - began
    exact = llama.reference(*tensors)
    assert isinstance(out, Tensor) and isinstance(exact, Tensor)
    error = (out.double() - exact).abs().max().item()
    print(f"\n{device}, {dtype}: first result after {first:.1f} s, {tuple(out.shape)}")
    print(f"largest error against float64: {error:.2e} (plain PyTorch: {plain_error(tensors):.2e})")
    ours, sdpa = time_beside_sdpa(tensors)
    print(f"median of 9 calls: {ours:.2f} ms; SDPA after an eager rotation: {sdpa:.2f} ms")


def plain(q: Tensor, k: Tensor, v: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """The same in plain PyTorch: rotate, then SDPA."""

    def rotate(x: Tensor) -> Tensor:
        first, second = x.float().chunk(2, -1)
        turned = (first * cos - second * sin, second * cos + first * sin)
        return torch.cat(turned, -1).to(x.dtype)

    return scaled_dot_product_attention(rotate(q), rotate(k), v, is_causal=True, enable_gqa=True)


def plain_error(tensors: tuple[Tensor, ...]) -> float:
    """The largest error of plain PyTorch against float64."""
    exact = llama.reference(*tensors)
    assert isinstance(exact, Tensor)
    return (plain(*tensors).double() - exact).abs().max().item()


def time_beside_sdpa(tensors: tuple[Tensor, ...]) -> tuple[float, float]:
    """Milliseconds of our call and of plain PyTorch's, measured in turns."""
    ours: list[float] = []
    theirs: list[float] = []
    for _ in range(9):
        ours.append(milliseconds(lambda: llama(*tensors), tensors[0].device))
        theirs.append(milliseconds(lambda: plain(*tensors), tensors[0].device))
    return statistics.median(ours), statistics.median(theirs)


def milliseconds(call: Callable[[], object], device: torch.device) -> float:
    """How long one call takes, until the device is done."""
    wait = torch.cuda.synchronize if device.type == "cuda" else (lambda: None)
    wait()
    began = time.perf_counter()
    call()
    wait()
    return (time.perf_counter() - began) * 1e3


def write_programs() -> None:
    """Write the TileLang program, and what it becomes, for each of DEVICES."""
    OUT.mkdir(exist_ok=True)
    tensors = inputs_on("meta", torch.bfloat16)
    for device in DEVICES:
        compiled = llama.compile(*tensors, device=device)
        (launch,) = compiled.launches
        arch, lowered = compiled.device.arch, launch.lowered
        files = {f"llama_{arch}.py": launch.source.text}
        files[f"llama_{arch}.{lowered.extension}"] = lowered.text
        for name, text in files.items():
            (OUT / name).write_text(text, encoding="utf-8")
        print(f"{device:>8} ({arch}): {launch.plan.schedule}")
        print(f"{'':>8} shared memory {lowered.shared_memory} bytes; {', '.join(files)}")


def main() -> None:
    """The whole demonstration."""
    print(llama.explain(*inputs(SIZES)))
    run_here("cpu", torch.float32)
    if torch.cuda.is_available():
        run_here("cuda", torch.bfloat16)
    print(f"\nwriting programs into {OUT.name}/")
    write_programs()


if __name__ == "__main__":
    main()
