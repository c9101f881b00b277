"""What the API's own description (``/openapi.json``) says of errors, streams and keys.

It knows statuses and OpenAPI; when an error is answered is the routes' own business.
"""

from typing import Any

from fastapi import FastAPI
from pydantic import BaseModel

from deployments.api_keys import OPEN

SAID = {
    400: "The request cannot be meant, or is over a limit of this server",
    401: "No valid API key",
    404: "No such model, replica or request",
    408: "The request took too long and was stopped",
    413: "The body is too large",
    429: "Too many requests wait; Retry-After says when to come again",
    431: "Path, query and headers are too large",
    499: "The request was cancelled",
    500: "The job failed, or an error nobody foresaw; the log has more",
}
STREAM: dict[str, Any] = {"text/event-stream": {"schema": {"type": "string"}}}
KEY = "ApiKey"
Responses = dict[int | str, dict[str, Any]]


class ErrorDetail(BaseModel):
    """OpenAI's fields of an error."""

    message: str
    type: str
    param: str | None
    code: str


class ErrorBody(BaseModel):
    """Every error answer."""

    error: ErrorDetail


def errors(*statuses: int) -> Responses:
    """For ``responses`` of a route or of the whole application."""
    return {
        status: {"model": ErrorBody, "description": SAID[status]} for status in sorted(statuses)
    }


def streamed(description: str) -> Responses:
    """A 200 that may be a stream of events."""
    return {200: {"description": description, "content": STREAM}}


class DescribedApi(FastAPI):
    """An application whose description says nothing that is never answered."""

    def __init__(self, *, needs_keys: bool, **options: Any) -> None:
        super().__init__(**options)
        self._needs_keys = needs_keys

    def openapi(self) -> dict[str, Any]:
        if self.openapi_schema is None:
            schema = super().openapi()
            for path, operations in schema["paths"].items():
                for operation in operations.values():
                    self._correct(operation, guarded=self._needs_keys and path not in OPEN)
            parts = schema["components"]
            for name in ("HTTPValidationError", "ValidationError"):
                parts["schemas"].pop(name, None)
            if self._needs_keys:
                parts["securitySchemes"] = {KEY: {"type": "http", "scheme": "bearer"}}
        assert self.openapi_schema is not None  # FastAPI keeps what it made
        return self.openapi_schema

    def _correct(self, operation: dict[str, Any], *, guarded: bool) -> None:
        responses = operation["responses"]
        responses.pop("422", None)  # FastAPI's own; here it is a 400
        if guarded:
            operation["security"] = [{KEY: []}]
        else:
            responses.pop("401")
