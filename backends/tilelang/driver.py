"""The few calls of the CUDA driver that loading and launching a kernel takes.

They are there from CUDA 12.4 on. A library of the driver belongs to no
device, so one load serves all of them.
"""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from functools import cache
from typing import Any

from attnfuse.backends.tilelang.tensor_maps import TensorMap, number
from attnfuse.errors import DriverFailed

_MAX_DYNAMIC_SHARED_MEMORY = 8  # CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
_TENSOR_MAP_BYTES, _TENSOR_MAP_ALIGNMENT = 128, 64  # struct CUtensorMap
_INVALID_CONTEXT = 201  # CUDA_ERROR_INVALID_CONTEXT
_BUFFER_POINTER, _BUFFER_SIZE = 1, 2  # CU_LAUNCH_PARAM_BUFFER_POINTER, …_SIZE


class _Extra(ctypes.Structure):
    """How a launch is told that its parameters lie packed in one buffer."""

    _fields_ = (
        ("pointer_follows", ctypes.c_void_p),
        ("pointer", ctypes.c_char_p),
        ("size_follows", ctypes.c_void_p),
        ("size", ctypes.c_void_p),
        ("end", ctypes.c_void_p),
    )


@cache
def _driver() -> Any:
    return ctypes.CDLL("libcuda.so.1")


def load_kernel(binary: bytes, name: str) -> int:
    """A handle of the kernel ``name`` in a cubin; it stays loaded.

    Raises:
        DriverFailed: the driver doesn't take it.
    """
    library, kernel = ctypes.c_void_p(), ctypes.c_void_p()
    nothing = (None, None, 0, None, None, 0)
    _check("cuLibraryLoadData", ctypes.byref(library), binary, *nothing)
    _check("cuLibraryGetKernel", ctypes.byref(kernel), library, name.encode())
    assert kernel.value is not None
    return kernel.value


def parameter_offsets(kernel: int, count: int) -> list[int]:
    """Where each of a kernel's parameters begins among the packed arguments.

    The driver is asked since headers differ: a `CUtensorMap` is aligned to 64 bytes by those of
    CUDA 12 and to 128 by those of CUDA 13.
    """
    handle, offset, size = ctypes.c_void_p(kernel), ctypes.c_size_t(), ctypes.c_size_t()
    offsets: list[int] = []
    for index in range(count):
        place = (ctypes.c_size_t(index), ctypes.byref(offset), ctypes.byref(size))
        _check("cuKernelGetParamInfo", handle, *place)
        offsets.append(offset.value)
    return offsets


def allow_shared_memory(kernel: int, size: int, device: int) -> None:
    """Let the blocks of a kernel have ``size`` bytes of shared memory on a device.

    Raises:
        DriverFailed: that is more than the device has.
    """
    handle = ctypes.c_void_p(kernel)
    _check("cuKernelSetAttribute", _MAX_DYNAMIC_SHARED_MEMORY, size, handle, device)


def encode_tensor_map(tensor_map: TensorMap, address: int, values: Mapping[str, int]) -> bytes:
    """The bytes of a `CUtensorMap`.

    Args:
        tensor_map: what it is to hold.
        address: of the tensor, a multiple of 16.
        values: sizes and strides by name. A size of 0, which the driver refuses, counts as 1:
            whoever has no elements doesn't copy any.

    Raises:
        DriverFailed: the driver refused, as for strides that are no multiples of 16 bytes.
    """
    rank = len(tensor_map.sizes)
    sizes = [max(number(size, values), 1) for size in tensor_map.sizes]
    strides = [number(stride, values) for stride in tensor_map.strides]
    room = ctypes.create_string_buffer(2 * _TENSOR_MAP_BYTES)
    start = -ctypes.addressof(room) % _TENSOR_MAP_ALIGNMENT
    _check(
        "cuTensorMapEncodeTiled",
        ctypes.c_void_p(ctypes.addressof(room) + start),
        *(tensor_map.dtype, rank, ctypes.c_void_p(address)),
        (ctypes.c_uint64 * rank)(*sizes),
        (ctypes.c_uint64 * rank)(*strides),
        (ctypes.c_uint32 * rank)(*tensor_map.box),
        (ctypes.c_uint32 * rank)(*tensor_map.steps),
        *tensor_map.modes,
    )
    return room.raw[start : start + _TENSOR_MAP_BYTES]


class Launcher:
    """Launches one kernel with one grid.

    Args:
        kernel: its handle.
        grid: blocks in x, y and z.
        threads: threads of a block.
        shared_memory: bytes of shared memory of a block.
        parameters: bytes of all its parameters, packed as in a C struct.
    """

    def __init__(
        self,
        kernel: int,
        grid: tuple[int, int, int],
        threads: int,
        shared_memory: int,
        parameters: int,
    ) -> None:
        self._launch = _driver().cuLaunchKernel
        self._size = ctypes.c_size_t(parameters)
        self._at_size = ctypes.addressof(self._size)
        sizes = map(ctypes.c_uint, (*grid, threads, 1, 1, shared_memory))
        self._fixed = (ctypes.c_void_p(kernel), *sizes)

    def __call__(self, parameters: bytes, stream: int, device: int) -> None:
        """Launch on a stream of the current device, whose number is ``device``.

        Raises:
            DriverFailed: the driver refused.
        """
        extra = _Extra(_BUFFER_POINTER, parameters, _BUFFER_SIZE, self._at_size, None)
        own = (ctypes.c_void_p(stream), None, ctypes.byref(extra))
        status = self._launch(*self._fixed, *own)
        if status == _INVALID_CONTEXT:  # a thread that has done nothing on the GPU so far
            _enter_context(device)
            status = self._launch(*self._fixed, *own)
        if status:
            _refuse("cuLaunchKernel", status)


def _enter_context(device: int) -> None:
    """Make the context that PyTorch uses on a device this thread's."""
    handle, context = ctypes.c_int(), ctypes.c_void_p()
    _check("cuDeviceGet", ctypes.byref(handle), device)
    _check("cuDevicePrimaryCtxRetain", ctypes.byref(context), handle)
    _check("cuCtxSetCurrent", context)


def _check(function: str, *arguments: Any) -> None:
    status = getattr(_driver(), function)(*arguments)
    if status:
        _refuse(function, status)


def _refuse(function: str, status: int) -> None:
    text = ctypes.c_char_p()
    _driver().cuGetErrorString(status, ctypes.byref(text))
    raise DriverFailed(function=function, status=status, text=(text.value or b"").decode())
