"""The page at `/docs`: every operation in plain HTML, with no script, and nothing loaded from anywhere."""

from collections.abc import Iterator
from html import escape
from typing import Final

from fastapi import APIRouter, FastAPI, Request
from fastapi.responses import HTMLResponse

from rollmill.contracts.json import JsonObject

HEADERS: Final = {
    "content-security-policy": "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
}
_PAGE: Final = """<!doctype html>
<html lang="en"><meta charset="utf-8"><title>{title}</title>
<style>body {{ font: 16px sans-serif; margin: 2em auto; max-width: 60em }} td {{ padding: .2em 1em .2em 0 }}</style>
<h1>{title} {version}</h1>
<p>Every request and answer in full: <a href="openapi.json">openapi.json</a></p>
<table>{lines}</table>
</html>
"""


def docs_router() -> APIRouter:
    """Make the endpoint."""
    router = APIRouter(include_in_schema=False)

    @router.get("/docs")
    async def docs(request: Request) -> HTMLResponse:
        app: FastAPI = request.app
        lines = "".join(_lines(app.openapi()))
        page = _PAGE.format(title=escape(app.title), version=escape(app.version), lines=lines)
        return HTMLResponse(page, headers=HEADERS)

    return router


def _lines(document: JsonObject) -> Iterator[str]:
    for path, operations in document["paths"].items():
        for method, operation in operations.items():
            cells = method.upper(), path, operation.get("summary", "")
            yield "<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in cells) + "</tr>\n"
