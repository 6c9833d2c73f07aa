"""Django wants its settings before anything of it is imported."""

from tests.adapters import django_site  # noqa: F401
