"""Cross attention: a decoder looks at source sentences of different lengths.

Vaswani et al., "Attention Is All You Need" (2017); sizes of BART large (Lewis et al., 2020), with
fewer heads.

Queries come from the decoder, keys and values from the encoder: there are as many keys as the
longest source has tokens, and entry b of the batch sees the first lengths[b] of them. Such a mask
is a limit, not a table: the kernel's loop over keys ends there, so padding costs nothing. An entry
without any source gets zeros, not NaN.

One kernel serves every batch size and both lengths, so a decoder that makes token by token calls
the same one with a single query.

    python examples/11_cross_attention.py
"""

from __future__ import annotations

import torch
from common import Sizes, compare
from torch import Tensor

import attnfuse as af

# In the model 16 heads.
SIZES = Sizes(heads=4, key_heads=4, head_dim=64, value_dim=64, q_len=130, kv_len=500, batch=4)


@af.variant
def cross_attention(q: af.Query, k: af.Key, v: af.Value, lengths: af.Captured) -> af.Traced:
    """Softmax over the keys of one's own source."""
    s = af.mask(af.scores(q, k), af.k < lengths[af.b])
    return af.attend(af.softmax(s), v)


def inputs(sizes: Sizes) -> tuple[Tensor, ...]:
    """Random queries, keys and values; the first source is the longest, the last one empty."""
    lengths = torch.linspace(sizes.kv_len, 0, sizes.batch, dtype=torch.int32)
    return (*sizes.qkv(), lengths)


def main() -> None:
    """Run it for four targets at once, then for one further token of each."""
    q, k, v, lengths = inputs(SIZES)
    compare(cross_attention, q, k, v, lengths)
    compare(cross_attention, q[:, :, -1:], k, v, lengths)


if __name__ == "__main__":
    main()
