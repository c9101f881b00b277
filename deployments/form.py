"""A multipart form as a request and the pictures to edit.

Knows the form of OpenAI's edits: fields, ``image`` or ``image[]``, ``mask``; nothing of limits on
what they ask for.
"""

from dataclasses import dataclass
from typing import Any

from starlette.datastructures import FormData, UploadFile
from starlette.exceptions import HTTPException
from starlette.requests import Request

from deployments.admission import read_request
from deployments.edits import Edit
from deployments.errors import JobError
from deployments.image_input import MAX_INPUT_BYTES, MAX_INPUTS
from deployments.schema import ImageRequest

IMAGE_NAMES = ("image", "image[]")
MAX_FIELDS = 50


@dataclass(frozen=True, slots=True, kw_only=True)
class EditForm:
    """What one form says."""

    request: ImageRequest
    edit: Edit


def form_schema() -> dict[str, Any]:
    """The body, for the API's description."""
    picture = {"type": "string", "format": "binary"}
    fields = ImageRequest.model_json_schema()
    fields["properties"] |= {
        "image": {"type": "array", "items": picture, "minItems": 1, "maxItems": MAX_INPUTS},
        "mask": picture,
    }
    fields["required"] = [*fields["required"], "image"]
    content = {"multipart/form-data": {"schema": fields}}
    return {"requestBody": {"required": True, "content": content}}


async def read_form(request: Request, max_pixels: int) -> EditForm:
    """The whole form, or JobError."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "multipart/form-data":
        raise JobError(f"the body is {kind or 'without a type'}; send multipart/form-data", None)
    try:
        async with request.form(max_files=MAX_INPUTS + 1, max_fields=MAX_FIELDS) as form:
            return await _read(form, max_pixels)
    except HTTPException as error:
        if error.status_code != 400:
            raise
        raise JobError(f"the form cannot be read: {error.detail}") from None


async def _read(form: FormData, max_pixels: int) -> EditForm:
    request = read_request(_fields(form), strict=False)
    pictures = [entry for name in IMAGE_NAMES for entry in form.getlist(name)]
    masks = form.getlist("mask")
    if not pictures:
        raise JobError("image is missing; send at least one file", "image")
    if len(masks) > 1:
        raise JobError(f"mask is given {len(masks)} times; send one, of the first image", "mask")
    contents = [await _bytes_of(entry, "image") for entry in pictures]
    mask = await _bytes_of(masks[0], "mask") if masks else None
    return EditForm(request=request, edit=await Edit.read(contents, mask, max_pixels))


def _fields(form: FormData) -> dict[str, str | UploadFile]:
    """Everything but the pictures; a file in place of a field is judged as that field."""
    fields: dict[str, str | UploadFile] = {}
    for name, value in form.multi_items():
        if name in fields:
            raise JobError(f"{name} is given twice; send it once", name)
        if name not in (*IMAGE_NAMES, "mask"):
            fields[name] = value
    return fields


async def _bytes_of(entry: str | UploadFile, name: str) -> bytes:
    if isinstance(entry, str):
        raise JobError(f"{name} is text; send a file, addresses are not fetched", name)
    if (entry.size or 0) > MAX_INPUT_BYTES:
        raise JobError(f"{name} has {entry.size} bytes; the limit is {MAX_INPUT_BYTES}", name)
    return await entry.read()
