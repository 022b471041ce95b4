"""Every error that AttnFuse raises on purpose: one class per mistake, with the remedy in its text.

A class gives its text as a template and is raised with the template's fields by name:

    class HeadsError(AttnFuseError, ValueError):
        message = "{query} query heads do not divide by {key} key heads; repeat or drop some"

    raise HeadsError(query=6, key=4)
"""

from typing import ClassVar


class AttnFuseError(Exception):
    """The base of all of them; `fields` holds what the message was filled with.

    Besides its message, a subclass may name the built-in error that it is a case of.

    Raises:
        KeyError: when made without a field that the message names.
    """

    message: ClassVar[str]

    def __init__(self, **fields: object) -> None:
        """Fill the class's message with `fields`."""
        super().__init__(self.message.format(**fields))
        self.fields = fields

    def __reduce__(self) -> tuple[object, ...]:
        """Pickle by fields: the default would hand the finished text to `__init__`."""
        return _rebuild, (type(self), self.fields)


def _rebuild(kind: type[AttnFuseError], fields: dict[str, object]) -> AttnFuseError:
    return kind(**fields)


class SettingError(AttnFuseError, ValueError):
    """A setting was given a value that it cannot have."""

    message = "{variable}={value!r} is not possible; give {allowed}, or leave it unset"


class UnknownSettingError(AttnFuseError, TypeError):
    """A setting was named that does not exist."""

    message = "no setting is called {name!r}; there are {known}"


# -- terms ---------------------------------------------------------------------


class AxisMismatch(AttnFuseError, ValueError):
    """Two operands of one op disagree about the size of an axis."""

    message = "axis {axis!r} has size {one} in one operand and {other} in another; make them agree"


class WrongArity(AttnFuseError, TypeError):
    """An op was given too many or too few operands."""

    message = "{op} takes {allowed} operands, not {given}"


class WrongOperandKind(AttnFuseError, TypeError):
    """An op was given operands of kinds (float, int, bool) that it doesn't combine."""

    message = "{op} can't combine {given}; it takes {allowed}"


class DoesNotFit(AttnFuseError, ValueError):
    """The operands of an op have the wrong shape, type or value."""

    message = "{op}: {problem}; {remedy}"


class MalformedProgram(AttnFuseError, ValueError):
    """A term graph breaks a rule of the IR: a defect in AttnFuse or in a rewrite rule."""

    message = "{op} is malformed: {problem}\n  in {term}"
