"""AttnFuse: a compiler for attention kernels.

`import attnfuse as af` is cheap: a name is imported from its module when it is first used, so
torch and TileLang are loaded only by what needs them. The modules inside the package never
import from here, but from the module that defines a name.
"""

import logging
import sys
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from attnfuse import errors
    from attnfuse.blocks import (
        attend,
        bias,
        causal,
        dropout,
        entropy,
        gate,
        low_rank,
        lse,
        mask,
        norm,
        position,
        relu,
        rope,
        row_max,
        scores,
        softcap,
        softmax,
        stored,
        window,
    )
    from attnfuse.egraph.rule import rule
    from attnfuse.plugins import use_rules
    from attnfuse.runtime.stats import reset_stats, stats
    from attnfuse.scalings import (
        DynamicNtkScaling,
        LinearScaling,
        Llama3Scaling,
        NtkScaling,
        RopeScaling,
        YarnScaling,
    )
    from attnfuse.settings import Settings, get_settings, use
    from attnfuse.tables import rope_tables
    from attnfuse.traced import (
        Captured,
        Key,
        Query,
        Traced,
        Value,
        b,
        exp,
        h,
        k,
        kv_len,
        log,
        maximum,
        minimum,
        q,
        q_len,
        sigmoid,
        sqrt,
        tanh,
        where,
    )
    from attnfuse.variant import Variant, variant

__version__ = "0.1.0"

__all__ = [
    "Captured",
    "DynamicNtkScaling",
    "Key",
    "LinearScaling",
    "Llama3Scaling",
    "NtkScaling",
    "Query",
    "RopeScaling",
    "Settings",
    "Traced",
    "Value",
    "Variant",
    "YarnScaling",
    "__version__",
    "attend",
    "b",
    "bias",
    "causal",
    "dropout",
    "entropy",
    "errors",
    "exp",
    "gate",
    "get_settings",
    "h",
    "k",
    "kv_len",
    "log",
    "low_rank",
    "lse",
    "mask",
    "maximum",
    "minimum",
    "norm",
    "position",
    "q",
    "q_len",
    "relu",
    "reset_stats",
    "rope",
    "rope_tables",
    "row_max",
    "rule",
    "scores",
    "sigmoid",
    "softcap",
    "softmax",
    "sqrt",
    "stats",
    "stored",
    "tanh",
    "use",
    "use_rules",
    "variant",
    "where",
    "window",
]

# Type checkers read the imports above, Python reads this; a test holds the two together.
_MODULES = {
    "Captured": "attnfuse.traced",
    "DynamicNtkScaling": "attnfuse.scalings",
    "Key": "attnfuse.traced",
    "LinearScaling": "attnfuse.scalings",
    "Llama3Scaling": "attnfuse.scalings",
    "NtkScaling": "attnfuse.scalings",
    "Query": "attnfuse.traced",
    "RopeScaling": "attnfuse.scalings",
    "Settings": "attnfuse.settings",
    "Traced": "attnfuse.traced",
    "Value": "attnfuse.traced",
    "Variant": "attnfuse.variant",
    "YarnScaling": "attnfuse.scalings",
    "attend": "attnfuse.blocks",
    "b": "attnfuse.traced",
    "bias": "attnfuse.blocks",
    "causal": "attnfuse.blocks",
    "dropout": "attnfuse.blocks",
    "entropy": "attnfuse.blocks",
    "exp": "attnfuse.traced",
    "gate": "attnfuse.blocks",
    "get_settings": "attnfuse.settings",
    "h": "attnfuse.traced",
    "k": "attnfuse.traced",
    "kv_len": "attnfuse.traced",
    "log": "attnfuse.traced",
    "low_rank": "attnfuse.blocks",
    "lse": "attnfuse.blocks",
    "mask": "attnfuse.blocks",
    "maximum": "attnfuse.traced",
    "minimum": "attnfuse.traced",
    "norm": "attnfuse.blocks",
    "position": "attnfuse.blocks",
    "q": "attnfuse.traced",
    "q_len": "attnfuse.traced",
    "relu": "attnfuse.blocks",
    "reset_stats": "attnfuse.runtime.stats",
    "rope": "attnfuse.blocks",
    "rope_tables": "attnfuse.tables",
    "row_max": "attnfuse.blocks",
    "rule": "attnfuse.egraph.rule",
    "scores": "attnfuse.blocks",
    "sigmoid": "attnfuse.traced",
    "softcap": "attnfuse.blocks",
    "softmax": "attnfuse.blocks",
    "sqrt": "attnfuse.traced",
    "stats": "attnfuse.runtime.stats",
    "stored": "attnfuse.blocks",
    "tanh": "attnfuse.traced",
    "use": "attnfuse.settings",
    "use_rules": "attnfuse.plugins",
    "variant": "attnfuse.variant",
    "where": "attnfuse.traced",
    "window": "attnfuse.blocks",
}


def __getattr__(name: str) -> object:
    """Import the module that has `name`, at its first use.

    Raises:
        AttributeError: when AttnFuse has no such name.
    """
    if name == "errors":
        return import_module("attnfuse.errors")
    if name not in _MODULES:
        raise AttributeError(f"module 'attnfuse' has no attribute {name!r}")
    value = getattr(import_module(_MODULES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    """Every public name, imported or not."""
    return sorted({*globals(), *__all__})


class _Package(ModuleType):
    """Keeps a public name from being replaced by the module of the same name.

    Python sets `attnfuse.variant` to the module when the module is imported; without this,
    `af.variant` would be the decorator or the module, depending on who imported what before.
    """

    def __setattr__(self, name: str, value: object) -> None:
        if not (name in _MODULES and isinstance(value, ModuleType)):
            super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Package
logging.getLogger(__name__).addHandler(logging.NullHandler())
