"""A Django project whose tasks are run by Veredus: `python manage.py runserver` and `python manage.py veredus_worker`.

curl -X POST localhost:8000/orders/7       gives the id of a task
curl localhost:8000/tasks/<id>             how it stands, and its result
"""

import os
import sys

from django.core.management import execute_from_command_line

if __name__ == "__main__":
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "shop.settings")
    execute_from_command_line(sys.argv)
