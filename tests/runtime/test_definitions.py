"""What keys in graphs mean, in this process and in later ones."""

# What transforms functions has no types in PyTorch.
# pyright: reportUnknownMemberType=false, reportUnknownLambdaType=false
# pyright: reportUnknownArgumentType=false, reportUnknownVariableType=false

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from attending import plain
from torch import Tensor

import attnfuse as af
from attnfuse.errors import CorruptProgram, UnknownDefinition
from attnfuse.ir.program import Program
from attnfuse.ir.serial import dump
from attnfuse.runtime import definitions
from attnfuse.runtime.definitions import define, find, keep

META = [torch.empty(1, 2, 3, 8, device="meta")] * 3


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The folder of definitions of a process that has just begun."""
    monkeypatch.setattr(definitions, "_known", dict[str, Program]())
    with af.use(cache_dir=tmp_path):
        yield tmp_path / "definitions"


def program() -> Program:
    return af.variant(plain).trace(*META)


def forget() -> None:
    definitions._known.clear()  # pyright: ignore[reportPrivateUsage]


def test_a_later_process_finds_what_was_kept(folder: Path) -> None:
    key = define(program())
    assert find(key) is not None and not folder.exists()
    keep(key)
    assert (folder / f"{key}.json").read_text("utf-8") == dump(program())
    forget()
    assert find(key) == program()


def test_whoever_makes_a_graph_keeps_its_definitions(folder: Path) -> None:
    """Also where the folder was cleared since, or is another one by now."""
    graph = torch.compile(af.variant(plain), backend="aot_eager", fullgraph=True)
    out = graph(*META)
    (path,) = folder.iterdir()
    assert isinstance(out, Tensor) and path.stem == define(program())
    path.unlink()
    torch.export.export(Model(), tuple(META))
    assert path.exists()
    with af.use(cache_dir=folder / "other"):
        torch.export.export(Model(), tuple(META))
    assert (folder / "other" / "definitions" / path.name).exists()


class Model(torch.nn.Module):
    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> object:
        return af.variant(plain)(q, k, v)


def test_an_unknown_key_is_refused_with_the_folder(folder: Path) -> None:
    problem = f"no definition of attention 0123 in {folder}; compile or export the graph anew"
    with pytest.raises(UnknownDefinition, match=problem):
        find("0123")


@pytest.mark.parametrize("damage", [b"", b"\xff\xfe", b"{}", b'{"format":1}'])
def test_a_damaged_definition_is_refused_and_written_anew(folder: Path, damage: bytes) -> None:
    key = define(program())
    keep(key)
    path = folder / f"{key}.json"
    path.write_bytes(damage)
    forget()
    with pytest.raises(CorruptProgram):
        find(key)
    keep(define(program()))
    forget()
    assert find(key) == program()


def test_a_definition_under_another_s_key_is_refused(folder: Path) -> None:
    key = define(program())
    keep(key)
    (folder / f"{key}.json").rename(folder / f"{'0' * 32}.json")
    with pytest.raises(CorruptProgram, match=f"{'0' * 32}.json holds {key}"):
        find("0" * 32)


def test_a_folder_that_can_not_be_written_is_logged(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder.write_text("")
    key = define(program())
    with caplog.at_level(logging.INFO, "attnfuse.runtime"):
        keep(key)
    assert f"the definition of {key} is in this process only" in caplog.text
    assert find(key) == program()
