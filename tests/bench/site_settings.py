"""The portal's settings, with one more address: the smallest view there is."""

from portal.settings import *  # noqa: F403

ROOT_URLCONF = "tests.bench.site_urls"
