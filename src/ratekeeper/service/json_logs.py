"""Log lines as JSON, one object a line."""

from __future__ import annotations

import json
import logging
from time import gmtime, strftime


class JsonLines(logging.Formatter):
    """A record as one JSON object; the facts of an event stand beside its message."""

    def format(self, record: logging.LogRecord) -> str:
        at = strftime("%Y-%m-%dT%H:%M:%S", gmtime(record.created)) + f".{int(record.msecs):03d}Z"
        found = {"at": at, "level": record.levelname.lower(), "message": record.getMessage()}
        facts = getattr(record, "ratekeeper", None)
        if isinstance(facts, dict):
            found |= facts
        if record.exc_info:
            found["error"] = self.formatException(record.exc_info)
        return json.dumps(found, default=str)
