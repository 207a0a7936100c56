"""The model catalogue: the shipped one, with the user's own values over it."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path

from corral._core.nesting import decode_toml
from corral._models.catalogue import Catalogue, Prices, shipped
from corral._system import fs, paths
from corral._system.environment import variable
from corral.errors import ConfigError


def catalogue() -> Catalogue:
    """The shipped catalogue with the values of ``CORRAL_MODELS``, else of ``models.toml`` in the
    configuration folder. If ``CORRAL_MODELS`` is empty, only the shipped one. Raises
    ``ConfigError``."""
    return _load(variable("CORRAL_MODELS"))


@lru_cache(4)
def _load(given: str | None) -> Catalogue:
    if given == "":
        return shipped()
    path = Path(given) if given else paths.user_config().with_name("models.toml")
    if given is None and not fs.is_file(path):
        return shipped()
    import tomllib

    try:
        own = decode_toml(fs.read_text(path))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: {error}") from error
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}") from error
    return shipped().merged(own, str(path))


def find_prices(model: str, input_tokens: int) -> Prices | None:
    """The prices of a call of ``vendor:model`` with so much input; None if they are not known.
    Raises ``ConfigError``."""
    entry = catalogue().lookup(model)
    return None if entry is None else entry.prices_for(input_tokens)
