# The package: what programs import.
"""Decode attention over sequence shards of a latent KV cache: the client of a tier."""
from ._core import Client, Pool, Sequence, Shape, Step
from .aio import AsyncClient, AsyncSequence, AsyncStep
from .errors import *  # noqa: F403
from .errors import __all__ as _errors
from .flash_mla import flash_mla_with_kvcache, get_mla_metadata, merge_states

__all__ = ["AsyncClient", "AsyncSequence", "AsyncStep", "Client", "Pool", "Sequence", "Shape",
           "Step", "flash_mla_with_kvcache", "get_mla_metadata", "merge_states", *_errors]
