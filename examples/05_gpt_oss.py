"""gpt-oss: a learnt sink in each head, a window of 128 keys, RoPE stretched by YaRN.

OpenAI, "gpt-oss-120b & gpt-oss-20b Model Card" (2025); sinks are of Xiao et al., "Efficient
Streaming Language Models with Attention Sinks" (2023), YaRN of Peng et al. (2023). Sizes of the
20B model, with fewer heads.

A sink is a logit z that takes part in the denominator only: p = e^s / (Σ e^s + e^z). So a head may
attend to nothing much, and its probabilities then add up to less than 1. It is neither scaled nor
masked. Every other layer has the window, a query's own key among the 128; the others see all keys
before.

YaRN stretches 4096 positions by 32: slow frequencies are divided by 32, fast ones are kept, and
cosines and sines are multiplied by 0.1 · ln 32 + 1, so that scores grow by the square of that.

    python examples/05_gpt_oss.py
"""

from __future__ import annotations

from common import Sizes, compare, normal
from torch import Tensor

import attnfuse as af

# In the model 64 and 8 heads.
SIZES = Sizes(heads=16, key_heads=2, head_dim=64, value_dim=64, q_len=400, kv_len=400)
WINDOW = 128
THETA = 150000.0
YARN = af.YarnScaling(factor=32.0, original=4096, beta_fast=32.0, beta_slow=1.0, truncate=False)


@af.variant
def gpt_oss(
    q: af.Query,
    k: af.Key,
    v: af.Value,
    sinks: af.Captured,
    cos: af.Captured,
    sin: af.Captured,
) -> af.Traced:
    """RoPE, a window, softmax with a sink."""
    s = af.scores(af.rope(q, cos, sin), af.rope(k, cos, sin))
    s = af.mask(s, af.window(before=WINDOW - 1, after=0))
    return af.attend(af.softmax(s, sink=sinks[af.h]), v)


def inputs(sizes: Sizes) -> tuple[Tensor, ...]:
    """Random queries, keys, values and sinks, and rotation tables."""
    sinks = 2.0 * normal(sizes.heads, seed=3)
    tables = af.rope_tables(sizes.positions, sizes.rotary_dim, theta=THETA, scaling=YARN)
    return (*sizes.qkv(), sinks, *tables)


def main() -> None:
    """Run a layer that has the window."""
    compare(gpt_oss, *inputs(SIZES))


if __name__ == "__main__":
    main()
