"""FastAPI: rules for the application, and a limit on a route, which inherits their settings.

Run it: ``python -m examples.fastapi_app``, then ``for i in 1 2 3 4 5 6; do curl -si localhost:8000/search; done``.
"""

import os
from pathlib import Path

import uvicorn
from fastapi import Depends, FastAPI

from ratekeeper.adapters.asgi import RateLimitMiddleware
from ratekeeper.adapters.fastapi import RateLimit, document

app = FastAPI()
app.add_middleware(RateLimitMiddleware, policy=Path(__file__).with_name("rules.toml"))


@app.get("/")
async def home() -> dict[str, str]:
    return {"hello": "world"}


@app.get("/search")
async def search(q: str = "") -> dict[str, str]:
    return {"found": q}


@app.get("/report", dependencies=[Depends(RateLimit("2/minute"))])
async def report() -> dict[str, str]:
    return {"report": "long"}


document(app)  # the refusals, in /docs

if __name__ == "__main__":
    uvicorn.run(app, port=int(os.environ.get("PORT", "8000")))
