"""Defines the types of fields that several documents have."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import ConfigDict, Field, GetCoreSchemaHandler
from typing_extensions import TypedDict

from glgpt.program.formats import ALL

OPEN = ConfigDict(extra="allow")  # for an object that may have more fields than those of its class

Count = Annotated[int, Field(ge=0)]
Size = Annotated[int, Field(ge=1)]
Text = Annotated[str, Field(min_length=1)]
Positive = Annotated[float, Field(gt=0)]
FileName = Annotated[str, Field(pattern="^[A-Za-z0-9._-]+$")]
Digest = Annotated[str, Field(pattern="^[0-9a-f]{64}$")]
Base64 = Annotated[str, Field(pattern="^[A-Za-z0-9+/]+={0,2}$")]
FileBytes = Annotated[
    int, Field(ge=1, le=1 << 30, description="size of a file in bytes; a page fetches no more bytes of the file")
]
Dtype = Annotated[str, Field(json_schema_extra={"enum": list(ALL)})]


class Items:
    """Annotates a list whose items each have a type, as those of a tuple have. JSON has lists but no tuples."""

    def __init__(self, types: Any) -> None:
        self._types = types

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> Any:
        return handler.generate_schema(self._types)


class ListedFile(TypedDict):
    """The size and SHA-256 of a file."""

    bytes: FileBytes
    sha256: Digest
