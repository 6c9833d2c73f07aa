from flask import Flask
from flask_limiter import Limiter
from flask_limiter.util import get_remote_address

app = Flask(__name__)
limiter = Limiter(get_remote_address, app=app, storage_uri="memory://")


@app.get("/")
@limiter.limit("2/minute")
def home():
    return {"hello": "world"}
