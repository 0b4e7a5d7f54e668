"""Describes what a text must match: a JSON schema, any JSON object, a regular expression or one of several choices."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from glgpt.errors import ArgumentError, is_utf8, quoted, written

MAX_CHARACTERS = 1 << 18  # maximum characters of a schema, of an expression, or of all choices together
ANY_OBJECT = '{"type":"object"}'


class ConstraintError(ArgumentError):
    """Raised for a constraint that cannot be used, or that becomes too complex during generation.

    The message states the reason.
    """


@dataclass(frozen=True)
class Constraint:
    """Describes what a whole generated text must match; `json_schema`, `json_object`, `regex` and `choice` create one.

    `kind` is "json_schema", "regex" or "choice". `source` is the schema as JSON, the expression, or the choices as a
    JSON list.
    """

    kind: str
    source: str

    @classmethod
    def json_schema(cls, schema: Mapping[str, Any] | bool | str) -> Constraint:
        """Constrains text to JSON that is valid under a schema and spaced as `json.dumps` writes it.

        `schema` is a mapping, a boolean, or JSON text of a mapping or boolean. Raises ConstraintError for anything
        else. An unsupported schema raises ConstraintError only when it is used, as in `glgpt.LanguageModel.generate`.
        """
        if isinstance(schema, str):
            try:
                schema = json.loads(schema)
            except (ValueError, RecursionError) as error:
                raise ConstraintError(f"the JSON schema is not JSON: {quoted(error, 120)}") from None
        if not isinstance(schema, (Mapping, bool)):
            raise ConstraintError(f"the JSON schema is {written(schema)}; it must be an object, true or false")
        try:
            text = json.dumps(schema, ensure_ascii=False, allow_nan=False)
        except (TypeError, ValueError, RecursionError) as error:
            raise ConstraintError(f"the JSON schema cannot be written as JSON: {quoted(error, 120)}") from None
        return cls("json_schema", _checked("the JSON schema", text))

    @classmethod
    def json_object(cls) -> Constraint:
        """Constrains text to any JSON object, spaced as `json.dumps` writes it."""
        return cls("json_schema", ANY_OBJECT)

    @classmethod
    def regex(cls, pattern: str) -> Constraint:
        """Constrains text to a regular expression, which must match the whole text.

        An invalid expression, a lookaround or a back reference raises ConstraintError when the constraint is used, as
        in `glgpt.LanguageModel.generate`.
        """
        if not isinstance(pattern, str) or not pattern:
            raise ConstraintError(f"the regular expression is {written(pattern)}; it must be a non-empty string")
        return cls("regex", _checked("the regular expression", pattern))

    @classmethod
    def choice(cls, choices: Sequence[str]) -> Constraint:
        """Constrains text to one of `choices`.

        Raises ConstraintError unless `choices` is a list or another sequence of one or more non-empty strings.
        """
        given = list(choices) if isinstance(choices, Sequence) and not isinstance(choices, str) else []
        if not given or not all(isinstance(text, str) and text for text in given):
            raise ConstraintError(f"the choices are {written(choices)}; they must be a list of non-empty strings")
        return cls("choice", _checked("the choices", json.dumps(given, ensure_ascii=False)))


def _checked(what: str, text: str) -> str:
    """Returns the text. Raises ConstraintError if it is too long or contains an unpaired surrogate."""
    if len(text) > MAX_CHARACTERS:
        raise ConstraintError(f"{what}: {len(text):,} characters; at most {MAX_CHARACTERS:,} are supported")
    if not is_utf8(text):
        raise ConstraintError(f"{what}: an unpaired surrogate, which is not Unicode text; remove it")
    return text
