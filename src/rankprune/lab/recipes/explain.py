"""Turns pydantic's errors into one sentence that names the key, where it is and what to do."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, get_args

from rankprune._util import nearest, shorten
from rankprune.core.registry import list_methods, method_info
from rankprune.core.settings import settings_of

from .schema import Section

from pydantic import BaseModel, ValidationError  # isort: skip  (schema.py says how to install it)


def explain(error: ValidationError, schema: type[Section]) -> str:
    """Describe the first error of a validation.

    Args:
        error: The error that pydantic raised.
        schema: The class that was validated.

    Returns:
        The sentence, without the recipe's name.
    """
    first = error.errors()[0]
    *place, key = [str(part) for part in first["loc"]] or [""]
    if first["type"] == "extra_forbidden":
        where = ".".join(place) or "a" + re.sub("[A-Z]", lambda m: f" {m[0].lower()}", schema.__name__)  # a sweep file
        # At the top level, `lr` probably means optimizer.lr, so look for the key in the sections before its spelling.
        homes = [f"{part}.{key}" for part in schema.model_fields if not place and key in _keys(schema, [part])]
        if not homes and not place and "method" in schema.model_fields and _is_of_a_method(key):
            homes = [f"method.{key}"]
        way_out = f"did you mean {' or '.join(homes)}?" if homes else nearest(key, _keys(schema, place))
        return f"there is no key {shorten(key)} in {where}: {way_out}"
    if first["type"] == "missing":
        return f"{'.'.join([*place, key])} is missing: every run needs it."
    if first["type"] == "value_error":
        return f"{str(first['ctx']['error']).rstrip('.')}."
    return f"{'.'.join([*place, key])}={shorten(first['input'])} is wrong: {reason(first)}."


def reason(error: Any) -> str:
    """Rephrase pydantic's message as the end of a sentence.

    Args:
        error: One entry of ``ValidationError.errors()``.

    Returns:
        Such as "it should be a valid integer".
    """
    message: str = error["msg"].partition(", unable to parse")[0]  # what follows repeats it
    should = message.removeprefix("Input should be ")
    return f"it should be {should}" if should != message else message[0].lower() + message[1:]


def _is_of_a_method(key: str) -> bool:
    """Whether some method has a hyper-parameter of this name."""
    return any(key in settings_of(method_info(name).cls) for name in list_methods())


def _keys(schema: type[BaseModel], place: Sequence[str]) -> list[str]:
    """The known keys of a section, given by its path."""
    for part in place:
        if part.isdigit():  # an index into a list, whose elements have one type
            continue
        annotation: Any = schema.model_fields[part].annotation
        schema = next((a for a in get_args(annotation) if isinstance(a, type)), annotation)
    return list(getattr(schema, "model_fields", ()))
