"""The `hopper` schedule where there is no GPU: what it takes, and what it becomes."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import replace

import pytest
import torch
from nvcc import resources
from shown import EXAMPLES, Example

import attnfuse as af
from attnfuse.backends.tilelang.compilers import find_nvcc
from attnfuse.compiled import Choice
from attnfuse.devices import find_device
from attnfuse.plan.schedule import shared_memory

TAKEN = ("llama", "t5", "gpt_oss")
"""A rotation of queries, a table, a window with sinks."""


@pytest.fixture(autouse=True)
def hopper_allowed() -> Generator[None]:
    """It is not among the schedules by default."""
    with af.use(schedules="hopper,pipelined"):
        yield


def last(example: Example, dtype: torch.dtype, device: str = "h200") -> Choice:
    """The kernels of an example for any sizes."""
    sizes = replace(example.sizes, q_len=16, kv_len=16)
    tensors = example.inputs(sizes, dtype, "meta")
    return example.variant.compile(*tensors, **example.constants, device=device).choices[-1]


def schedules(choice: Choice) -> list[str]:
    """The schedule of each launch."""
    return [launch.plan.schedule.name for launch in choice.launches]


@pytest.mark.parametrize("name", TAKEN)
def test_programs_lower_and_compile_without_spills(name: str) -> None:
    example = next(example for example in EXAMPLES if example.name == name)
    choice = last(example, torch.bfloat16)
    assert schedules(choice)[-1] == "hopper" and set(schedules(choice)) <= {"hopper", "pass"}
    launch = choice.launches[-1]
    used = launch.lowered.shared_memory
    assert used <= shared_memory(launch.plan) <= find_device("h200").shared_memory
    assert {each.tensor for each in launch.lowered.tensor_maps} >= {"v", "out"}
    assert "setmaxnreg" in launch.lowered.text or "warpgroup_reg_alloc" in launch.lowered.text
    if find_nvcc() is not None:
        found = resources(launch)
        assert (found.spill_stores, found.spill_loads) == (0, 0), found


def test_keys_are_prepared_by_a_pass_only_for_this_schedule() -> None:
    """Float32 has no such kernel, nor have other GPUs, nor few queries."""
    llama = next(example for example in EXAMPLES if example.name == "llama")
    assert schedules(last(llama, torch.bfloat16)) == ["pass", "hopper"]
    assert schedules(last(llama, torch.float32)) == ["pipelined"]
    assert schedules(last(llama, torch.bfloat16, "a100")) == ["pipelined"]
    tensors = llama.inputs(replace(llama.sizes, q_len=16, kv_len=16), torch.bfloat16, "meta")
    few = llama.variant.compile(*tensors, device="h200").choices[0]
    assert few.guard is not None and schedules(few) == ["pipelined"]


def test_without_the_setting_nothing_changes() -> None:
    llama = next(example for example in EXAMPLES if example.name == "llama")
    with af.use(schedules="pipelined"):
        assert schedules(last(llama, torch.bfloat16)) == ["pipelined"]
    assert schedules(last(llama, torch.bfloat16)) == ["pass", "hopper"]
