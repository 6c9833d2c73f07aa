from django.conf import settings
from django.http import HttpResponse, JsonResponse
from django.urls import path
from django_ratelimit.decorators import ratelimit

settings.configure(
    ROOT_URLCONF=__name__,
    SECRET_KEY="change me",
    MIDDLEWARE=["django_ratelimit.middleware.RatelimitMiddleware"],
    RATELIMIT_VIEW=f"{__name__}.too_many",
)


def too_many(request, exception):
    return HttpResponse("Too many requests", status=429)


@ratelimit(key="ip", rate="2/m")
def home(request):
    return JsonResponse({"hello": "world"})


urlpatterns = [path("", home)]
