"""What one kernel launch does, with no word of the target language in it."""

from attnfuse.plan.guard import Guard
from attnfuse.plan.kernel import Load, Parameter, Pass, Pattern, Plan, QueryMajor, Result, Schedule
from attnfuse.plan.match import match
from attnfuse.plan.schedule import guards, schedule
from attnfuse.plan.split import Part, split

__all__ = [
    "Guard",
    "Load",
    "Parameter",
    "Part",
    "Pass",
    "Pattern",
    "Plan",
    "QueryMajor",
    "Result",
    "Schedule",
    "guards",
    "match",
    "schedule",
    "split",
]
