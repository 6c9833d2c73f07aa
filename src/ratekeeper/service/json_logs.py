"""Log lines as JSON, one object per line."""

from __future__ import annotations

import json
import logging
from time import gmtime, strftime


class JsonLines(logging.Formatter):
    """A log record as one JSON object; the fields of an event stand beside its message."""

    def format(self, record: logging.LogRecord) -> str:
        at = strftime("%Y-%m-%dT%H:%M:%S", gmtime(record.created)) + f".{int(record.msecs):03d}Z"
        fields = {"at": at, "level": record.levelname.lower(), "message": record.getMessage()}
        event = getattr(record, "ratekeeper", None)
        if isinstance(event, dict):
            fields |= event
        if record.exc_info:
            fields["error"] = self.formatException(record.exc_info)
        return json.dumps(fields, default=str)
