"""What one kernel launch does, with no word of the target language in it."""

from attnfuse.plan.kernel import Load, Parameter, Pass, Pattern, Plan, QueryMajor, Result, Schedule
from attnfuse.plan.match import match
from attnfuse.plan.schedule import schedule
from attnfuse.plan.split import Part, split

__all__ = [
    "Load",
    "Parameter",
    "Part",
    "Pass",
    "Pattern",
    "Plan",
    "QueryMajor",
    "Result",
    "Schedule",
    "match",
    "schedule",
    "split",
]
