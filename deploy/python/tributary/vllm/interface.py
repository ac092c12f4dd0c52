# Everything of vLLM that the backend and the connector rely upon.
"""Both of vLLM's interfaces are marked experimental. A version is served that has the names below, and
whose classes have the methods that ours replace, with the same parameters; one that was not tested is
warned of. Beside that, this is relied upon:

- A plug-in of the group `vllm.general_plugins` runs in every process, before the configuration is
  known; `register_backend()` takes a path, which is resolved for each layer under
  `get_current_vllm_config()`.
- `do_kv_cache_update()` of a layer comes before its `forward_mha()` and `forward_mqa()`; what they
  are given is ordered by request, requests of one new token first: these go to `forward_mqa()`.
- A layer's absorbed weights are `W_UK_T` and `W_UV`. Without these names it is only slower.
- The metadata of a step's attention is built before the connector's is bound.
- In a worker a step calls bind_connector_metadata(), the layers, wait_for_save() (after a failure
  too), get_finished(), get_block_ids_with_load_errors(), build_connector_worker_meta().
- request_finished() comes once the step that ended a request has committed, and its worker hears
  of the end in the next step.
- Of a running request with an invalid block vLLM discards the step and computes all tokens again,
  from position 0. It looks only at blocks that were computed before the step.
"""
import inspect

import vllm
from vllm.config import get_current_vllm_config
from vllm.distributed.kv_transfer import get_kv_transfer_group
from vllm.distributed.kv_transfer.kv_connector.v1.base import (
    KVConnectorBase_V1, KVConnectorMetadata, KVConnectorRole, KVConnectorWorkerMetadata)
from vllm.forward_context import get_forward_context
from vllm.model_executor.layers.attention.mla_attention import (
    MLACommonBackend, MLACommonImpl, MLACommonMetadata, MLACommonMetadataBuilder)
from vllm.platforms import current_platform
from vllm.v1.attention.backend import MultipleOf
from vllm.v1.attention.backends.mla.cpu_mla import CPUMLAImpl
from vllm.v1.attention.backends.registry import AttentionBackendEnum, register_backend
from vllm.v1.request import RequestStatus

from .options import log

__all__ = ["AttentionBackendEnum", "CPUMLAImpl", "KVConnectorBase_V1", "KVConnectorMetadata",
           "KVConnectorRole", "KVConnectorWorkerMetadata", "MLACommonBackend", "MLACommonImpl",
           "MLACommonMetadata", "MLACommonMetadataBuilder", "MultipleOf", "RequestStatus",
           "check_interface", "current_platform", "get_current_vllm_config", "get_forward_context",
           "get_kv_transfer_group", "register_backend"]

TESTED = "0.32."


def check_interface(*own):
    """Classes of ours, beside those of vLLM that they derive from. Raises RuntimeError where a method
    of theirs is another one in this version."""
    if differ := [word for one in own for word in _differences(one)]:
        raise RuntimeError(f"vLLM {vllm.__version__} has another interface than {TESTED}x, which "
                           f"tributary.vllm is written for: {'; '.join(differ)}")
    if not vllm.__version__.startswith(TESTED):
        log.warning("vLLM %s was not tested with tributary.vllm, %sx was", vllm.__version__, TESTED)


def _differences(own):
    for name, method in vars(own).items():
        if name.startswith("_") or not callable(getattr(own, name)):
            continue
        theirs = next((vars(base)[name] for base in own.__mro__[1:] if name in vars(base)), None)
        if theirs is None:
            yield f"no {name}()"
            continue
        wanted, given = _parameters(method), _parameters(theirs)
        if wanted != given:
            yield f"{name}({', '.join(given)}), expected ({', '.join(wanted)})"


def _parameters(method):
    return list(inspect.signature(getattr(method, "__func__", method)).parameters)
