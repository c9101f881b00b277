"""The HTTP front: OpenAI's images API over whatever draws. No Ray, no torch.

Every error that leaves it has OpenAI's shape.
"""

import logging

from fastapi import APIRouter, FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException

from deployments.api_keys import ApiKeys, GuardedByKeys
from deployments.backend import ImageBackend
from deployments.body_limit import BodyLimit, HeadLimit
from deployments.config import AppConfig
from deployments.description import DescribedApi, errors
from deployments.errors import (
    HTTP_CODES,
    INVALID,
    ErrorAnswer,
    JobError,
    ModelNotFound,
    TenureError,
    answer_to,
    log_failure,
)
from deployments.image_api import image_routes
from deployments.request_api import request_routes
from deployments.request_ids import RequestIds
from deployments.schema import describe
from deployments.status_api import status_routes
from deployments.version import version

logger = logging.getLogger(__name__)


def create_api(
    config: AppConfig, backend: ImageBackend, *, echo_request_id: bool = True
) -> FastAPI:
    """The whole application. A proxy that returns ``X-Request-Id`` itself turns the echo off."""
    api = DescribedApi(
        needs_keys=config.server.needs_keys,
        title="Tenure",
        version=version(),
        docs_url="/docs",
        redoc_url=None,
        responses=errors(401, 431, 500),
    )
    api.add_middleware(BodyLimit)
    api.add_middleware(GuardedByKeys, keys=ApiKeys.of(config.server))
    api.add_middleware(HeadLimit)
    api.add_middleware(RequestIds, echo=echo_request_id)
    for routes in (image_routes(config, backend), request_routes(backend), model_routes(config)):
        api.include_router(routes)
    api.include_router(status_routes(backend))
    for kind in (TenureError, TimeoutError, Exception):
        api.add_exception_handler(kind, _on_error)
    api.add_exception_handler(RequestValidationError, _on_invalid)
    api.add_exception_handler(HTTPException, _on_http)
    return api


def model_routes(config: AppConfig) -> APIRouter:
    """The one model that is served."""
    routes = APIRouter(prefix="/v1/models")
    model = {"id": config.model.name, "object": "model", "created": 0, "owned_by": "tenure"}

    @routes.get("")
    async def models() -> dict[str, object]:
        return {"object": "list", "data": [model]}

    @routes.get("/{name:path}", responses=errors(404))
    async def one_model(name: str) -> dict[str, object]:
        if name != config.model.name:
            raise ModelNotFound(f"the model {name!r} does not exist; see /v1/models", "model")
        return dict(model)

    return routes


async def _on_error(request: Request, error: Exception) -> JSONResponse:
    request_id: str = request.state.request_id
    answer = answer_to(error, request_id)
    log_failure(logger, request_id, error, answer)
    return _answer(answer)


async def _on_invalid(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, RequestValidationError)
    return _answer(answer_to(JobError(*describe(error.errors()[0]))))


async def _on_http(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, HTTPException)
    return _answer(
        ErrorAnswer(
            status=error.status_code,
            message=f"{request.method} {request.url.path}: {error.detail}",
            type=INVALID,
            code=HTTP_CODES.get(error.status_code, "not_found"),
        )
    )


def _answer(answer: ErrorAnswer) -> JSONResponse:
    return JSONResponse(answer.body, answer.status, headers=dict(answer.headers))
