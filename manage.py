#!/usr/bin/env python
"""Django's command-line entry point."""

import os
import sys

from portal import embedded
from portal.env import WrongValue

if __name__ == "__main__":
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "portal.settings")
    # The supervisor stays up as long as the installation and needs no framework:
    # it is started before one is loaded.
    if sys.argv[1:2] == ["up"]:
        sys.exit(embedded.main(sys.argv[2:]))
    from django.core.management import execute_from_command_line

    try:
        execute_from_command_line(sys.argv)
    except WrongValue as error:
        sys.exit(f"{sys.argv[0]}: {error}")
