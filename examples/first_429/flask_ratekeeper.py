from flask import Flask

from ratekeeper.adapters.flask import RateLimiter

app = Flask(__name__)
limiter = RateLimiter(app)


@app.get("/")
@limiter.limit("2/minute")
def home():
    return {"hello": "world"}
