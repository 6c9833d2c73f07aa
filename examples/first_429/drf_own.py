from django.conf import settings
from django.urls import path

settings.configure(
    ROOT_URLCONF=__name__,
    SECRET_KEY="change me",
    INSTALLED_APPS=["django.contrib.contenttypes", "django.contrib.auth", "rest_framework"],
    REST_FRAMEWORK={
        "DEFAULT_AUTHENTICATION_CLASSES": [],
        "DEFAULT_THROTTLE_CLASSES": ["rest_framework.throttling.AnonRateThrottle"],
        "DEFAULT_THROTTLE_RATES": {"anon": "2/minute"},
    },
)

from rest_framework.decorators import api_view
from rest_framework.response import Response


@api_view()
def home(request):
    return Response({"hello": "world"})


urlpatterns = [path("", home)]
