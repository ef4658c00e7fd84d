"""Close a day, and look whether it is closed."""

from django.http import HttpRequest, JsonResponse
from django.urls import path
from django.views.decorators.csrf import csrf_exempt

from shop.office.tasks import close_day


@csrf_exempt
def close(request: HttpRequest, day: str) -> JsonResponse:
    return JsonResponse({"task": close_day.enqueue(day).id}, status=202)


def look(request: HttpRequest, task_id: str) -> JsonResponse:
    result = close_day.get_result(task_id)
    done = result.status == "SUCCESSFUL"
    return JsonResponse({"status": result.status, "result": result.return_value if done else None})


urlpatterns = [path("days/<str:day>", close), path("tasks/<str:task_id>", look)]
