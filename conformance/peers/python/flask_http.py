"""flask-limiter: a Flask application with its decorator, its limit from the path, its headers on."""

from __future__ import annotations

import sys
import warnings

from flask import Flask, request
from flask_limiter import Limiter
from werkzeug.serving import make_server

from conformance.peers.python.web import KEY, UNITS, limit_of

warnings.simplefilter("ignore")  # that memory is not for production: each target here is one process
app = Flask(__name__)
limiter = Limiter(lambda: f"{request.path}|{request.headers[KEY]}", app=app, headers_enabled=True)


def rate() -> str:
    count, seconds, _ = limit_of(request.path)
    return f"{count}/{UNITS[seconds]}"


@app.get("/<count>/<seconds>/<name>")
@limiter.limit(rate)
def answer(count: str, seconds: str, name: str) -> dict[str, bool]:
    return {"ok": True}


if __name__ == "__main__":
    import logging

    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    make_server("127.0.0.1", int(sys.argv[1]), app, threaded=True).serve_forever()
