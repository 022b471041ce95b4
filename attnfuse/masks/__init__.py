"""From predicates to the tiles that have to be visited."""

from attnfuse.masks.ranges import KeyRange, full_range, key_range
from attnfuse.masks.support import support

__all__ = ["KeyRange", "full_range", "key_range", "support"]
