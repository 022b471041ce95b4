"""Device profiles, read from the data files beside this module."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING

from attnfuse.errors import MixedDevices, UnknownDevice

if TYPE_CHECKING:
    import torch
    from torch import Tensor


@dataclass(frozen=True)
class Device:
    """What kernels are made for.

    Attributes:
        name: the name of the profile, ``h200`` for example.
        title: the name that the vendor's runtime reports.
        kind: ``cuda``, ``hip`` or ``cpu``.
        arch: the architecture as the target compiler spells it, ``sm_90a`` for example.
        shared_memory: bytes of shared memory that one block can have; 0 on a CPU.
        stages: how many key/value tiles a software pipeline keeps in flight.
        processors: streaming multiprocessors; 0 where no schedule asks for them.
    """

    name: str
    title: str
    kind: str
    arch: str
    shared_memory: int
    stages: int
    processors: int = 0


@cache
def all_devices() -> dict[str, Device]:
    """Every profile by name."""
    folder = files("attnfuse.devices") / "data"
    texts = {entry.name.removesuffix(".toml"): entry.read_text() for entry in folder.iterdir()}
    return {name: Device(name=name, **tomllib.loads(texts[name])) for name in sorted(texts)}


def find_device(name: str) -> Device:
    """The profile called ``name``, or the first one of an architecture.

    Raises:
        UnknownDevice: there is none.
    """
    devices = all_devices()
    by_arch = (device for device in devices.values() if device.arch == name)
    found = devices.get(name) or next(by_arch, None)
    if found is None:
        raise UnknownDevice(name=name, known=", ".join(devices))
    return found


def device_of(tensors: Mapping[str, Tensor]) -> Device:
    """The profile of the device that all of these tensors are on.

    Raises:
        MixedDevices: they are on several.
        UnknownDevice: there is no profile for it.
    """
    place = place_of(tensors)
    if place.type == "cuda":
        return _gpu(place.index)
    if place.type in ("cpu", "meta"):
        return all_devices()["cpu"]
    raise UnknownDevice(name=str(place), known=", ".join(all_devices()))


def place_of(tensors: Mapping[str, Tensor]) -> torch.device:
    """PyTorch's own word for the device that all of these tensors are on.

    Raises:
        MixedDevices: they are on several.
    """
    places = {name: tensor.device for name, tensor in tensors.items()}
    if len(set(places.values())) > 1:
        given = ", ".join(f"{name} on {place}" for name, place in places.items())
        raise MixedDevices(given=given)
    return next(iter(places.values()))


@cache
def _gpu(index: int | None) -> Device:
    """The profile of a GPU: by its title, else the first one of its architecture."""
    import torch

    title = torch.cuda.get_device_name(index)
    by_title = [device for device in all_devices().values() if device.title in title]
    major, minor = torch.cuda.get_device_capability(index)
    return by_title[0] if by_title else find_device(f"sm_{major}{minor}{'a' * (major >= 9)}")
