"""Writes errors in the form of OpenAI's API; clients of that API turn them into exceptions."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from pydantic import ValidationError
from pydantic_core import ErrorDetails
from starlette.responses import JSONResponse

from glgpt.errors import quoted, written

TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "invalid_request_error",
    405: "invalid_request_error",
    413: "invalid_request_error",
    415: "invalid_request_error",
    429: "rate_limit_error",
}  # type of an error by its HTTP status; for other statuses it is "server_error"
ALLOWED = {
    "bool_parsing": "true or false",
    "bool_type": "true or false",
    "dict_type": "an object",
    "finite_number": "a finite number",
    "float_parsing": "a number",
    "float_type": "a number",
    "greater_than_equal": "at least {ge}",
    "int_from_float": "an integer",
    "int_parsing": "an integer",
    "int_parsing_size": "a shorter integer",
    "int_type": "an integer",
    "less_than_equal": "at most {le}",
    "list_type": "an array",
    "model_attributes_type": "an object",
    "model_type": "an object",
    "string_pattern_mismatch": "a string that matches {pattern}",
    "string_too_long": "a string of at most {max_length} characters",
    "string_type": "a string",
    "too_long": "an array of at most {max_length} elements",
}  # description of the allowed values, by pydantic's type of error


class ApiError(Exception):
    """An answer with a status other than 200; `param` is the request's field at fault, `code` identifies the error."""

    def __init__(
        self,
        status: int,
        message: str,
        param: str | None = None,
        code: str | None = None,
        retry_after: int | None = None,
    ) -> None:
        super().__init__(message)
        self.status, self.message, self.param, self.code, self.retry_after = status, message, param, code, retry_after

    def body(self) -> dict[str, Any]:
        """Returns the JSON of the answer."""
        kind = TYPES.get(self.status, "server_error")
        return {"error": {"message": self.message, "type": kind, "param": self.param, "code": self.code}}

    def response(self) -> JSONResponse:
        """Returns the answer."""
        headers = {} if self.retry_after is None else {"Retry-After": str(self.retry_after)}
        if self.status == 401:
            headers["WWW-Authenticate"] = "Bearer"
        return JSONResponse(self.body(), self.status, headers)


def invalid_request(given: dict[str, Any], error: ValidationError) -> ApiError:
    """Returns the answer to a body that does not validate: the first field at fault, its value and what is allowed."""
    found = error.errors()
    if not found[0]["loc"]:
        return ApiError(400, f"the body has the key {in_json(found[0]['input'])}; keys must be Unicode text")
    found = [each for each in found if each["loc"][0] == found[0]["loc"][0]]
    places = [_place(given, each["loc"], each["type"] == "missing") for each in found]
    # pydantic reports an error for each type that a field may have. The client probably meant the type with the most
    # deeply nested error, because the outer levels of the value fit this type.
    deepest = max(map(len, places))
    place = next(place for place in places if len(place) == deepest)
    errors = [each for each, own in zip(found, places, strict=True) if own == place]
    where, kind = quoted(".".join(place)), errors[0]["type"]
    if kind == "extra_forbidden":
        return ApiError(400, f"{where} is not a field that this server supports", where)
    if kind == "missing":
        return ApiError(400, f"{where} is missing", where)
    if errors[0]["loc"][-1] == "[key]":
        allowed = " or ".join(dict.fromkeys(map(_allowed, errors)))
        return ApiError(
            400, f"{quoted('.'.join(place[:-1]))} has the key {in_json(place[-1])}; keys must be {allowed}", where
        )
    # Errors about values of the correct type are closer to what the client meant than errors about the type.
    errors = [each for each in errors if not each["type"].endswith(("_type", "_parsing"))] or errors
    allowed = " or ".join(dict.fromkeys(map(_allowed, errors)))
    return ApiError(400, f"{where} is {in_json(errors[0]['input'])}; it must be {allowed}", where)


def in_json(value: object) -> str:
    """Returns a value as JSON, shortened and escaped as by `quoted`."""
    if isinstance(value, int) and not isinstance(value, bool):
        return written(value)
    try:
        text = json.dumps(value, ensure_ascii=False)
    except (TypeError, ValueError, RecursionError):
        return written(value)
    return quoted(f"{text[:100]}{text[100:][-100:]}")  # shortened first: escaping takes time proportional to the length


def _allowed(error: ErrorDetails) -> str:
    if error["type"] == "literal_error":  # pydantic writes the values as Python does
        return str(error["ctx"]["expected"]).replace("'", '"').replace("False", "false")
    known = ALLOWED.get(error["type"])
    if known is None:
        return quoted(error["msg"].removeprefix("Input should be "), 200)
    return known.format(**error.get("ctx", {}))


def _place(given: Any, parts: Sequence[int | str], missing: bool) -> list[str]:
    """Returns the keys and indices of a pydantic location, without the names of the types that pydantic tried."""
    place = []
    for i, part in enumerate(parts):
        if part in given if isinstance(given, dict) else isinstance(given, list) and isinstance(part, int):
            given = given[part]
        elif not (missing and i == len(parts) - 1):
            continue
        place.append(str(part))
    return place
