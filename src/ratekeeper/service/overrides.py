"""The modes that somebody has set by hand, over those of the rules file, and the kill switch.

They live in one small file that every worker looks at, so that all of them obey within a second, whatever the store
does.
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
    """Modes by rule; ``is_killed`` puts every rule off."""

    def __init__(self, folder: Path | None) -> None:
        self.path = folder / "switches.json" if folder is not None else None
        self.modes: dict[str, str] = {}
        self.is_killed = False
        self.seen: object = None
        self.look()

    def mode(self, rule: str, own: str) -> str:
        """The mode that ``rule`` is in, whose file says ``own``."""
        return "off" if self.is_killed else self.modes.get(rule, own)

    def throw(self, rule: str, mode: str | None) -> None:
        """Set a rule's mode; None gives it back to the file."""
        if mode is None:
            self.modes.pop(rule, None)
        elif mode in MODES:
            self.modes[rule] = mode
        else:
            raise InvalidInput(f"mode: expected enforce, shadow or off, got {shown(mode)}.")
        self.write()

    def kill(self, killed: bool) -> None:
        """Put all rules off, or back."""
        self.is_killed = killed
        self.write()

    def write(self) -> None:
        if self.path is None:
            return
        beside = self.path.with_suffix(f".{os.getpid()}")
        beside.write_text(json.dumps({"killed": self.is_killed, "modes": self.modes}))
        beside.replace(self.path)
        self.seen = stamp(self.path)

    def look(self) -> bool:
        """Read the file if it is another; says whether it was."""
        if self.path is None:
            return False
        now = stamp(self.path)
        if now == self.seen:
            return False
        self.seen = now
        if now is None:
            return False
        try:
            found = json.loads(self.path.read_text())
            modes = {str(rule): mode for rule, mode in found["modes"].items() if mode in MODES}
            self.modes, self.is_killed = modes, bool(found["killed"])
        except (OSError, ValueError, KeyError, AttributeError, TypeError):
            return False  # half a file, or somebody else's: what was set stays
        return True
