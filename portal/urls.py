"""Every address of the portal."""

from __future__ import annotations

from django.urls import URLPattern, URLResolver, include, path

from portal import passkey_views, views
from portal.health import livez, readyz

# The shell's own pages. The apps list theirs in their own modules.
own_urlpatterns: list[URLPattern | URLResolver] = [
    path("livez", livez, name="livez"),
    path("readyz", readyz, name="readyz"),
    path("", views.home, name="home"),
    path("signin/", views.sign_in, name="sign_in"),
    path("signin/<str:token>/", views.sign_in_by_link, name="sign_in_by_link"),
    path("signout/", views.sign_out, name="sign_out"),
    path("tenants/", views.tenants, name="tenants"),
    path("settings/", views.settings, name="settings"),
    path("settings/passkeys/", passkey_views.passkey_list, name="passkeys"),
    path("settings/passkeys/begin/", passkey_views.begin, name="passkey_begin"),
    path("settings/passkeys/add/", passkey_views.add, name="passkey_add"),
    path("settings/passkeys/<int:pk>/remove/", passkey_views.remove, name="passkey_remove"),
    path("settings/passkeys/codes/", passkey_views.codes, name="passkey_codes"),
    path("settings/passkeys/ask/", passkey_views.ask, name="passkey_ask"),
    path("settings/passkeys/prove/", passkey_views.prove, name="passkey_prove"),
    path("t/<slug:tenant>/people/", views.members, name="members"),
    path("t/<slug:tenant>/people/add/", views.member_add, name="member_add"),
    path("t/<slug:tenant>/people/<int:pk>/roles/", views.member_roles, name="member_roles"),
    path("t/<slug:tenant>/people/<int:pk>/remove/", views.member_remove, name="member_remove"),
    path("t/<slug:tenant>/evidence/", views.evidence, name="evidence"),
]

# What Django refuses before a view sees it.
handler400 = "portal.middleware.bad_request"

urlpatterns: list[URLPattern | URLResolver] = [
    path("", include("approvals.urls")),
    path("", include("runs.urls")),
    path("", include((own_urlpatterns, "portal"))),
]
