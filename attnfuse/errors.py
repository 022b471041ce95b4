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


class CorruptProgram(AttnFuseError, ValueError):
    """The text of a program is damaged, or was written by another version."""

    message = "this is no program that this AttnFuse wrote: {problem}; write it anew"


# -- tracing -------------------------------------------------------------------


class WrongArgument(AttnFuseError, ValueError):
    """A function was given an argument that it can't work with."""

    message = "{function}: {argument} is {given}; give {allowed}"


class NotInVariant(AttnFuseError, RuntimeError):
    """Something that has a meaning within a variant only was used outside of one."""

    message = "{what} has no value here; use it inside a function decorated with @af.variant"


class NoData(AttnFuseError, TypeError):
    """Python asked a traced value for its data."""

    message = "a traced value has no data while a variant is traced; use {use}"


class NeedsStatic(BaseException):
    """Tracing needs the size of a captured tensor's dimension; the tracer starts over with it.

    It is not an error, and no variant should catch it: hence BaseException.
    """

    def __init__(self, name: str, dimension: int) -> None:
        """Ask for ``dimension`` of the captured tensor ``name``."""
        super().__init__(name, dimension)
        self.name, self.dimension = name, dimension


class UnknownRole(AttnFuseError, TypeError):
    """A variant lacks a query, a key or a value."""

    message = (
        "variant {variant} has no {role} among its parameters ({parameters}); name one {role[0]}, "
        "{role} or {role[0]}_…, or annotate it with af.{annotation}"
    )


class WrongShape(AttnFuseError, ValueError):
    """A tensor has the wrong number of dimensions, or a size that clashes with another tensor's."""

    message = "{variant}: {name} has shape {given}; {allowed}"


class MixedDTypes(AttnFuseError, TypeError):
    """Queries, keys and values have different element types, or one that isn't supported."""

    message = "{variant}: {given}; give all of them the same type, one of {allowed}"


class WrongOutput(AttnFuseError, TypeError):
    """A variant returned something that isn't an output."""

    message = "variant {variant} returned {given}; return {allowed}"


# -- devices -------------------------------------------------------------------


class UnknownDevice(AttnFuseError, ValueError):
    """There is no profile for a device."""

    message = "there is no profile for device {name!r}; there are {known}"


class MixedDevices(AttnFuseError, ValueError):
    """The tensors of one call are on several devices."""

    message = "the tensors are on several devices ({given}); move them to one"


# -- lowering ------------------------------------------------------------------


class CannotLower(AttnFuseError, NotImplementedError):
    """No kernel form covers a program."""

    message = (
        "this can't become a kernel: {problem}\n  in {term}\n"
        "  .reference(…) computes it, with all scores in memory"
    )


class DoesNotFitDevice(AttnFuseError, RuntimeError):
    """Not even the smallest tiles of a plan fit a device's shared memory."""

    message = (
        "{variant} needs {needed} bytes of shared memory with the smallest tiles, "
        "and {device} has {available}; use smaller head dims"
    )


class BuildFailed(AttnFuseError, RuntimeError):
    """The target's compiler refused a generated program: a defect in AttnFuse, or in the tools."""

    message = "the compiler failed; this is a defect worth reporting\n  {command}\n{output}"


class DriverFailed(AttnFuseError, RuntimeError):
    """The GPU's driver refused a call."""

    message = (
        "the GPU's driver refused {function}: {text} (status {status}). After an earlier error on "
        "the GPU nothing works until the process ends; else `attnfuse doctor` may tell more"
    )


# -- calls ---------------------------------------------------------------------


class NoBackward(AttnFuseError, NotImplementedError):
    """A gradient was asked for that can't be had."""

    message = (
        "{variant}: {names} requires a gradient, and {problem}; {remedy}, or call it under "
        "torch.no_grad()"
    )


class NoSecondDerivative(AttnFuseError, NotImplementedError):
    """A gradient of a gradient was asked for."""

    message = (
        "{variant}: its gradients can't be differentiated again (create_graph=True); "
        "differentiate .reference(…) twice"
    )


class NoVmap(AttnFuseError, NotImplementedError):
    """A variant was called under torch.vmap."""

    message = (
        "attention can't be called under torch.vmap; give the mapped dimension as a batch "
        "dimension: queries may be (batch, batch, heads, q_len, head_dim)"
    )


class UnknownDefinition(AttnFuseError, LookupError):
    """A compiled graph calls an attention whose definition is nowhere."""

    message = (
        "there is no definition of attention {key} in {folder}; compile or export the graph "
        "anew, or set ATTNFUSE_CACHE_DIR to the folder that it was compiled with"
    )


class NoToolchain(AttnFuseError, RuntimeError):
    """Nothing can be built here, and the reference backend would need too much memory."""

    message = (
        "no kernel can be built here: {problem}. The reference backend would hold {scores} scores "
        "a head, above the limit of {limit} (ATTNFUSE_REFERENCE_LIMIT)"
    )


# -- rewriting -----------------------------------------------------------------


class MalformedRule(AttnFuseError, ValueError):
    """A rewrite rule was written down wrongly; found where it is defined."""

    message = "{where}: rule {rule}: {problem}; {remedy}"


class RuleFailed(AttnFuseError, RuntimeError):
    """The right side or the condition of a rewrite rule raised an error when it was applied."""

    message = (
        "{where}: rule {rule}: {problem}; mend it, or let it decline here\n  applied to {term}"
    )


class UnequalFacts(AttnFuseError, TypeError):
    """Two terms were equated that can't have the same value."""

    message = (
        "{cause} equates terms that differ in their {fact}: {one} and {other}; "
        "both sides of a rule must compute the same\n  {before}\n  {after}"
    )


class UnknownFact(AttnFuseError, KeyError):
    """A rule or a cost asked for a fact that the e-graph doesn't keep."""

    message = "nothing called {name!r} is known of {what}; there are {known}"

    def __str__(self) -> str:
        """The message as it is: a KeyError would show its repr."""
        return str(self.args[0])


class RuleClash(AttnFuseError, ValueError):
    """Two rules have the same name."""

    message = "rule {rule} is defined by {one} and by {other}; rename one of them"


class UnknownRule(AttnFuseError, LookupError):
    """A rule was named that does not exist."""

    message = "no rule is called {name!r}; there are {known}"


class NoRules(AttnFuseError, ValueError):
    """Something that should bring rewrite rules has none."""

    message = "{source} defines no rules; decorate a function with @rule, or list them in RULES"


class NotEqual(AttnFuseError, ValueError):
    """A derivation was asked for between terms that were not found equal."""

    message = (
        "these terms were not found to be equal; saturate first, or with more rules"
        "\n  {one}\n  {other}"
    )


class NothingToExtract(AttnFuseError, ValueError):
    """Every form of a term costs infinitely much or was rejected."""

    message = (
        "no form of this term can be used: {problem}; add a rule that leads to one that can"
        "\n  {term}"
    )


class NoInstance(AttnFuseError, ValueError):
    """The rule checker could not make an example of a rule's left side."""

    message = "{where}: rule {rule}: no example of {pattern} could be made; {remedy}"


class BrokenRules(AttnFuseError, ImportError):
    """Rewrite rules that were asked for, or are installed, can't be loaded."""

    message = "the rules of {source} can't be loaded: {problem}; mend or uninstall it"
