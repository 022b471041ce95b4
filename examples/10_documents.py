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
from common import Sizes, compare, normal
from torch import Tensor

import attnfuse as af

# In the model 32 and 8 heads.
SIZES = Sizes(heads=4, key_heads=1, head_dim=128, value_dim=128, q_len=384, kv_len=384, batch=2)
THETA = 500000.0


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


def packing(batch: int, length: int) -> tuple[Tensor, Tensor]:
    """The document of each token, and its position in it: (batch, length), int32."""
    starts = normal(batch, length, seed=3) > 2.3  # so that documents have some 90 tokens
    token = torch.arange(length)
    first = torch.where(starts, token, 0).cummax(-1).values
    return starts.cumsum(-1).int(), (token - first).int()


def inputs(sizes: Sizes) -> tuple[Tensor, ...]:
    """Random queries, keys and values, two packings in a batch, and rotation tables."""
    packed = packing(sizes.batch, sizes.positions)
    tables = af.rope_tables(sizes.positions, sizes.rotary_dim, theta=THETA)
    return (*sizes.qkv(), *packed, *tables)


def main() -> None:
    """Run it on two rows of several documents."""
    compare(documents, *inputs(SIZES))


if __name__ == "__main__":
    main()
