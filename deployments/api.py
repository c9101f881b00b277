"""The HTTP front: OpenAI's images API over whatever draws. No Ray, no torch.

Every error that leaves it has OpenAI's shape.
"""

import base64
import logging
import time

from fastapi import APIRouter, Depends, FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException

from deployments.admission import admit, warnings_of
from deployments.api_keys import ApiKeys
from deployments.backend import ImageBackend
from deployments.config import AppConfig
from deployments.errors import ErrorAnswer, JobError, ModelNotFound, TenureError, answer_to
from deployments.messages import GenerateJob, GenerateResult
from deployments.request_ids import RequestIds
from deployments.schema import ImageData, ImageRequest, ImagesAnswer, describe
from deployments.status_api import status_routes
from deployments.version import version

REPLICA_HEADER = "X-Tenure-Replica"
logger = logging.getLogger(__name__)


def create_api(
    config: AppConfig, backend: ImageBackend, *, echo_request_id: bool = True
) -> FastAPI:
    """The whole application. A proxy that returns ``X-Request-Id`` itself turns the echo off."""
    api = FastAPI(title="Tenure", version=version(), docs_url="/docs", redoc_url=None)
    api.add_middleware(RequestIds, echo=echo_request_id)
    keys = ApiKeys.of(config.server)
    api.include_router(image_routes(config, backend), dependencies=[Depends(keys)])
    api.include_router(status_routes(backend))
    for kind in (TenureError, TimeoutError, Exception):
        api.add_exception_handler(kind, _on_error)
    api.add_exception_handler(RequestValidationError, _on_invalid)
    api.add_exception_handler(HTTPException, _on_http)
    return api


def image_routes(config: AppConfig, backend: ImageBackend) -> APIRouter:
    """Everything below /v1."""
    routes = APIRouter(prefix="/v1")
    model = {"id": config.model.name, "object": "model", "created": 0, "owned_by": "tenure"}

    @routes.post("/images/generations")
    async def generate(request: Request, response: Response, body: ImageRequest) -> ImagesAnswer:
        job = admit(body, request.state.request_id, config)
        result = await backend.draw(job, request.headers.get(REPLICA_HEADER))
        response.headers[REPLICA_HEADER] = result.replica
        return images_answer(job, result, warnings_of(body))

    @routes.delete("/requests/{request_id}")
    async def cancel(request_id: str) -> JSONResponse:
        if backend.cancel(request_id):
            return JSONResponse({"id": request_id, "cancelled": True})
        message = f"no request {request_id!r} is waiting or running"
        return _answer(_not_found(message, "request_not_found"))

    @routes.get("/models")
    async def models() -> dict[str, object]:
        return {"object": "list", "data": [model]}

    @routes.get("/models/{name:path}")
    async def one_model(name: str) -> dict[str, object]:
        if name != config.model.name:
            raise ModelNotFound(f"the model {name!r} does not exist; see /v1/models", "model")
        return dict(model)

    return routes


def images_answer(
    job: GenerateJob, result: GenerateResult, warnings: tuple[str, ...]
) -> ImagesAnswer:
    """A finished job as the client reads it."""
    return ImagesAnswer(
        created=int(time.time()),
        data=[
            ImageData(b64_json=base64.b64encode(image.png).decode(), seed=image.seed)
            for image in result.images
        ],
        output_format=job.output_format,
        size=f"{job.width}x{job.height}",
        replica=result.replica,
        seconds=round(result.seconds, 3),
        residency=result.usage,
        warnings=[*warnings, *result.warnings],
    )


async def _on_error(request: Request, error: Exception) -> JSONResponse:
    answer = answer_to(error)
    if answer.status >= 500:
        logger.error("request %s: %s", request.state.request_id, answer.message)
    return _answer(answer)


async def _on_invalid(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, RequestValidationError)
    return _answer(answer_to(JobError(*describe(error.errors()[0]))))


async def _on_http(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, HTTPException)
    message = f"{request.method} {request.url.path}: {error.detail}"
    return _answer(_not_found(message, "not_found", error.status_code))


def _not_found(message: str, code: str, status: int = 404) -> ErrorAnswer:
    return ErrorAnswer(status=status, message=message, type="invalid_request_error", code=code)


def _answer(answer: ErrorAnswer) -> JSONResponse:
    return JSONResponse(answer.body, answer.status, headers=dict(answer.headers))
