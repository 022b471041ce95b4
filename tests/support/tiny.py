"""Programs that are quick to build, and other processes that build them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path

import torch

import attnfuse as af
from attnfuse.backends.tilelang.source import Source
from attnfuse.settings import get_settings


def tiny_source(cap: float, device: str = "cpu") -> Source:
    """A program that nothing has built yet: ``cap`` is part of it."""

    @af.variant
    def tiny(q: af.Query, k: af.Key, v: af.Value) -> af.Traced:
        return af.attend(af.softmax(af.softcap(af.scores(q, k), cap)), v)

    qkv = [torch.empty(1, 1, 8, 16, dtype=torch.float16, device="meta") for _ in range(3)]
    (launch,) = tiny.compile(*qkv, device=device).launches
    return launch.source


BUILDER = """
import json, sys
from attnfuse.backends.tilelang.source import Source
from attnfuse.devices import Device
from attnfuse.runtime.building import ensure
from attnfuse.runtime.stats import stats

job = json.load(sys.stdin)
(built,) = ensure([Source(job["name"], Device(**job["device"]), job["text"], job["exact"])])
loaded = [name for name in ("tilelang", "tvm", "z3", "torch") if name in sys.modules]
done = stats()
print(json.dumps([done.builds, done.disk_hits, built.path.name, loaded]))
"""


def builder(source: Source, cache_dir: Path, **environment: str) -> subprocess.Popen[str]:
    """A process that makes sure of a program's binary, and prints what it did."""
    started = subprocess.Popen(
        [sys.executable, "-c", BUILDER],
        env=os.environ | {"ATTNFUSE_CACHE_DIR": str(cache_dir)} | environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert started.stdin is not None
    json.dump(asdict(source), started.stdin)
    started.stdin.close()
    started.stdin = None
    return started


def compiler(path: Path, action: str) -> str:
    """A script that does ``action`` and is then the real compiler; it tells its version at once."""
    real = get_settings().cxx
    assert real is not None
    path.write_text(
        f'#!/bin/sh\n[ "$1" = --version ] && {{ echo {path.name}; exit 0; }}\n{action}\n'
        f'exec {real} "$@"\n'
    )
    path.chmod(0o755)
    return str(path)
