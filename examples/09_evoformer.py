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

from common import compare, normal

import attnfuse as af

ROWS, PROTEINS, RESIDUES = 6, 2, 250  # in training 128 rows of 256 residues
HEADS, HEAD_DIM = 8, 32


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


def main() -> None:
    """Run it on two proteins at a time."""
    shape = (ROWS, PROTEINS, HEADS, RESIDUES, HEAD_DIM)
    q, k, v, gate = (normal(*shape, seed=seed) for seed in range(4))
    pair = normal(PROTEINS, HEADS, RESIDUES, RESIDUES, seed=4)
    mask = (normal(ROWS * PROTEINS, RESIDUES, seed=5) > -1.0).float()
    compare(row_attention, q, k, v, mask, pair, gate)


if __name__ == "__main__":
    main()
