"""Builds several programs at once, each by a process that runs `attnfuse.runtime.worker`.

Not by multiprocessing: its processes import the caller's own script once more.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path

import attnfuse.errors as errors
from attnfuse.backends.tilelang.source import Source
from attnfuse.errors import BuildFailed
from attnfuse.runtime.stats import Stats, absorb
from attnfuse.settings import get_settings, variable

_QUOTED = 2000


def build(sources: Sequence[Source], folders: Sequence[Path], processes: int) -> None:
    """Build each program in its folder, as many at once as ``processes`` says.

    Raises:
        AttnFuseError: what the first process that failed raised; the rest is not begun.
    """
    environment = _environment()
    pool = ThreadPoolExecutor(processes, thread_name_prefix="attnfuse-build")
    with pool, _progress(len(sources)) as advance:
        jobs = zip(sources, folders, strict=True)
        futures = [pool.submit(_run, source, folder, environment) for source, folder in jobs]
        try:
            for future in as_completed(futures):
                absorb(future.result())
                advance()
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def _run(source: Source, folder: Path, environment: dict[str, str]) -> Stats:
    """What a worker did.

    Raises:
        AttnFuseError: what the worker raised.
    """
    # -P: the current folder is on the path if it is on this process's, and only then.
    command = [sys.executable, "-P", "-m", "attnfuse.runtime.worker", str(folder)]
    done = subprocess.run(
        command,
        input=json.dumps(asdict(source)),
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        said = f"exit status {done.returncode}\n{done.stderr[-_QUOTED:]}"
        raise BuildFailed(command=" ".join(command), output=said)
    return read(done.stdout)


def read(answer: str) -> Stats:
    """What a worker did, by its answer.

    Raises:
        AttnFuseError: what the worker raised.
    """
    said = json.loads(answer)
    if "error" in said:
        raise getattr(errors, said["error"])(**said["fields"])
    return Stats(**said)


def _environment() -> dict[str, str]:
    """This process's environment, with its settings and its path of modules."""
    settings = get_settings()
    path = os.pathsep.join(each or os.getcwd() for each in sys.path)
    environment = os.environ | {"PYTHONPATH": path, variable("logs"): ""}
    return environment | {variable("cxx"): settings.cxx or ""}


@contextmanager
def _progress(total: int) -> Generator[Callable[[], object]]:
    """A bar where somebody looks; yields what advances it."""
    if not sys.stderr.isatty():
        yield lambda: None
        return
    from tqdm import tqdm

    with tqdm(total=total, desc="attnfuse: building kernels", file=sys.stderr) as bar:
        yield bar.update
