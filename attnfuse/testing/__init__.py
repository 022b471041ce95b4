"""What authors of rules test with: the rule checker, and the replay of derivations."""

from attnfuse.testing.checker import Check, Counterexample, check, check_all
from attnfuse.testing.replay import Replay, Sample, replay, sample

__all__ = [
    "Check",
    "Counterexample",
    "Replay",
    "Sample",
    "check",
    "check_all",
    "replay",
    "sample",
]
