"""What the driver is told at a launch: tensor maps, and the places of parameters."""

from __future__ import annotations

import ctypes
import json
from dataclasses import asdict
from pathlib import Path

import pytest
import torch

import attnfuse as af
from attnfuse.backends.tilelang import arguments
from attnfuse.backends.tilelang.arguments import Arguments
from attnfuse.backends.tilelang.binaries import Built
from attnfuse.backends.tilelang.lower import lower
from attnfuse.backends.tilelang.source import Source
from attnfuse.backends.tilelang.tensor_maps import TensorMap, number, read
from attnfuse.devices import find_device

COPY = """
import tilelang.language as T

rows = T.dynamic("rows")
heads = T.dynamic("heads")
x_stride_h = T.dynamic("x_stride_h", "int64")
x_stride_r = T.dynamic("x_stride_r", "int64")

@T.prim_func
def copy(
    x: T.StridedTensor([heads, rows, 64], [x_stride_h, x_stride_r, 1], "float16"),
    y: T.Tensor([heads, rows, 64], "float16"),
):
    with T.Kernel(T.ceildiv(rows, 32), heads, threads=128) as (block, h):
        tile = T.alloc_shared((32, 64), "float16")
        arrived = T.alloc_barrier(1)
        if T.get_thread_binding() < 32:
            T.tma_copy(
                x[h, block * 32:(block + 1) * 32, :], tile, barrier=arrived,
                annotations={"emit_arrive": 1},
            )
        T.barrier_wait(arrived, 0)
        for i, j in T.Parallel(32, 64):
            y[h, block * 32 + i, j] = tile[i, j]
"""
MAP = TensorMap(
    name="x_desc",
    tensor="x",
    dtype=6,
    sizes=(("", 64), ("rows", 1), ("heads", 1)),
    strides=(("x_stride_r", 2), ("x_stride_h", 2)),
    box=(64, 32, 1),
    steps=(1, 1, 1),
    modes=(0, 3, 2, 0),
)


def test_what_the_copy_engine_is_told_comes_from_tilelang(tmp_path: Path) -> None:
    lowered = lower(Source("copy", find_device("h200"), COPY), tmp_path)
    (own,) = lowered.tensor_maps
    assert (own.name, own.tensor, own.dtype) == (MAP.name, MAP.tensor, MAP.dtype)
    assert (own.sizes, own.strides) == (MAP.sizes, MAP.strides)
    assert own.box[1:] == (32, 1) and own.box[0] * 2 <= 128 and own.steps == (1, 1, 1)
    assert "const CUtensorMap x_desc" in lowered.text


def test_a_tensor_map_survives_its_json() -> None:
    assert read(json.loads(json.dumps(asdict(MAP)))) == MAP
    assert [number(each, {"rows": 5, "heads": 7}) for each in MAP.sizes] == [64, 5, 7]
    assert number(("x_stride_r", 2), {"x_stride_r": 2**40}) == 2**41


class Packed(ctypes.Structure):
    """The parameters as a C compiler would lay them out; the map is aligned by hand."""

    _fields_ = (
        ("v", ctypes.c_uint64),
        ("padding", ctypes.c_char * 120),
        ("k_map", ctypes.c_char * 128),
        ("out", ctypes.c_uint64),
        ("kv_len", ctypes.c_int32),
        ("stride", ctypes.c_int64),
        ("q_len", ctypes.c_int32),
    )


@af.variant
def plain(q: af.Query, k: af.Key, v: af.Value) -> af.Traced:
    """Anything with three inputs and an output."""
    return af.attend(af.softmax(af.scores(q, k)), v)


def test_parameters_lie_where_c_puts_them(monkeypatch: pytest.MonkeyPatch) -> None:
    encoded: list[int] = []

    def encode(own: TensorMap, address: int, values: dict[str, int]) -> bytes:
        encoded.append(address)
        return address.to_bytes(128, "little")

    monkeypatch.setattr(arguments, "encode_tensor_map", encode)
    meta = [torch.empty(1, 1, 4, 16, dtype=torch.float16, device="meta")] * 3
    plan = plain.compile(*meta, device="h200").launches[0].plan
    own = TensorMap("k_map", "k", 6, MAP.sizes, MAP.strides, MAP.box, MAP.steps, MAP.modes)
    kinds = (
        *(("v", "const half_t*"), ("k_map", "const CUtensorMap"), ("out", "half_t*")),
        *(("kv_len", "int"), ("stride", "int64_t"), ("q_len", "int")),
    )
    offsets = [getattr(Packed, name).offset for name, _ in kinds]
    layout = Arguments(plan, Built(Path("one.cubin"), "plain_kernel", kinds, 0, (own,)), offsets)
    told = layout.told({"kv_len": -3, "stride": 2**40, "q_len": 9})
    got = Packed.from_buffer_copy(told([0x10, 0x20, 0x30, 0x40]).ljust(ctypes.sizeof(Packed)))
    assert layout.size == Packed.q_len.offset + 4
    assert (got.v, got.out) == (0x30, 0x40)
    assert (got.kv_len, got.stride, got.q_len) == (-3, 2**40, 9)
    assert got.k_map[:1] == b"\x20" and encoded == [0x20]
    told([0x10, 0x20, 0x30, 0x40])
    assert encoded == [0x20], "made once for an address"
    told([0x10, 0, 0x30, 0x40])
    assert encoded == [0x20, 0x40], "the driver takes no null, though nothing is read there"
