from __future__ import annotations

import subprocess
import sys

import pytest
import torch
from cases import CASES, Case, Sizes

from attnfuse.egraph.explain import explain
from attnfuse.egraph.facts import Choice
from attnfuse.egraph.saturate import Stop
from attnfuse.egraph.search import Found, Search
from attnfuse.ir.program import Program
from attnfuse.ir.verify import verify
from attnfuse.rewrites import RULES
from attnfuse.testing import replay

COSTS = {"mul": 3.0, "mask": 2.0, "contract": 100.0, "softmax": 20.0, "rotate": 10.0, "tanh": 9.0}


def cost(choice: Choice) -> float:
    return 0.0 if choice.known.closed is not None else COSTS.get(choice.op.name, 1.0)


def _search(case: Case) -> tuple[Program, Found]:
    sizes = Sizes(batch=2, q_len=5, kv_len=7)
    inputs, extra = case.inputs(sizes, torch.float32, torch.Generator().manual_seed(0))
    program = case.variant.trace(*inputs, **extra)
    return program, Search(program.outputs, RULES, cost, count=3).run()


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_every_form_of_an_example_is_the_same_program(case: Case) -> None:
    program, found = _search(case)
    assert found.report.stop is Stop.saturated
    assert found.extraction.proved
    for alternative in explain(found).alternatives:
        verify(Program(program.name, program.inputs, alternative.candidate.terms))
        for derivation in alternative.derivations:
            result = replay(derivation)
            assert result.wrong is None, str(result)


def _best_digests() -> str:
    return " ".join(
        term.digest for case in CASES for term in _search(case)[1].extraction.best.terms
    )


def test_every_process_finds_the_same() -> None:
    """Whatever the hashes of this process: what is found goes into caches on disk."""
    program = "import sys; sys.path[:0] = sys.argv[1:]; import test_examples as t; "
    program += "print(t._best_digests())"
    paths = [path for path in sys.path if path]
    folder = __file__.rsplit("/", 1)[0]
    outputs = {
        subprocess.run(
            [sys.executable, "-c", program, folder, *paths],
            env={"PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout.strip()
        for seed in ("1", "2")
    }
    assert outputs == {_best_digests()}
