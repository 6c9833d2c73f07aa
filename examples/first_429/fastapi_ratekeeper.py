from fastapi import Depends, FastAPI

from ratekeeper.adapters.fastapi import RateLimit

app = FastAPI()


@app.get("/", dependencies=[Depends(RateLimit("2/minute"))])
def home():
    return {"hello": "world"}
