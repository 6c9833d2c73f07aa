"""One Django for all tests: settings can be made only once in a process."""

import django
from django.conf import settings

if not settings.configured:
    settings.configure(
        SECRET_KEY="only for tests, and therefore no secret at all",
        ALLOWED_HOSTS=["*"],
        ROOT_URLCONF="tests.adapters.django_site",
        INSTALLED_APPS=[
            "django.contrib.contenttypes",
            "django.contrib.auth",
            "rest_framework",
            "ratekeeper.adapters.django",
        ],
        REST_FRAMEWORK={"DEFAULT_THROTTLE_RATES": {"burst": "2/min", "day": "3/day", "none": None}},
        USE_TZ=True,
    )
    django.setup()

urlpatterns = []
OURS = "ratekeeper.adapters.django.RateLimitMiddleware"


class User:
    is_authenticated = True

    def __init__(self, pk):
        self.pk = pk


class Nobody:
    is_authenticated = False
    pk = None


def user_of(request):
    name = request.headers.get("X-User")
    return User(name) if name else Nobody()


def authentication(get_response):
    """Stands in for Django's own, which needs a database: sets ``user`` and ``auser``."""
    from asgiref.sync import iscoroutinefunction, markcoroutinefunction

    def prepare(request):
        request.user = user_of(request)

        async def auser():
            return user_of(request)

        request.auser = auser

    if iscoroutinefunction(get_response):

        async def middleware(request):
            prepare(request)
            return await get_response(request)

        return markcoroutinefunction(middleware)

    def middleware(request):
        prepare(request)
        return get_response(request)

    return middleware


authentication.async_capable = authentication.sync_capable = True
AUTHENTICATION = "tests.adapters.django_site.authentication"
