"""Packed documents: several in one row of a batch, none of which sees another.

As Llama 3 was trained: "an attention mask that prevents self-attention between different documents
within the same sequence" (Grattafiori et al., "The Llama 3 Herd of Models", 2024, section 3.2).
Sizes of Llama 3 8B, with fewer heads.

Each token knows its document and its position in it. Positions start again with each document, and
are rows of one pair of rotation tables. (Scores depend on differences of positions only, so within
a document that changes nothing but rounding; it keeps positions within what was trained.) Rows of
the batch are packed differently; the kernel reads both from small integer tensors. It leaves out
keys after the last query of a tile; those of earlier documents it computes, and then hides.

    python examples/10_documents.py
"""

from __future__ import annotations

import torch
from common import compare, normal
from torch import Tensor

import attnfuse as af

HEADS, KEY_HEADS, HEAD_DIM, THETA = 4, 1, 128, 500000.0  # in the model 32 and 8 heads
PACKED = ((150, 90, 110, 34), (17, 300, 67))  # the lengths of the documents in each row
LENGTH = sum(PACKED[0])


@af.variant
def documents(
    q: af.Query,
    k: af.Key,
    v: af.Value,
    doc: af.Captured,
    positions: af.Captured,
    cos: af.Captured,
    sin: af.Captured,
) -> af.Traced:
    """RoPE by positions within documents; a key is seen by its own document's later queries."""
    q_turned = af.rope(q, cos, sin, positions=positions[af.b, af.q])
    k_turned = af.rope(k, cos, sin, positions=positions[af.b, af.k])
    same = doc[af.b, af.q] == doc[af.b, af.k]
    s = af.mask(af.scores(q_turned, k_turned), same & af.causal())
    return af.attend(af.softmax(s), v)


def packing(rows: tuple[tuple[int, ...], ...]) -> tuple[Tensor, Tensor]:
    """The document of each token, and its position in it: (batch, length), int32."""
    docs = [torch.arange(len(row)).repeat_interleave(torch.tensor(row)) for row in rows]
    positions = [torch.cat([torch.arange(length) for length in row]) for row in rows]
    return torch.stack(docs).int(), torch.stack(positions).int()


def main() -> None:
    """Run it on two rows, which hold four documents and three."""
    batch = len(PACKED)
    q = normal(batch, HEADS, LENGTH, HEAD_DIM, seed=0)
    k, v = (normal(batch, KEY_HEADS, LENGTH, HEAD_DIM, seed=seed) for seed in (1, 2))
    doc, positions = packing(PACKED)
    cos, sin = af.rope_tables(max(map(max, PACKED)), HEAD_DIM, theta=THETA)
    compare(documents, q, k, v, doc, positions, cos, sin)


if __name__ == "__main__":
    main()
