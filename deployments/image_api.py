"""The routes that draw: generations and edits, whole or as a stream. No Ray, no torch."""

from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

from fastapi import APIRouter, Request, Response
from fastapi.responses import StreamingResponse

from deployments.admission import admit, warnings_of
from deployments.answers import ImagesAnswer, completed_event, images_answer, partial_event
from deployments.backend import ImageBackend
from deployments.config import AppConfig
from deployments.description import errors, streamed
from deployments.following import follow
from deployments.form import form_schema, read_form
from deployments.messages import GenerateJob, GenerateResult
from deployments.schema import ImageRequest
from deployments.sse import begun

REPLICA_HEADER = "X-Tenure-Replica"
ANSWERS = {
    **streamed("The pictures; with stream: true events, and the pictures in the last ones"),
    **errors(400, 404, 408, 413, 429, 499),
}


def image_routes(config: AppConfig, backend: ImageBackend) -> APIRouter:
    """Everything below /v1/images."""
    routes = APIRouter(prefix="/v1/images")
    drawing = Drawing(backend)

    @routes.post(
        "/generations", response_model=ImagesAnswer, responses=ANSWERS, openapi_extra=pin_schema()
    )
    async def generate(request: Request, response: Response, body: ImageRequest) -> Any:
        job = admit(body, request.state.request_id, config)
        return await drawing.answer(request, response, body, job)

    @routes.post(
        "/edits",
        response_model=ImagesAnswer,
        responses=ANSWERS,
        openapi_extra={**form_schema(), **pin_schema()},
    )
    async def edit(request: Request, response: Response) -> Any:
        form = await read_form(request, config.limits.max_pixels)
        job = admit(form.request, request.state.request_id, config, form.edit)
        return await drawing.answer(request, response, form.request, job)

    return routes


def pin_schema() -> dict[str, Any]:
    """The header that names a replica, for the API's description."""
    header = {"name": REPLICA_HEADER, "in": "header", "schema": {"type": "string"}}
    return {"parameters": [header]}


class Drawing:
    """Sends a job, and answers whole or event by event, as the request says."""

    def __init__(self, backend: ImageBackend) -> None:
        self._backend = backend

    async def answer(
        self, request: Request, response: Response, wire: ImageRequest, job: GenerateJob
    ) -> ImagesAnswer | StreamingResponse:
        pin = request.headers.get(REPLICA_HEADER)
        warnings = warnings_of(wire)
        if wire.stream:
            return await begun(self._events(job, pin, warnings), job.request_id)
        result = await self._backend.draw(job, pin)
        response.headers[REPLICA_HEADER] = result.replica
        return images_answer(job, result, warnings)

    async def _events(
        self, job: GenerateJob, pin: str | None, warnings: tuple[str, ...]
    ) -> AsyncGenerator[dict[str, Any]]:
        """OpenAI's alone: its clients know no others."""
        async with aclosing(follow(self._backend, job, pin)) as messages:
            async for message in messages:
                if isinstance(message, GenerateResult):
                    for index in range(len(message.images)):
                        yield completed_event(job, message, index, warnings)
                elif message.preview is not None:
                    yield partial_event(job, message.preview)
