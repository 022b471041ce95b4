"""Files that are whole or absent, whoever else writes them at the same time."""

from __future__ import annotations

import secrets
from pathlib import Path


def write_atomically(path: Path, text: str) -> None:
    """Write ``text`` so that readers see the old file or the new one, never a part.

    Who may read it is what the process's umask says, as for any file.

    Raises:
        OSError: the folder can't be written.
    """
    temporary = path.with_name(f"{path.name}.{secrets.token_hex(4)}")
    try:
        temporary.write_text(text, encoding="utf-8")
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
