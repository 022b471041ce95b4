"""`attnfuse doctor`: every problem has its remedy, and the exit status says what can be built."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tiny import compiler

import attnfuse as af
from attnfuse.cli import doctor, main, trial
from attnfuse.cli.doctor import Finding
from attnfuse.devices import Device, find_device
from attnfuse.errors import SettingError


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """No kernel is built, unless a test wants to see that."""
    monkeypatch.setattr(trial, "run", lambda: (1.5, 1e-7))


def report(capsys: pytest.CaptureFixture[str]) -> tuple[int, str]:
    """The exit status, and what was printed."""
    return main(["doctor"]), capsys.readouterr().out


def test_a_machine_with_a_compiler(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.undo()
    status, text = report(capsys)
    assert status == 0 and text.endswith("kernels can be built here\n")
    for part in ("python ", "torch ", "tilelang ", "cache ", "GPU ", "nvcc "):
        assert f"  {part}" in text
    assert "a kernel was built in" in text
    assert f"setting         ATTNFUSE_CACHE_DIR={af.get_settings().cache_dir}" in text


def test_a_machine_without_anything(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "")
    monkeypatch.delenv("CUDA_HOME", raising=False)
    with af.use(cxx=None):
        status, text = report(capsys)
    assert status == 1 and text.endswith("no kernel can be built here\n")
    assert "! C++ compiler    none\n    → install g++ or clang++, or set ATTNFUSE_CXX" in text


def test_a_compiler_that_fails_is_quoted(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.undo()
    with af.use(cxx=compiler(tmp_path / "broken", "echo no such luck >&2; exit 1")):
        status, text = report(capsys)
    assert status == 1
    assert "no such luck" in text and "→ mend it, or set ATTNFUSE_CXX to another" in text


@pytest.mark.parametrize("error", [1e-3, float("nan"), float("inf")])
def test_a_wrong_kernel_is_a_problem(error: float, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trial, "run", lambda: (1.5, error))
    found = doctor.cpu()
    assert not found.builds and "is wrong by" in found.text and found.remedy


def test_another_failure_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> tuple[float, float]:
        raise RuntimeError("the sky fell")

    monkeypatch.setattr(trial, "run", fail)
    found = doctor.cpu()
    assert not found.builds and "RuntimeError: the sky fell" in found.text and found.remedy


@pytest.mark.parametrize(
    ("arch", "listed", "status"),
    [("h200", "sm_80 sm_90a", 0), ("h200", "sm_80 sm_90", 0), ("b200", "sm_80 sm_90", 1)],
)
def test_nvcc_has_to_know_the_gpu(
    arch: str,
    listed: str,
    status: int,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (tmp_path / "bin").mkdir()
    nvcc = tmp_path / "bin" / "nvcc"
    nvcc.write_text(f"#!/bin/sh\necho 'tools, release 9.1, V9.1.2'; echo {listed}\n")
    nvcc.chmod(0o755)
    monkeypatch.setenv("CUDA_HOME", str(tmp_path))
    monkeypatch.setattr(doctor, "gpus", lambda: iter([("Some GPU", find_device(arch))]))
    with af.use(cxx=None):
        found, text = report(capsys)
    assert found == status
    assert f"Some GPU, profile {arch}" in text and f"{nvcc}, release 9.1" in text
    assert ("doesn't know sm_100a\n    → install a newer CUDA toolkit" in text) is bool(status)


def test_a_gpu_without_nvcc_or_profile(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def gpus() -> Iterator[tuple[str, Device | None]]:
        yield "Some GPU", find_device("a100")
        yield "Old GPU", None

    monkeypatch.setattr(doctor, "gpus", gpus)
    monkeypatch.setenv("PATH", "")
    monkeypatch.delenv("CUDA_HOME", raising=False)
    _, text = report(capsys)
    assert "! nvcc            none\n    → install the CUDA toolkit, or set CUDA_HOME" in text
    assert "! GPU             Old GPU, which has no profile\n    →" in text


def test_settings_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ATTNFUSE_CPU_THREADS", "2")
    monkeypatch.setenv("ATTNFUSE_CPU_TREADS", "2")
    found = {finding.text: finding.remedy for finding in doctor.settings()}
    assert found["ATTNFUSE_CPU_THREADS=2"] is None
    assert "ATTNFUSE_CPU_THREADS" in str(found["ATTNFUSE_CPU_TREADS=2"])


def test_an_impossible_setting_ends_the_report(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse() -> None:
        raise SettingError(variable="ATTNFUSE_CPU_THREADS", value="q", allowed="a number")

    monkeypatch.setattr(doctor, "get_settings", refuse)
    status, text = report(capsys)
    assert status == 1
    assert "ATTNFUSE_CPU_THREADS='q' is not possible" in text and "→ mend or unset" in text


def test_a_package_that_is_missing_ends_the_report(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert doctor.package("no-such-package") == Finding(
        "no-such-package", "not installed", "pip install no-such-package"
    )

    def missing(name: str) -> Finding:
        return Finding(name, "not installed", "get it")

    monkeypatch.setattr(doctor, "package", missing)
    status, text = report(capsys)
    assert status == 1 and "cache" not in text


def test_a_cache_that_can_not_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(dir: Path) -> None:
        raise PermissionError

    with af.use(cache_dir=tmp_path / "cache"):
        assert doctor.cache().remedy is None
        monkeypatch.setattr("tempfile.TemporaryFile", refuse)
        found = doctor.cache()
    assert "can't be written" in found.text and "ATTNFUSE_CACHE_DIR" in str(found.remedy)
    assert not (tmp_path / "cache").exists()
