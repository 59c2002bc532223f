"""Models of the user's own code: ``package.module:factory`` or ``path/to/file.py:factory``.

The code is imported only if the user names it on the command line, which registers it for this process. A recipe, run
folder or weights file that names code is refused like an unknown model.
"""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

from torch import nn

from rankprune._util import nearest, one_line

from . import adapters
from .errors import ModelError
from .registry import Builder, is_registered, register_model


def names_user_code(name: str) -> bool:
    """Whether a model's name is ``module:factory`` or ``file.py:factory`` (and not ``timm:NAME``).

    Args:
        name: Name of a model.

    Returns:
        True if it refers to user code.
    """
    source, colon, factory = name.rpartition(":")
    return bool(colon and source and factory.isidentifier() and source not in adapters.LIBRARIES)


def register_user_model(name: str) -> None:
    """Import the user's code and register its factory for this process.

    Args:
        name: ``package.module:factory`` or ``path/to/file.py:factory``. The factory returns a module; it is called
            with those of ``num_classes``, ``in_channels`` and the recipe's ``model.args`` that it accepts.

    Raises:
        ModelError: The module, file or factory does not exist, or importing it fails.
    """
    if is_registered(name):
        return
    source, _, factory = name.rpartition(":")
    module = _import_file(Path(source)) if source.endswith(".py") else _import_module(source)
    builder = getattr(module, factory, None)
    if not callable(builder):
        known = [key for key, value in vars(module).items() if callable(value) and not key.startswith("_")]
        raise ModelError(f"{source} has no function or class {factory!r}: {nearest(factory, known)}")
    register_model(name)(_builder(name, builder))


def _import_module(name: str) -> ModuleType:
    if (here := str(Path.cwd())) not in sys.path:
        sys.path.insert(0, here)  # as `python -m` does
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name and (name == error.name or name.startswith(f"{error.name}.")):
            raise ModelError(
                f"There is no module {name!r} to import: run the command from the folder that holds it, "
                "or give a path such as path/to/net.py:Net."
            ) from None
        raise _import_failed(name, error) from error
    except Exception as error:  # whatever the user's code raises
        raise _import_failed(name, error) from error


def _import_file(path: Path) -> ModuleType:
    if not path.is_file():
        raise ModelError(f"There is no file {path} with a model: check the path.")
    spec = importlib.util.spec_from_file_location(f"_rankprune_user_{path.stem}", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    if (folder := str(path.resolve().parent)) not in sys.path:
        sys.path.insert(0, folder)  # as Python does for a script, so that it can import files beside it
    sys.modules[spec.name] = module  # dataclasses look up their module there
    try:
        spec.loader.exec_module(module)
    except Exception as error:  # whatever the user's code raises
        raise _import_failed(str(path), error) from error
    return module


def _import_failed(source: str, error: Exception) -> ModelError:
    reason = one_line(error, 200)
    return ModelError(f"{source} cannot be imported ({type(error).__name__}: {reason}): fix it and try again.")


def _builder(name: str, factory: Callable[..., Any]) -> Builder:
    parameters = inspect.signature(factory).parameters
    takes_all = any(p.kind is p.VAR_KEYWORD for p in parameters.values())

    def build(num_classes: int, in_channels: int, **kwargs: Any) -> nn.Module:
        wanted = {"num_classes": num_classes, "in_channels": in_channels}
        given = {key: value for key, value in wanted.items() if takes_all or key in parameters}
        try:
            model = factory(**given, **kwargs)
        except Exception as error:  # whatever the user's code raises
            reason = f"{type(error).__name__}: {one_line(error, 200)}"
            raise ModelError(f"{name} raised {reason}: fix it and try again.") from error
        if not isinstance(model, nn.Module):
            raise ModelError(f"{name} returned {type(model).__name__!r} and not a torch.nn.Module: return the model.")
        return model

    return build
