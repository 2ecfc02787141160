"""Reads a run request: JSON, or a form with a task file and the request as JSON text."""

from typing import Final

from fastapi import Request
from pydantic import ValidationError
from starlette.datastructures import UploadFile
from starlette.exceptions import HTTPException

from rollmill.contracts.json import JsonObject, loads
from rollmill.contracts.runs import RunRequest
from rollmill.errors import InputError

_FORM_SCHEMA: Final[JsonObject] = {
    "type": "object",
    "required": ["file"],
    "properties": {
        "file": {"type": "string", "format": "binary", "description": "Tasks as JSONL"},
        "request": {"type": "string", "description": "The run request as JSON text, without input and rows"},
    },
}
REQUEST_BODY: Final[JsonObject] = {
    "requestBody": {
        "required": True,
        "content": {
            "application/json": {"schema": RunRequest.model_json_schema()},
            "multipart/form-data": {"schema": _FORM_SCHEMA},
        },
    }
}


async def read_run_request(request: Request) -> tuple[RunRequest, bytes | None]:
    """Return the run request and the uploaded task file, if there is one.

    Raises:
        InputError: names each wrong field.
    """
    if not request.headers.get("content-type", "").startswith("multipart/form-data"):
        return _parse(await request.body()), None
    try:
        async with request.form(max_files=1, max_fields=1) as form:
            file, text = form.get("file"), form.get("request", "{}")
            if not isinstance(file, UploadFile) or not isinstance(text, str):
                raise InputError("the form needs the task file as 'file' and may have the run request as 'request'")
            return _parse(text.encode()), await file.read()
    except HTTPException as error:
        raise InputError(f"not a valid form: {error.detail}") from None


def _parse(body: bytes) -> RunRequest:
    try:
        value = loads(body)
    except ValueError as error:
        raise InputError(f"the run request is not valid JSON: {error}") from None
    try:
        return RunRequest.model_validate(value)
    except ValidationError as error:
        faults = [
            {"pointer": "/" + "/".join(map(str, fault["loc"])), "detail": fault["msg"]}
            for fault in error.errors(include_url=False, include_input=False)
        ]
        detail = "; ".join(f"{fault['pointer']}: {fault['detail']}" for fault in faults)
        raise InputError(detail, errors=faults) from None
