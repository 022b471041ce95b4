"""Logging: every part logs to `logging.getLogger("attnfuse.<part>")`; this sets what is heard."""

import logging

from attnfuse.settings import get_settings

_FORMAT = "%(name)s %(levelname)s: %(message)s"


def levels(logs: str) -> dict[str, int]:
    """The level of each logger that the setting `logs` names.

    `levels("info,+attnfuse.plan")` is `{"attnfuse": INFO, "attnfuse.plan": DEBUG}`.

    Raises:
        KeyError: when an item is neither `+name` nor a level (`Settings` refuses these).
    """
    names = logging.getLevelNamesMapping()
    items = filter(None, logs.split(","))
    return dict(
        (item[1:], logging.DEBUG) if item.startswith("+") else ("attnfuse", names[item.upper()])
        for item in items
    )


def configure() -> None:
    """Set the levels that the setting `logs` asks for, and print to stderr where nobody else does.

    An application that has given the root logger handlers gets the records there, and only there.
    Calling it again adds nothing.

    Raises:
        SettingError: when the variable holds what the setting cannot be.
    """
    chosen = levels(get_settings().logs)
    for name, level in chosen.items():
        logging.getLogger(name).setLevel(level)
    if chosen and not logging.getLogger().handlers:
        _print_to_stderr(logging.getLogger("attnfuse"))


def _print_to_stderr(logger: logging.Logger) -> None:
    if any(type(handler) is logging.StreamHandler for handler in logger.handlers):
        return
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter(_FORMAT))
    logger.addHandler(handler)
