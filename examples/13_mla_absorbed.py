"""MLA as DeepSeek decodes: all heads attend to one latent, whose first features are the values.

DeepSeek-AI, "DeepSeek-V2: A Strong, Economical, and Efficient Mixture-of-Experts Language Model"
(2024), section 2.1.2; sizes of DeepSeek-V3, with fewer heads. `07_mla.py` is the form for prompts.

A key without position is a product of the latent with a matrix of its head, k = W·c, and so is a
value. As q · (W·c) = (Wᵀ·q) · c, the matrix can be applied to the query instead, and that of the
values to the output. Then the cache holds no keys and values of heads, but for each token 512
features of the latent and 64 that are rotated, and the latent is key and value at once.

So there is one key head, and each tile of the cache serves all query heads. Values are a view of
the cache: nothing is copied. The scale is that of the form for prompts, by 192 features and YaRN.

    python examples/13_mla_absorbed.py
"""

from __future__ import annotations

import math

from common import Sizes, compare, normal
from torch import Tensor

import attnfuse as af

# In the model 128 heads.
SIZES = Sizes(heads=16, key_heads=1, head_dim=576, value_dim=512, q_len=2, kv_len=300, batch=2)
SCALE = 192**-0.5 * (0.1 * math.log(40.0) + 1.0) ** 2


@af.variant
def mla_absorbed(q: af.Query, k: af.Key, v: af.Value) -> af.Traced:
    """Scores with the whole cache, a causal softmax, the latent as values."""
    s = af.mask(af.scores(q, k, scale=SCALE), af.causal())
    return af.attend(af.softmax(s), v)


def inputs(sizes: Sizes) -> tuple[Tensor, ...]:
    """Queries of the last tokens, which know W; the cache, and its latent part."""
    q = normal(sizes.batch, sizes.heads, sizes.q_len, sizes.head_dim, seed=0)
    cache = normal(sizes.batch, sizes.key_heads, sizes.kv_len, sizes.head_dim, seed=1)
    return q, cache, cache[..., : sizes.value_dim]


def main() -> None:
    """Run it for two sequences, with two new tokens each."""
    compare(mla_absorbed, *inputs(SIZES))


if __name__ == "__main__":
    main()
