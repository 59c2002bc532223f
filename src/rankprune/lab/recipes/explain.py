"""pydantic's findings as one sentence that names the key, its place and the way out."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, get_args

from rankprune._util import nearest, shorten
from rankprune.core.registry import list_methods, method_info, settings_of

from .schema import Section

from pydantic import BaseModel, ValidationError  # isort: skip  (schema.py says how to install it)


def explain(error: ValidationError, schema: type[Section]) -> str:
    """The first finding of a validation of `schema`."""
    first = error.errors()[0]
    *place, key = [str(part) for part in first["loc"]] or [""]
    if first["type"] == "extra_forbidden":
        where = ".".join(place) or "a" + re.sub("[A-Z]", lambda m: f" {m[0].lower()}", schema.__name__)  # a sweep file
        # At the top, where lr is written for optimizer.lr, the section that has the key is nearer than any spelling.
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
    message: str = error["msg"].removeprefix("Input should be ")
    return f"it should be {message}" if message != error["msg"] else message[0].lower() + message[1:]


def _is_of_a_method(key: str) -> bool:
    """Whether some method has a hyper-parameter of this name."""
    return any(key in settings_of(method_info(name).cls) for name in list_methods())


def _keys(schema: type[BaseModel], place: Sequence[str]) -> list[str]:
    """The known keys of a section, by its place."""
    for part in place:
        if part.isdigit():  # the place in a list, whose elements are all alike
            continue
        annotation: Any = schema.model_fields[part].annotation
        schema = next((a for a in get_args(annotation) if isinstance(a, type)), annotation)
    return list(getattr(schema, "model_fields", ()))
