"""The examples' programs for every GPU, at the models' head dims: lowered, some compiled."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from nvcc import resources
from shown import EXAMPLES, Example

from attnfuse.backends.tilelang.compilers import find_nvcc
from attnfuse.compiler import Compiled
from attnfuse.devices import all_devices, find_device
from attnfuse.errors import DoesNotFitDevice
from attnfuse.plan.schedule import shared_memory

ARCHS = sorted({device.arch for device in all_devices().values() if device.kind != "cpu"})
CUDA = [arch for arch in ARCHS if find_device(arch).kind == "cuda"]


def _pairs() -> list[tuple[Example, str]]:
    """Each variant for each architecture; choices of constants in turn."""
    forms: dict[str, list[Example]] = {}
    for example in EXAMPLES:
        forms.setdefault(example.variant.name, []).append(example)
    places = list(enumerate(ARCHS))
    return [(each[i % len(each)], arch) for each in forms.values() for i, arch in places]


PAIRS = _pairs()
TOO_LARGE = {("mla_absorbed", "gfx942")}
"""What no tiles of the schedules are small enough for. All other pairs have to lower."""
LARGE = [pair for pair in PAIRS if (pair[0].name, pair[1]) in TOO_LARGE]


def compiled(example: Example, arch: str) -> Compiled:
    """An example for an architecture; element types are shared out."""
    dtype = (torch.float16, torch.bfloat16)[ARCHS.index(arch) % 2]
    tensors = example.inputs(replace(example.sizes, q_len=16, kv_len=16), dtype, "meta")
    return example.variant.compile(*tensors, **example.constants, device=arch)


def name(value: object) -> str:
    """A readable name for a parametrised test."""
    return value.name if isinstance(value, Example) else str(value)


@pytest.mark.parametrize(("example", "arch"), LARGE, ids=name)
def test_what_fits_no_tiles_is_refused_with_the_bytes(example: Example, arch: str) -> None:
    with pytest.raises(DoesNotFitDevice) as caught:
        compiled(example, arch)
    needed, available = caught.value.fields["needed"], caught.value.fields["available"]
    assert isinstance(needed, int) and available == find_device(arch).shared_memory < needed
    assert str(needed) in str(caught.value) and str(available) in str(caught.value)


@pytest.mark.parametrize(
    ("example", "arch"), [each for each in PAIRS if each not in LARGE], ids=name
)
def test_every_example_lowers_for_every_architecture(example: Example, arch: str) -> None:
    for launch in compiled(example, arch).launches:
        lowered = launch.lowered
        assert f"{launch.plan.name}_kernel" in lowered.text and "__global__" in lowered.text
        assert 0 < lowered.shared_memory <= shared_memory(launch.plan)
        assert lowered.shared_memory <= find_device(arch).shared_memory


SAMPLE = [(EXAMPLES[place * 5 % len(EXAMPLES)], arch) for place, arch in enumerate(CUDA)]


@pytest.mark.skipif(find_nvcc() is None, reason="needs nvcc")
@pytest.mark.parametrize(("example", "arch"), SAMPLE, ids=name)
def test_some_examples_compile_without_spills(example: Example, arch: str) -> None:
    for launch in compiled(example, arch).launches:
        found = resources(launch)
        assert (found.spill_stores, found.spill_loads) == (0, 0), found
