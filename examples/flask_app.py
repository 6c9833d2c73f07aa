"""Flask: rules for the application, a limit on a view, and an exempt view.

Run it: ``python -m examples.flask_app``, then ``for i in 1 2 3 4 5 6; do curl -si localhost:8000/search; done``.
"""

import os

from flask import Flask, request

from ratekeeper.adapters.flask import RateLimiter

app = Flask(__name__)
limiter = RateLimiter(app, policy="rules.toml")


@app.get("/")
def home() -> dict[str, str]:
    return {"hello": "world"}


@app.get("/search")
def search() -> dict[str, str]:
    return {"found": request.args.get("q", "")}


@app.get("/report")
@limiter.limit("2/minute")
def report() -> dict[str, str]:
    return {"report": "long"}


@app.get("/health")
@limiter.exempt
def health() -> dict[str, str]:
    return {"status": "well"}


if __name__ == "__main__":
    app.run(port=int(os.environ.get("PORT", "8000")))
