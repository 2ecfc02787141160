from pydantic import BaseModel, ConfigDict

from rollmill.contracts.json import JsonObject, JsonValue


class Problem(BaseModel):
    """RFC 9457 problem document. Open: readers ignore members that they do not know."""

    model_config = ConfigDict(extra="allow")

    type: str = "about:blank"
    """`urn:rollmill:problem:<slug>`, stable across releases."""
    title: str = ""
    status: int
    detail: str = ""
    instance: str = ""


def problems(*statuses: int) -> dict[int | str, dict[str, JsonValue]]:
    """Declare the problem answers of a route, for its `responses` argument."""
    content: JsonObject = {"application/problem+json": {"schema": Problem.model_json_schema()}}
    return {status: {"model": Problem, "content": content} for status in (401, 422, *statuses)}
