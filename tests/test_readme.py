"""The README's variants compile and run as they stand there."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

README = (Path(__file__).parents[1] / "README.md").read_text(encoding="utf-8")


def block(with_text: str) -> str:
    """The Python block of the README that contains ``with_text``."""
    blocks = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    (found,) = (each for each in blocks if with_text in each)
    return str(found)


def run(tmp_path: Path, text: str, **names: object) -> dict[str, Any]:
    """Run a block, from a file so that its functions have source text."""
    file = tmp_path / "readme_block.py"
    file.write_text(text, encoding="utf-8")
    namespace: dict[str, Any] = {"__name__": "readme_block", **names}
    exec(compile(text, file, "exec"), namespace)
    return namespace


def test_the_variants_of_the_readme_run(tmp_path: Path) -> None:
    q = torch.randn(1, 4, 70, 128)
    k, v = torch.randn(1, 2, 70, 128), torch.randn(1, 2, 70, 128)
    first = block("af.rope_tables").replace('device="cuda"', 'device="cpu"')
    names = run(tmp_path, first, q=q, k=k, v=v)
    out, lse = names["out"], names["lse"]
    exact, exact_lse = names["llama"].reference(q, k, v, names["cos"], names["sin"])
    torch.testing.assert_close(out.double(), exact, atol=1e-5, rtol=0)
    torch.testing.assert_close(lse.double(), exact_lse, atol=1e-5, rtol=0)

    second = run(tmp_path, block("def documents("), **{n: names[n] for n in ("af",)})["documents"]
    doc = torch.arange(70).unsqueeze(0) // 20
    captured = (doc, torch.randn(4, 255), torch.rand(4), torch.tensor(0.8))
    got = second(q, k, v, *captured)
    wanted = second.reference(q, k, v, *captured)
    assert isinstance(got, Tensor)
    torch.testing.assert_close(got.double(), wanted, atol=1e-5, rtol=0)

    shown = {**names, "q": q.bfloat16(), "k": k.bfloat16(), "v": v.bfloat16()}
    run(tmp_path, block("llama.explain"), **shown)


def test_the_piece_of_source_is_what_the_compiler_writes() -> None:
    golden = Path(__file__).parent / "golden/kernels/test_lowering/test_llama_program-a100.py"
    assert block("T.Pipelined(").strip("\n") in golden.read_text(encoding="utf-8")
