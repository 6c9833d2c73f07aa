"""Modes of rules that an operator has set by hand, in place of those in the rules file, and the kill switch.

They are kept in one small file that every worker reads when it changes.  So all workers follow within a second, even
if the store does not answer.
"""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING

from ratekeeper.errors import InvalidInput, shown
from ratekeeper.rules.reload import stamp

if TYPE_CHECKING:
    from pathlib import Path

MODES = ("enforce", "shadow", "off")


class Overrides:
    """Modes by rule; while ``is_killed``, every rule is off."""

    def __init__(self, folder: Path | None) -> None:
        self.path = folder / "switches.json" if folder is not None else None
        self.modes: dict[str, str] = {}
        self.is_killed = False
        self.read_stamp: object = None  # of the file as it was last read or written
        self.refresh()

    def mode(self, rule: str, file_mode: str) -> str:
        """The mode in force for ``rule``, whose rules file says ``file_mode``."""
        return "off" if self.is_killed else self.modes.get(rule, file_mode)

    def set(self, rule: str, mode: str | None) -> None:
        """Set a rule's mode; None restores the mode of the rules file."""
        if mode is None:
            self.modes.pop(rule, None)
        elif mode in MODES:
            self.modes[rule] = mode
        else:
            raise InvalidInput(f"mode: expected enforce, shadow or off, got {shown(mode)}.")
        self.write()

    def kill(self, killed: bool) -> None:
        """Turn all rules off, or back on."""
        self.is_killed = killed
        self.write()

    def write(self) -> None:
        if self.path is None:
            return
        temporary = self.path.with_suffix(f".{os.getpid()}")
        temporary.write_text(json.dumps({"killed": self.is_killed, "modes": self.modes}))
        temporary.replace(self.path)
        self.read_stamp = stamp(self.path)

    def refresh(self) -> bool:
        """Read the file if it has changed; says whether the overrides are new."""
        if self.path is None:
            return False
        current = stamp(self.path)
        if current == self.read_stamp:
            return False
        self.read_stamp = current
        if current is None:
            return False
        try:
            content = json.loads(self.path.read_text())
            modes = {str(rule): mode for rule, mode in content["modes"].items() if mode in MODES}
            self.modes, self.is_killed = modes, bool(content["killed"])
        except (OSError, ValueError, KeyError, AttributeError, TypeError):
            return False  # a damaged file, or another program's: the present overrides stay
        return True
