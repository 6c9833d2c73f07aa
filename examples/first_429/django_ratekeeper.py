from django.conf import settings
from django.http import JsonResponse
from django.urls import path

settings.configure(ROOT_URLCONF=__name__, SECRET_KEY="change me")

from ratekeeper.adapters.django import rate_limit


@rate_limit("2/minute")
def home(request):
    return JsonResponse({"hello": "world"})


urlpatterns = [path("", home)]
