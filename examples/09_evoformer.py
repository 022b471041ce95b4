"""AlphaFold 2's row attention with pair bias, in the Evoformer: along each row of an alignment.

Jumper et al., "Highly accurate protein structure prediction with AlphaFold" (2021), supplement,
algorithm 7. Heads and features are the model's.

An alignment has N rows (sequences) of S residues. In each row residues attend to residues, with a
bias (heads, S, S) from the pair representation, the same for all rows; residues that are missing
get 10⁹ · (mask − 1); and the output is multiplied by σ(gate), inside the kernel.

Tensors have two batch axes, rows and proteins, (N, proteins, heads, S, features); the order is
chosen so that the pair bias (proteins, heads, S, S) lies along the last axes of the scores, and
`af.bias` takes it as it is. `af.b` counts through both axes.

A row whose residues are all missing would average the values, as in the model, but only up to
float32: 10⁹ swallows the scores. With `af.mask(s, mask[af.b, af.k] > 0)` it would get 0.

    python examples/09_evoformer.py
"""

from __future__ import annotations

from dataclasses import replace

from common import Sizes, compare, normal
from torch import Tensor

import attnfuse as af

ROWS = 6  # in training 128 rows of 256 residues
SIZES = Sizes(batch=2, heads=8, key_heads=8, head_dim=32, value_dim=32, q_len=250, kv_len=250)


@af.variant
def row_attention(
    q: af.Query,
    k: af.Key,
    v: af.Value,
    mask: af.Captured,
    pair: af.Captured,
    gate: af.Captured,
) -> af.Traced:
    """Softmax of scores and both biases; the output is gated."""
    s = af.bias(af.scores(q, k), pair)
    s = af.bias(s, 1e9 * (mask[af.b, af.k] - 1.0))
    return af.gate(af.attend(af.softmax(s), v), gate)


def inputs(sizes: Sizes) -> tuple[Tensor, ...]:
    """Some rows of each protein; residues are missing here and there."""
    rows = replace(sizes, batch=ROWS * sizes.batch)
    q, k, v = (each.view(ROWS, sizes.batch, *each.shape[1:]) for each in rows.qkv())
    mask = (normal(rows.batch, sizes.kv_len, seed=3) > -1.0).float()
    pair = normal(sizes.batch, sizes.heads, sizes.q_len, sizes.kv_len, seed=4)
    gate = normal(*q.shape[:-1], sizes.value_dim, seed=5)
    return q, k, v, mask, pair, gate


def main() -> None:
    """Run it on two proteins at a time."""
    compare(row_attention, *inputs(SIZES))


if __name__ == "__main__":
    main()
