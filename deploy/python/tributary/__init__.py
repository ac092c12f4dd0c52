# The package: what programs import.
"""Decode attention over sequence shards of a latent KV cache: the client of a tier."""
from ._core import Client, ModelShape, Pool, Prefix, Sequence, Shape, Step, cut_values
from .aio import AsyncClient, AsyncSequence, AsyncStep
from .errors import (AlreadyExists, CommunicatorPoisoned, Corrupt, DeadlineExceeded, Error,
                     FailedPrecondition, Internal, InvalidArgument, Io, MalformedInput, NotFound,
                     PermissionDenied, PoolFull, PoolLost, StaleEpoch, TooLarge, Unavailable,
                     Unsupported, WorkerFailed, WorkerLost)
from .flash_mla import flash_mla_with_kvcache, get_mla_metadata, merge_states

__all__ = ["AlreadyExists", "AsyncClient", "AsyncSequence", "AsyncStep", "Client",
           "CommunicatorPoisoned", "Corrupt", "DeadlineExceeded", "Error", "FailedPrecondition",
           "Internal", "InvalidArgument", "Io", "MalformedInput", "ModelShape", "NotFound",
           "PermissionDenied", "Pool", "PoolFull", "PoolLost", "Prefix", "Sequence", "Shape", "StaleEpoch", "Step", "TooLarge",
           "Unavailable", "Unsupported", "WorkerFailed", "WorkerLost", "cut_values", "flash_mla_with_kvcache",
           "get_mla_metadata", "merge_states"]
