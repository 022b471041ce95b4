"""From predicates to the tiles that have to be visited."""

from attnfuse.masks.ranges import KeyRange, key_range
from attnfuse.masks.support import support

__all__ = ["KeyRange", "key_range", "support"]
