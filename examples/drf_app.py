"""Django REST framework in one file: rules for the site, and a throttle on a view.

Run it: ``python -m examples.drf_app``, then ``for i in 1 2 3; do curl -si localhost:8000/report; done``.
"""

import os
from pathlib import Path
from wsgiref.simple_server import make_server

import django
from django.conf import settings
from django.core.wsgi import get_wsgi_application
from django.urls import path

settings.configure(
    SECRET_KEY="for an example on loopback only",
    ALLOWED_HOSTS=["127.0.0.1", "localhost"],
    ROOT_URLCONF=__name__,
    INSTALLED_APPS=[
        "django.contrib.contenttypes",
        "django.contrib.auth",
        "rest_framework",
        "ratekeeper.adapters.django",
    ],
    MIDDLEWARE=["ratekeeper.adapters.django.RateLimitMiddleware"],
    RATEKEEPER={"POLICY": Path(__file__).with_name("rules.toml")},
    REST_FRAMEWORK={
        "DEFAULT_RENDERER_CLASSES": ["rest_framework.renderers.JSONRenderer"],
        "DEFAULT_AUTHENTICATION_CLASSES": [],
        "DEFAULT_THROTTLE_RATES": {"reports": "2/minute"},
    },
)
django.setup()

from rest_framework.decorators import api_view, throttle_classes  # noqa: E402 - Django needs its settings first
from rest_framework.request import Request  # noqa: E402
from rest_framework.response import Response  # noqa: E402

from ratekeeper.adapters.drf import RateLimitThrottle  # noqa: E402


class Reports(RateLimitThrottle):
    scope = "reports"


@api_view()
def home(request: Request) -> Response:
    return Response({"hello": "world"})


@api_view()
def search(request: Request) -> Response:
    return Response({"found": request.query_params.get("q", "")})


@api_view()
@throttle_classes([Reports])
def report(request: Request) -> Response:
    return Response({"report": "long"})


urlpatterns = [path("", home), path("search", search), path("report", report)]

if __name__ == "__main__":
    with make_server("127.0.0.1", int(os.environ.get("PORT", "8000")), get_wsgi_application()) as server:
        print(f"http://127.0.0.1:{server.server_port}", flush=True)
        server.serve_forever()
