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

from common import compare, normal

import attnfuse as af

HEADS, KEY_HEADS, HEAD_DIM = 16, 2, 64  # in the model 64 and 8 heads
WINDOW = 128
LENGTH = 400
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


def main() -> None:
    """Run a layer that has the window."""
    q = normal(1, HEADS, LENGTH, HEAD_DIM, seed=0)
    k = normal(1, KEY_HEADS, LENGTH, HEAD_DIM, seed=1)
    v = normal(1, KEY_HEADS, LENGTH, HEAD_DIM, seed=2)
    sinks = 2.0 * normal(HEADS, seed=3)
    cos, sin = af.rope_tables(LENGTH, HEAD_DIM, theta=THETA, scaling=YARN)
    compare(gpt_oss, q, k, v, sinks, cos, sin)


if __name__ == "__main__":
    main()
