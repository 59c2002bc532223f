"""Strict YAML: 5e-4 is a number, and a key given twice is an error."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from rankprune._util import shorten

from .errors import RecipeError

try:
    import yaml
except ModuleNotFoundError:
    raise ImportError("A recipe needs yaml, which is not installed: pip install 'rankprune[train]'.") from None


MAX_BYTES = 256 << 10  # of a file; ours have a few thousand
MAX_VALUES = 20_000  # with all aliases expanded
MAX_DEPTH = 50


class Loader(yaml.SafeLoader):
    """A SafeLoader that refuses duplicate keys, malformed scalars and integers above 64 bits."""

    def construct_mapping(self, node: Any, deep: bool = False) -> Any:
        """Construct a mapping; a key given twice is an error.

        Args:
            node: The mapping's node.
            deep: Construct its children as well.

        Returns:
            The mapping.
        """
        seen = set()
        for key_node, _ in node.value:
            key = self.construct_object(key_node, deep=True)
            try:
                twice = key in seen
            except TypeError:
                raise _wrong("a list or mapping cannot be a key", key_node) from None
            if twice:
                raise _wrong(f"{shorten(key)} is given twice", node)
            seen.add(key)
        return super().construct_mapping(node, deep)

    def construct_object(self, node: Any, deep: bool = False) -> Any:
        """Construct a value; an invalid one is a YAML error with its line.

        Args:
            node: The value's node.
            deep: Construct its children as well.

        Returns:
            The value.
        """
        try:
            value = super().construct_object(node, deep)
        except (ValueError, IndexError, KeyError, AttributeError, TypeError, OverflowError):
            # PyYAML raises whatever Python does for `!!int ""`, `!!timestamp "x"` or the 32nd of a month.
            kind = node.tag.rpartition(":")[2]
            raise _wrong(f"{shorten(getattr(node, 'value', ''))} is not a valid {kind}", node) from None
        if isinstance(value, int) and not -(1 << 63) <= value < 1 << 63:
            raise _wrong(f"a number of {value.bit_length()} bits is too large", node)
        return value


class _Dumper(yaml.SafeDumper):
    def ignore_aliases(self, data: Any) -> bool:
        return True


def _wrong(problem: str, node: Any) -> yaml.YAMLError:
    return yaml.constructor.ConstructorError(None, None, problem, node.start_mark)


def _extent(node: Any, known: dict[int, tuple[int, int]]) -> tuple[int, int]:
    """Count the values under a node and their depth, with every alias expanded; each node is visited once."""
    size = known.get(id(node))
    if size is None:
        known[id(node)] = (0, 0)  # being visited
        children: list[Any] = []
        if isinstance(node, yaml.SequenceNode):
            children = node.value
        elif isinstance(node, yaml.MappingNode):
            children = [part for pair in node.value for part in pair]
        inner = [_extent(child, known) for child in children]
        size = 1 + sum(count for count, _ in inner), 1 + max((depth for _, depth in inner), default=0)
        known[id(node)] = size
    if not size[0]:
        raise _wrong("an alias refers to a value that contains it", node)
    if size[1] > MAX_DEPTH:
        raise _wrong(f"it is nested more than {MAX_DEPTH} deep", node)
    return size


# YAML 1.1 reads 5e-4 as a string, because it lacks the dot.
_NUMBER = re.compile(r"^[-+]?(\d[\d_]*)(\.\d*)?[eE][-+]?\d+$")
Loader.add_implicit_resolver("tag:yaml.org,2002:float", _NUMBER, list("-+0123456789"))


def parse(text: str, source: str) -> Any:
    """Parse YAML.

    Args:
        text: The YAML.
        source: Its name in error messages.

    Returns:
        The value, or None if the text is empty.

    Raises:
        RecipeError: The text is not YAML, too large or nested too deeply.
    """
    loader = None
    try:
        loader = Loader(text)  # a SafeLoader
        node = loader.get_single_node()
        if node is None:
            return None
        values, _ = _extent(node, {})
        if values > MAX_VALUES:
            more = "more than a billion" if values > 10**9 else str(values)
            raise RecipeError(
                f"{source} holds {more} values with its aliases expanded, and a recipe may hold {MAX_VALUES}: "
                "write a shorter one."
            )
        return loader.construct_document(node)
    except RecursionError:
        raise RecipeError(f"{source} is not a recipe: it is nested more than {MAX_DEPTH} deep.") from None
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f" at line {mark.line + 1}" if mark else ""
        problem = " ".join((getattr(error, "problem", None) or str(error).partition("\n")[0]).split())[:200]
        raise RecipeError(f"{source} is not YAML{where}: {problem}.") from None
    finally:
        if loader is not None:
            loader.dispose()


def read(path: Path) -> dict[str, Any]:
    """Read a file that holds a mapping.

    Args:
        path: The file.

    Returns:
        The mapping.

    Raises:
        RecipeError: The file cannot be read, or holds something else.
    """
    try:
        with path.open("rb") as file:
            raw = file.read(MAX_BYTES + 1)
        if len(raw) > MAX_BYTES:
            raise RecipeError(f"{path} is larger than {MAX_BYTES >> 10} kB: write a shorter recipe, with a `base`.")
        text = raw.decode("utf-8")
    except FileNotFoundError:
        raise RecipeError(f"There is no file {path}: check the path.") from None
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is not text"
        raise RecipeError(f"The file {path} cannot be read ({reason}): check the path and its permissions.") from None
    value = parse(text, str(path))
    if not isinstance(value, dict):
        raise RecipeError(f"{path} holds no recipe: a recipe consists of `key: value` lines.")
    return value


def dump(value: dict[str, Any]) -> str:
    """Format values as YAML without aliases.

    Args:
        value: The values.

    Returns:
        The YAML, with the keys in their order.
    """
    return str(yaml.dump(value, Dumper=_Dumper, sort_keys=False, allow_unicode=True))
