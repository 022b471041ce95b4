"""Gemma 2's attention: capped scores, and a sliding window in every other layer.

Gemma Team, "Gemma 2: Improving Open Language Models at a Practical Size" (2024); sizes of
Gemma 2 9B, with fewer heads and a smaller window, so that a short input fills it.

Scores are scaled, then capped to ±50 by 50 · tanh(s / 50), then masked: a mask is never capped.
Layers 0, 2, 4, … see a window of 4096 keys, a query's own among them; the others see all keys
before. Both are the one variant below. `window` is a Python constant: a value of it is a kernel,
and `if` may ask for it, as it is known when the variant is traced.

    python examples/02_gemma2.py
"""

from __future__ import annotations

from common import Sizes, compare
from torch import Tensor

import attnfuse as af

# In the model 16 and 8 heads.
SIZES = Sizes(heads=4, key_heads=2, head_dim=256, value_dim=256, q_len=320, kv_len=320)
SCALE = 256**-0.5  # 1/√query_pre_attn_scalar, which isn't the head dim in the 27B model
CAP = 50.0
WINDOW = 100  # in the model 4096


@af.variant
def gemma2(
    q: af.Query,
    k: af.Key,
    v: af.Value,
    cos: af.Captured,
    sin: af.Captured,
    window: int | None = None,
) -> af.Traced:
    """RoPE, scaled and capped scores, a causal mask that may have a window."""
    s = af.scores(af.rope(q, cos, sin), af.rope(k, cos, sin), scale=SCALE)
    s = af.softcap(s, CAP)
    visible = af.causal() if window is None else af.window(before=window - 1, after=0)
    return af.attend(af.softmax(af.mask(s, visible)), v)


def inputs(sizes: Sizes) -> tuple[Tensor, ...]:
    """Scores are large enough for the cap to matter."""
    q, k, v = sizes.qkv()
    return (q * 2.0, k, v, *af.rope_tables(sizes.positions, sizes.rotary_dim))


def main() -> None:
    """Run a layer of each kind."""
    for layer in range(2):
        window = WINDOW if layer % 2 == 0 else None
        compare(gemma2, *inputs(SIZES), window=window)


if __name__ == "__main__":
    main()
