"""Building: once, whoever else wants it at the same time, and several side by side."""

from __future__ import annotations

import contextvars
import io
import json
import os
import signal
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest
from tiny import builder, compiler, tiny_source

import attnfuse as af
from attnfuse.backends.tilelang.binaries import Built
from attnfuse.backends.tilelang.source import Source
from attnfuse.errors import AttnFuseError, BuildFailed
from attnfuse.runtime import building, cache, worker, workers
from attnfuse.runtime.building import ensure
from attnfuse.runtime.stats import Stats, reset_stats, stats

EMPTY_HANDED: list[str] = []


def test_eight_processes_build_once(tmp_path: Path) -> None:
    source = tiny_source(11.0)
    started = [builder(source, tmp_path) for _ in range(8)]
    answers: list[tuple[int, int, str, list[str]]] = []
    for each in started:
        out, err = each.communicate(timeout=120)
        assert each.returncode == 0, err
        answers.append(json.loads(out))
    assert sum(builds for builds, _, _, _ in answers) == 1
    assert sum(hits for _, hits, _, _ in answers) == 7
    for builds, _, name, loaded in answers:
        assert (tmp_path / "programs" / source.digest / name).is_file()
        assert builds or loaded == EMPTY_HANDED, "found on disk, but imported"


def test_two_threads_build_once(tmp_path: Path) -> None:
    source = tiny_source(12.0)
    reset_stats()
    with af.use(cache_dir=tmp_path), ThreadPoolExecutor(2) as pool:
        contexts = [contextvars.copy_context() for _ in range(2)]
        futures = [pool.submit(context.run, ensure, [source]) for context in contexts]
        one, other = (future.result() for future in futures)
    assert one == other and one[0] is not None
    assert (stats().builds, stats().disk_hits) == (1, 1)


def test_a_killed_builder_leaves_a_cache_that_can_be_used(tmp_path: Path) -> None:
    source, begun = tiny_source(13.0), tmp_path / "begun"
    slow = compiler(tmp_path / "slow", f"[ -e {begun} ] || {{ touch {begun}; exec sleep 20; }}")
    killed = builder(source, tmp_path, ATTNFUSE_CXX=slow)
    for _ in range(600):
        if begun.exists():
            break
        time.sleep(0.1)
    os.kill(killed.pid, signal.SIGKILL)
    killed.communicate()
    assert killed.returncode == -signal.SIGKILL
    folder = tmp_path / "programs" / source.digest
    assert list(folder.glob("building-*")) and not list(folder.glob("*.json"))
    reset_stats()
    with af.use(cache_dir=tmp_path, cxx=slow):
        (built,) = ensure([source])
    assert built is not None and stats().builds == 1
    assert not list(folder.glob("building-*"))


def test_several_are_built_by_processes_of_their_own(tmp_path: Path) -> None:
    sources = [tiny_source(14.0), tiny_source(15.0), tiny_source(14.0), tiny_source(1.0, "mi300x")]
    reset_stats()
    with af.use(cache_dir=tmp_path, build_processes=2):
        one, other, again, hip = ensure(sources)
    assert one is not None and other is not None and one != other
    assert again == one and hip is None
    assert stats().builds == 2
    assert stats().seconds["lower"] > 0 and stats().seconds["compile"] > 0


def test_a_worker_s_error_is_raised_here(tmp_path: Path) -> None:
    broken = compiler(tmp_path / "broken", "echo no such luck >&2; exit 1")
    sources = [tiny_source(16.0), tiny_source(17.0)]
    with (
        af.use(cache_dir=tmp_path, build_processes=2, cxx=broken),
        pytest.raises(BuildFailed, match=r"broken -std(.|\n)*no such luck"),
    ):
        ensure(sources)


def test_a_worker_finds_modules_where_this_process_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also those that Python found in the current folder, without its name."""
    (tmp_path / "attnfuse").mkdir()
    (tmp_path / "attnfuse" / "__init__.py").write_text("raise ImportError('found here')\n")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(BuildFailed, match=r"runtime\.worker(.|\n)*ZeroDivisionError"):
        workers.build([replace(tiny_source(18.0), text="1 / 0\n")], [tmp_path], 1)
    monkeypatch.setattr("sys.path", ["", *sys.path])
    with pytest.raises(BuildFailed, match="ImportError: found here"):
        workers.build([tiny_source(18.0)], [tmp_path], 1)


def test_with_one_process_allowed_nothing_is_started(tmp_path: Path) -> None:
    sources = [tiny_source(19.0), tiny_source(20.0)]
    built = [Built(tmp_path / name, name, (), 0) for name in ("one", "other")]

    def build(source: Source, folder: Path) -> Built:
        return built[sources.index(source)]

    with af.use(cache_dir=tmp_path, build_processes=1), pytest.MonkeyPatch.context() as patch:
        patch.setattr(workers, "build", None)
        patch.setattr(building, "build", build)
        assert ensure(sources) == built


def test_an_error_travels_by_its_fields(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Numbers stay numbers; terms and the like become their text."""

    def fail(source: object, folder: object) -> None:
        raise af.errors.DoesNotFitDevice(variant=tmp_path, needed=3, device="G", available=2)

    monkeypatch.setattr(worker, "build", fail)
    answer = worker.answer(tiny_source(21.0), tmp_path)
    with pytest.raises(af.errors.DoesNotFitDevice) as caught:
        workers.read(json.dumps(answer))
    assert caught.value.fields == {
        "variant": str(tmp_path),
        "needed": 3,
        "device": "G",
        "available": 2,
    }


def test_every_error_can_be_raised_by_name() -> None:
    for kind in AttnFuseError.__subclasses__():
        assert getattr(af.errors, kind.__name__) is kind


class Terminal(io.StringIO):
    """A stderr that somebody looks at."""

    def isatty(self) -> bool:
        return True


def _one_build(*given: object) -> Stats:
    return Stats(builds=1)


@pytest.mark.parametrize(("stderr", "shown"), [(Terminal(), True), (io.StringIO(), False)])
def test_a_bar_is_shown_on_terminals_only(
    stderr: io.StringIO, shown: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(workers, "_run", _one_build)
    monkeypatch.setattr("sys.stderr", stderr)
    reset_stats()
    workers.build([tiny_source(22.0)] * 2, [tmp_path] * 2, 2)
    assert ("building kernels: 100%" in stderr.getvalue()) is shown
    assert stats().builds == 2


def _no_access(path: Path, mode: int) -> bool:
    return False


def test_a_read_only_cache_is_used_for_what_it_has(tmp_path: Path) -> None:
    """Simulated, since nothing is read-only for the superuser."""
    source, new = tiny_source(23.0), tiny_source(24.0)
    cache.temporary_root.cache_clear()
    with af.use(cache_dir=tmp_path):
        had = ensure([source])
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(os, "access", _no_access)
            assert ensure([source]) == had
            (tmp_path / "programs" / new.digest).mkdir()
            with pytest.warns(UserWarning, match=r"can't write its cache.*is read-only"):
                (built,) = ensure([new])
            assert built is not None and not built.path.is_relative_to(tmp_path)
            assert ensure([new]) == [built]
