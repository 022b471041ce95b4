"""Settings, what they refuse, and their page in the docs; errors and logs, which go with them."""

import logging
import pickle
import threading
from collections.abc import Callable, Iterator
from dataclasses import fields
from pathlib import Path

import pytest

from attnfuse import logs
from attnfuse.errors import AttnFuseError, SettingError, UnknownSettingError
from attnfuse.settings import Settings, get_settings, table, use, variable

PAGE = Path(__file__).parents[1] / "docs" / "settings.md"


def test_page_has_the_table_of_settings(golden: Callable[..., None]) -> None:
    before, _, rest = PAGE.read_text("utf-8").partition("<!-- table -->\n")
    _, _, after = rest.partition("<!-- end -->\n")
    golden(f"{before}<!-- table -->\n{table()}<!-- end -->\n{after}", path=PAGE)


def test_every_setting_is_in_the_table() -> None:
    for each in fields(Settings):
        assert f"| `{each.name}` | `ATTNFUSE_{each.name.upper()}` | " in table()


def test_defaults() -> None:
    settings = Settings.from_environment({})
    assert settings.cache_dir.name == "attnfuse"
    assert settings.dump_dir is None
    assert settings.logs == ""
    assert settings.cpu_threads == 0
    assert settings.reference_limit == 2048 * 2048
    assert settings.build_processes == 0


def test_compiler_is_the_first_on_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert Settings.from_environment({}).cxx is None
    for name in ("clang++", "g++"):
        (tmp_path / name).touch(0o755)
        assert Settings.from_environment({}).cxx == str(tmp_path / name)


def test_variables_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    compiler = tmp_path / "mine"
    compiler.touch(0o755)
    settings = Settings.from_environment(
        {
            "ATTNFUSE_CACHE_DIR": "cache",
            "ATTNFUSE_DUMP_DIR": "~/dump",
            "ATTNFUSE_LOGS": "info,+attnfuse.compiler",
            "ATTNFUSE_CPU_THREADS": "3",
            "ATTNFUSE_REFERENCE_LIMIT": "0",
            "ATTNFUSE_BUILD_PROCESSES": "1",
            "ATTNFUSE_CXX": str(compiler),
        }
    )
    assert settings == Settings(
        cache_dir=tmp_path / "cache",
        dump_dir=Path.home() / "dump",
        logs="info,+attnfuse.compiler",
        cpu_threads=3,
        reference_limit=0,
        build_processes=1,
        cxx=str(compiler),
    )


def test_empty_variable_is_unset() -> None:
    assert Settings.from_environment({"ATTNFUSE_CPU_THREADS": ""}).cpu_threads == 0


REFUSED = [
    ("cache_dir", "/dev/null"),
    ("dump_dir", "/dev/null"),
    ("logs", "loud"),
    ("logs", "attnfuse.compiler"),
    ("logs", "info,"),
    ("logs", "+torch"),
    ("cpu_threads", "-1"),
    ("cpu_threads", "many"),
    ("reference_limit", "1.5"),
    ("build_processes", "-1"),
    ("backward", "flash"),
    ("schedules", "hopper"),
    ("cxx", "no-such-compiler"),
]


@pytest.mark.parametrize(("name", "value"), REFUSED)
def test_bad_value_names_variable_value_and_remedy(name: str, value: str) -> None:
    with pytest.raises(SettingError) as caught:
        Settings.from_environment({variable(name): value})
    assert str(caught.value).startswith(f"{variable(name)}={value!r} is not possible; give ")
    with pytest.raises(SettingError, match=variable(name)), use(**{name: value}):
        pass


def test_every_setting_can_be_refused() -> None:
    assert {name for name, _ in REFUSED} == {each.name for each in fields(Settings)}


def test_use_overrides_within_its_block() -> None:
    before = get_settings()
    with use(cpu_threads=3) as outer:
        assert get_settings() is outer
        with use(reference_limit=7):
            assert (get_settings().cpu_threads, get_settings().reference_limit) == (3, 7)
        assert get_settings() is outer
    assert get_settings() is before


def test_use_ends_with_an_error() -> None:
    before = get_settings()
    with pytest.raises(ZeroDivisionError), use(cpu_threads=3):
        raise ZeroDivisionError
    assert get_settings() is before


def test_use_is_not_seen_by_a_new_thread() -> None:
    seen: list[int] = []
    with use(cpu_threads=3):
        thread = threading.Thread(target=lambda: seen.append(get_settings().cpu_threads))
        thread.start()
        thread.join()
    assert seen == [get_settings().cpu_threads]


def test_use_refuses_an_unknown_name() -> None:
    with pytest.raises(UnknownSettingError, match=r"'threads'; there are cache_dir, "):
        use(threads=3).__enter__()


def test_error_survives_pickling() -> None:
    error = SettingError(variable="V", value="x", allowed="a y")
    copy = pickle.loads(pickle.dumps(error))
    assert type(copy) is SettingError
    assert (str(copy), copy.fields) == (str(error), error.fields)


def test_error_is_both_ours_and_built_in() -> None:
    assert issubclass(SettingError, AttnFuseError)
    assert issubclass(SettingError, ValueError)


@pytest.fixture(autouse=True)
def levels_put_back() -> Iterator[None]:
    loggers = [logging.getLogger(name) for name in ("attnfuse", "attnfuse.plan")]
    before = [logger.level for logger in loggers]
    yield
    for logger, level in zip(loggers, before, strict=True):
        logger.setLevel(level)


def forget_handlers(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a program that has set up no logging; within a test, since pytest itself sets it up."""
    monkeypatch.setattr(logging.getLogger(), "handlers", [])
    monkeypatch.setattr(logging.getLogger("attnfuse"), "handlers", [logging.NullHandler()])


def test_levels() -> None:
    assert logs.levels("Info,+attnfuse.plan") == {"attnfuse": 20, "attnfuse.plan": 10}
    assert logs.levels("") == {}


def test_one_part_is_heard_and_the_rest_is_not(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    forget_handlers(monkeypatch)
    with use(logs="warning,+attnfuse.plan"):
        logs.configure()
        logs.configure()
    logging.getLogger("attnfuse.plan").debug("tiles")
    logging.getLogger("attnfuse.compiler").info("nothing")
    assert capsys.readouterr().err == "attnfuse.plan DEBUG: tiles\n"


def test_nothing_is_heard_unless_asked_for(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    forget_handlers(monkeypatch)
    logs.configure()
    logging.getLogger("attnfuse").error("tiles")
    assert capsys.readouterr() == ("", "")


def test_an_application_s_own_handlers_are_used(
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    capsys: pytest.CaptureFixture[str],
) -> None:
    forget_handlers(monkeypatch)
    logging.getLogger().addHandler(caplog.handler)
    with use(logs="+attnfuse.plan"):
        logs.configure()
    logging.getLogger("attnfuse.plan").debug("tiles")
    assert caplog.messages == ["tiles"]
    assert capsys.readouterr().err == ""
