"""Settings: one frozen object whose every field is also an `ATTNFUSE_*` environment variable.

The environment is read once a process, at the first `get_settings()`; `use(...)` overrides
fields for a block of code. `docs/settings.md` holds the table that `table()` makes.
"""

import os
import re
import shutil
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field, fields, replace
from functools import cache
from pathlib import Path
from typing import Any, Self, get_args

from platformdirs import user_cache_path

from attnfuse.errors import SettingError, UnknownSettingError

_COMPILERS = ("c++", "g++", "clang++")
_LOG_ITEM = r"(debug|info|warning|error|critical|\+attnfuse(\.\w+)*)"


def _folder(text: str) -> Path:
    path = Path(os.path.expanduser(text)).absolute()
    if path.exists() and not path.is_dir():
        raise ValueError
    return path


def _count(text: str) -> int:
    number = int(text)
    if number < 0:
        raise ValueError
    return number


def _command(text: str) -> str:
    found = shutil.which(text)
    if found is None:
        raise ValueError
    return found


def _logs(text: str) -> str:
    if not re.fullmatch(rf"{_LOG_ITEM}(,{_LOG_ITEM})*", text, re.IGNORECASE):
        raise ValueError
    return text


def _backward(text: str) -> str:
    if text not in ("reference", "raise"):
        raise ValueError
    return text


def _schedules(text: str) -> str:
    names = text.split(",")
    if "pipelined" not in names or not set(names) <= {"pipelined", "hopper"}:
        raise ValueError
    return ",".join(sorted(names))


def _compiler_on_path() -> str | None:
    return next(filter(None, map(shutil.which, _COMPILERS)), None)


@dataclass(frozen=True)
class _Kind:
    """How a setting's text becomes its value; `parse` raises ValueError for what isn't allowed."""

    parse: Callable[[str], object]
    allowed: str


_FOLDER = _Kind(_folder, "the path of a folder, which need not exist yet")
_COUNT = _Kind(_count, "a whole number, 0 or more")
_COMMAND = _Kind(_command, "a program's name on PATH, or its path")
_LOGS = _Kind(_logs, "a level (debug, info, warning, error, critical) or +attnfuse.part, by commas")

_SCHEDULES = _Kind(_schedules, "pipelined, or hopper,pipelined")
_BACKWARD = _Kind(_backward, "reference or raise")


def _about(kind: _Kind, doc: str, default: str) -> dict[str, object]:
    """What a field carries: its kind, what it is for, and its default in words."""
    return {"kind": kind, "doc": doc, "default": default}


@dataclass(frozen=True)
class Settings:
    """What can be set, and its default; made by `get_settings()`, changed by `use(...)`."""

    cache_dir: Path = field(
        default_factory=lambda: user_cache_path("attnfuse"),
        metadata=_about(
            _FOLDER,
            "Where compiled kernels and tuning results are kept.",
            "`attnfuse` in the user's cache folder",
        ),
    )
    dump_dir: Path | None = field(
        default=None,
        metadata=_about(
            _FOLDER,
            "Where each compilation writes its terms, plans and programs, for reading.",
            "none",
        ),
    )
    logs: str = field(
        default="",
        metadata=_about(
            _LOGS,
            "What to log: a level for all, `+attnfuse.compiler` for one part at debug level.",
            "none",
        ),
    )
    cpu_threads: int = field(
        default=0,
        metadata=_about(
            _COUNT, "Threads of a kernel on the CPU; 0 takes as many as torch does.", "0"
        ),
    )
    reference_limit: int = field(
        default=2048 * 2048,
        metadata=_about(
            _COUNT,
            "Scores (queries × keys) up to which the reference backend stands in; 0: no limit.",
            "2048 × 2048",
        ),
    )
    schedules: str = field(
        default="pipelined",
        metadata=_about(
            _SCHEDULES,
            "Which schedules kernels may have. `hopper`, for H100 and H200, is not yet checked for "
            "all variants.",
            "pipelined",
        ),
    )
    backward: str = field(
        default="reference",
        metadata=_about(
            _BACKWARD,
            "Where gradients come from while no kernel computes them; raise: from nowhere.",
            "reference",
        ),
    )
    build_processes: int = field(
        default=0,
        metadata=_about(
            _COUNT,
            "Processes that build kernels side by side; 0: one a core, 1: this one only.",
            "0",
        ),
    )
    cxx: str | None = field(
        default_factory=_compiler_on_path,
        metadata=_about(
            _COMMAND,
            "The C++ compiler that builds kernels for the CPU.",
            f"the first of {', '.join(f'`{name}`' for name in _COMPILERS)} on PATH",
        ),
    )

    @classmethod
    def from_environment(cls, environ: Mapping[str, str] = os.environ) -> Self:
        """Read the variables in `environ`; unset and empty ones leave the default.

        Raises:
            SettingError: when a variable holds what its setting cannot be.
        """
        named = {name: environ.get(variable(name)) for name in _kinds()}
        return cls(**{name: _parsed(name, text) for name, text in named.items() if text})


def variable(name: str) -> str:
    """The environment variable of the setting called `name`."""
    return f"ATTNFUSE_{name.upper()}"


@cache
def _kinds() -> dict[str, _Kind]:
    return {each.name: each.metadata["kind"] for each in fields(Settings)}


@cache
def _nullable() -> frozenset[str]:
    """The settings that can be None, by their annotations."""
    return frozenset(each.name for each in fields(Settings) if type(None) in get_args(each.type))


def _parsed(name: str, given: object) -> Any:
    """The value for what was given; one path for variables and for `use`, so both mean the same."""
    kind = _kinds().get(name)
    if kind is None:
        raise UnknownSettingError(name=name, known=", ".join(_kinds()))
    if given is None and name in _nullable():
        return None
    try:
        return kind.parse(str(given))
    except ValueError:
        raise SettingError(variable=variable(name), value=given, allowed=kind.allowed) from None


_override: ContextVar[Settings | None] = ContextVar("attnfuse_settings", default=None)


@cache
def _from_process() -> Settings:
    return Settings.from_environment()


def get_settings() -> Settings:
    """The settings in force here: those of the innermost `use`, or the process's own.

    A thread started within a `use` does not see it (autograd runs backward on threads of its own):
    what a launch needs has to be read when it is compiled.

    Raises:
        SettingError: at the first call, when a variable holds what its setting cannot be.
    """
    return _override.get() or _from_process()


@contextmanager
def use(**changes: str | int | Path | None) -> Generator[Settings]:
    """Override settings for a `with` block: `with use(cpu_threads=1): ...`.

    Raises:
        SettingError: when a value is not possible.
        UnknownSettingError: when there is no such setting.
    """
    values = {name: _parsed(name, given) for name, given in changes.items()}
    token = _override.set(replace(get_settings(), **values))
    try:
        yield get_settings()
    finally:
        _override.reset(token)


def table() -> str:
    """The settings as a Markdown table, one row a field."""
    head = "| setting | variable | default | values | what it is for |\n|---|---|---|---|---|\n"
    return head + "".join(
        f"| `{each.name}` | `{variable(each.name)}` | {each.metadata['default']} "
        f"| {each.metadata['kind'].allowed} | {each.metadata['doc']} |\n"
        for each in fields(Settings)
    )
