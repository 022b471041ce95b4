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


ALIKE = ("sm_86", "sm_89")
"""Architectures with the same programs (tested below): each variant is lowered for one of them."""


def _pairs() -> list[tuple[Example, str]]:
    """Each variant for each architecture; choices of constants in turn."""
    forms: dict[str, list[Example]] = {}
    for example in EXAMPLES:
        forms.setdefault(example.variant.name, []).append(example)
    return [
        (each[i % len(each)], arch)
        for place, each in enumerate(forms.values())
        for i, arch in enumerate(ARCHS)
        if arch != ALIKE[place % 2]
    ]


PAIRS = _pairs()
TOO_LARGE = {("mla_absorbed", "gfx942")}
"""What no tiles of the schedules are small enough for. All other pairs have to lower."""
LARGE = [pair for pair in PAIRS if (pair[0].name, pair[1]) in TOO_LARGE]


def compiled(example: Example, arch: str, dtype: torch.dtype | None = None) -> Compiled:
    """An example for an architecture; element types are shared out."""
    dtype = dtype or (torch.float16, torch.bfloat16)[ARCHS.index(arch) % 2]
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


SAMPLE = {
    *(("llama", "sm_100a"), ("gpt_oss", "sm_120a"), ("documents", "sm_80")),
    *(("t5", "sm_86"), ("alibi", "sm_89"), ("cross_attention", "sm_90a")),
}
"""What nvcc compiles, where it is: one program for each architecture."""


@pytest.mark.parametrize(
    ("example", "arch"), [each for each in PAIRS if each not in LARGE], ids=name
)
def test_every_example_lowers_for_every_architecture(example: Example, arch: str) -> None:
    for launch in compiled(example, arch).launches:
        lowered = launch.lowered
        assert f"{launch.plan.name}_kernel" in lowered.text and "__global__" in lowered.text
        assert 0 < lowered.shared_memory <= shared_memory(launch.plan)
        assert lowered.shared_memory <= find_device(arch).shared_memory
        if (example.name, arch) in SAMPLE and find_nvcc() is not None:
            found = resources(launch)
            assert (found.spill_stores, found.spill_loads) == (0, 0), found


@pytest.mark.parametrize("example", EXAMPLES, ids=name)
def test_programs_for_similar_architectures_differ_in_their_headings_alone(
    example: Example,
) -> None:
    one, other = (compiled(example, arch, torch.float16).launches for arch in ALIKE)
    for this, that in zip(one, other, strict=True):
        texts = [launch.source.text.split("import tilelang", 1)[1] for launch in (this, that)]
        assert texts[0] == texts[1]


def test_a_program_is_compiled_for_each_architecture_of_nvidia_s() -> None:
    assert {(example.name, arch) for example, arch in PAIRS} >= SAMPLE
    assert sorted(arch for _, arch in SAMPLE) == CUDA
