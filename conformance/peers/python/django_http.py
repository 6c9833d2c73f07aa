"""Django: the throttle of REST framework (``drf``) or the decorator of django-ratelimit (``ratelimit``)."""

from __future__ import annotations

import sys
from socketserver import ThreadingMixIn
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

import django
from django.conf import settings
from django.core.wsgi import get_wsgi_application
from django.http import HttpResponse
from django.urls import path

from conformance.peers.python.web import KEY, limit_of

settings.configure(
    ALLOWED_HOSTS=["*"], ROOT_URLCONF=__name__, SECRET_KEY="conformance", INSTALLED_APPS=[], LOGGING_CONFIG=None,
    CACHES={"default": {"BACKEND": "django.core.cache.backends.locmem.LocMemCache",
                        "OPTIONS": {"MAX_ENTRIES": 1_000_000}}},
    RATELIMIT_HASH_ALGORITHM="hashlib.sha256",
    REST_FRAMEWORK={"UNAUTHENTICATED_USER": None, "DEFAULT_AUTHENTICATION_CLASSES": []},
)  # fmt: skip
django.setup()

if sys.argv[1] == "drf":
    from rest_framework.response import Response
    from rest_framework.throttling import SimpleRateThrottle
    from rest_framework.views import APIView

    class PathThrottle(SimpleRateThrottle):
        rate = "1/s"

        def allow_request(self, request, view):
            self.num_requests, self.duration, _ = limit_of(request.path)
            return super().allow_request(request, view)

        def get_cache_key(self, request, view):
            return f"{request.path}|{request.headers[KEY]}"

    class Answer(APIView):
        throttle_classes = [PathThrottle]

        def get(self, request, **_):
            return Response({"ok": True})

    view = Answer.as_view()
else:
    from django_ratelimit.core import is_ratelimited

    def view(request, **_):
        count, seconds, _name = limit_of(request.path)
        limited = is_ratelimited(
            request, group=request.path, key=lambda group, asked: asked.headers[KEY], rate=f"{count}/{seconds}s",
            increment=True,
        )  # fmt: skip
        return HttpResponse(status=429 if limited else 200)


urlpatterns = [path("<count>/<seconds>/<name>", view)]


class ThreadingServer(ThreadingMixIn, WSGIServer):
    daemon_threads = True
    request_queue_size = 128


class QuietHandler(WSGIRequestHandler):
    def log_message(self, *_):
        pass


if __name__ == "__main__":
    application = get_wsgi_application()
    make_server("127.0.0.1", int(sys.argv[2]), application, ThreadingServer, QuietHandler).serve_forever()
