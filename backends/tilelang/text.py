"""A writer of indented Python text."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager


class Text:
    """Lines of a program, written in order."""

    def __init__(self) -> None:
        self._lines: list[str] = []
        self._depth = 0

    def line(self, text: str = "") -> None:
        """Write one line at the present depth."""
        self._lines.append("    " * self._depth + text if text else "")

    def comment(self, text: str) -> None:
        """Write a comment."""
        self.line(f"# {text}")

    @contextmanager
    def block(self, opening: str) -> Generator[None]:
        """Write ``opening`` and indent what is written within."""
        self.line(opening)
        self._depth += 1
        yield
        self._depth -= 1

    def __str__(self) -> str:
        return "\n".join(self._lines) + "\n"
