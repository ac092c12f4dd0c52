# Resolves the names of vLLM's backends: to ours where the configuration names our connector, else
# to vLLM's own. An entry point runs before there is a configuration, and may not decide that.
from vllm.config import get_current_vllm_config
from vllm.utils.import_utils import resolve_obj_by_qualname
from vllm.v1.attention.backends.registry import AttentionBackendEnum


def __getattr__(name):
    if name not in AttentionBackendEnum.__members__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    config = get_current_vllm_config()
    transfer = config.kv_transfer_config
    if transfer is not None and transfer.kv_connector_module_path == "tributary.vllm":
        from .backend import TributaryBackend
        from .options import check
        check(config)  # before weights are loaded
        return TributaryBackend
    own = AttentionBackendEnum[name].value  # what was registered is beside it
    if own is None:
        raise AttributeError(f"attention_backend {name!r} is Tributary's, and the configuration "
                             "names no TributaryConnector")
    return resolve_obj_by_qualname(own)
