"""Help that shows FILE, N and TEXT where Typer shows types of Python, such as ``<int range>``."""

from __future__ import annotations

from typing import Any

from typer.core import TyperCommand

WORDS = {"path": "FILE", "int": "N", "float": "NUMBER"}


class PlainTypes:
    """Shows what an option takes as a word that people know; an option that has a metavar keeps it."""

    def get_params(self, ctx: Any) -> Any:
        parameters = super().get_params(ctx)  # type: ignore[misc]
        for parameter in parameters:
            if parameter.param_type_name == "argument":
                parameter.display_type = parameter.display_type_rich = lambda ctx: ""  # its name says what it is
            elif parameter.metavar is None:
                parameter.metavar = word_of(parameter)
        return parameters


class PlainCommand(PlainTypes, TyperCommand):
    """A command with plain types."""


def word_of(option: Any) -> str:
    if option.is_flag:
        return ""
    kind = option.type_descriptor.annotation if hasattr(option, "type_descriptor") else option.type
    return next((word for name, word in WORDS.items() if name in str(kind).lower()), "TEXT")
