"""Django in one file: rules for the site, a limit on a view, plain and async, and an exempt view.

Run it: ``python -m examples.django_app``, then ``for i in 1 2 3 4 5 6; do curl -si localhost:8000/search; done``.
"""

import os
from pathlib import Path
from wsgiref.simple_server import make_server

import django
from django.conf import settings
from django.core.management import call_command
from django.core.wsgi import get_wsgi_application
from django.http import HttpRequest, JsonResponse
from django.urls import path

settings.configure(
    SECRET_KEY="for an example on loopback only",
    ALLOWED_HOSTS=["127.0.0.1", "localhost"],
    ROOT_URLCONF=__name__,
    INSTALLED_APPS=["ratekeeper.adapters.django"],
    MIDDLEWARE=["ratekeeper.adapters.django.RateLimitMiddleware"],
    RATEKEEPER={"POLICY": Path(__file__).with_name("rules.toml")},
)
django.setup()

from ratekeeper.adapters.django import exempt, rate_limit  # noqa: E402 - Django needs its settings first


def home(request: HttpRequest) -> JsonResponse:
    return JsonResponse({"hello": "world"})


async def search(request: HttpRequest) -> JsonResponse:
    return JsonResponse({"found": request.GET.get("q", "")})


@rate_limit("2/minute")
def report(request: HttpRequest) -> JsonResponse:
    return JsonResponse({"report": "long"})


@exempt
def health(request: HttpRequest) -> JsonResponse:
    return JsonResponse({"status": "well"})


urlpatterns = [path("", home), path("search", search), path("report", report), path("health", health)]

if __name__ == "__main__":
    call_command("check")
    with make_server("127.0.0.1", int(os.environ.get("PORT", "8000")), get_wsgi_application()) as server:
        print(f"http://127.0.0.1:{server.server_port}", flush=True)
        server.serve_forever()
