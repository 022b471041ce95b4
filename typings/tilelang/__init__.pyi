# TileLang has no types, and what pyright infers from its source is partly unknown and partly wrong.
# Here everything in it is Any, so no rule has to be relaxed for the code that uses it. Write
# `import tilelang` or `from tilelang import tvm`: a submodule's own import would need a stub too.
from typing import Any

def __getattr__(name: str) -> Any: ...
