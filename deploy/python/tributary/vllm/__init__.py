# The entry point of the plug-in, and the name that vLLM's configuration gives.
"""vLLM decodes through a tier: an MLA attention backend and a KV connector.

    LLM(model, enforce_eager=True, attention_backend="CPU_MLA", kv_transfer_config={
        "kv_connector": "TributaryConnector", "kv_connector_module_path": "tributary.vllm",
        "kv_role": "kv_both", "kv_load_failure_policy": "recompute",
        "kv_connector_extra_config": {"url": URL}})

vLLM computes prompts and everything but the decode attention; latent rows lie in the tier.
Installed and not configured it changes nothing."""

BACKENDS = ("CPU_MLA", "AMX_MLA", "CUSTOM")


def register():
    """Called by vLLM in each of its processes, before it knows its configuration."""
    from vllm.v1.attention.backends.registry import AttentionBackendEnum, register_backend
    for name in BACKENDS:
        register_backend(AttentionBackendEnum[name], f"tributary.vllm.choose.{name}")


def __getattr__(name):
    if name != "TributaryConnector":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from .connector import TributaryConnector
    return TributaryConnector
