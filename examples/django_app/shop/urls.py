"""Two addresses: order something, and ask how it stands."""

from django.http import HttpRequest, JsonResponse
from django.urls import path
from django.views.decorators.csrf import csrf_exempt

from shop.tasks import confirm


@csrf_exempt
def order(request: HttpRequest, number: int) -> JsonResponse:
    return JsonResponse({"task": confirm.enqueue(number).id}, status=202)


def look(request: HttpRequest, task_id: str) -> JsonResponse:
    result = confirm.get_result(task_id)
    done = result.status == "SUCCESSFUL"
    return JsonResponse({"status": result.status, "result": result.return_value if done else None})


urlpatterns = [path("orders/<int:number>", order), path("tasks/<str:task_id>", look)]
