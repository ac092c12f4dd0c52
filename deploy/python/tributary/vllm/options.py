# The options of kv_connector_extra_config, and the settings of vLLM that are refused.
import dataclasses
import logging

import tributary

log = logging.getLogger("vllm.tributary")  # vLLM's handler and level


@dataclasses.dataclass(frozen=True)
class Options:
    """`kv_connector_extra_config`. Times are in seconds."""

    url: str
    token: str | None = None
    certificate_authority: str = ""
    tls_certificate: str = ""
    tls_key: str = ""
    timeout: float = 10.0        # of a call
    start_timeout: float = 60.0  # for a tier that is starting
    spread: str = "auto"
    # New tokens that admission makes room for; more as they come. vLLM's max_tokens is often all
    # that the model's length allows.
    reserve_tokens: int = 256

    @classmethod
    def of(cls, config):
        given = config.kv_transfer_config.kv_connector_extra_config
        known = {field.name for field in dataclasses.fields(cls)}
        if unknown := set(given) - known:
            raise ValueError(f"kv_connector_extra_config: {', '.join(sorted(unknown))}; there are "
                             f"{', '.join(sorted(known))}")
        if "url" not in given:
            raise ValueError("kv_connector_extra_config lacks \"url\", of the control plane")
        return cls(**given)

    def client(self):
        return tributary.Client(
            self.url, self.token, self.timeout, certificate_authority=self.certificate_authority,
            tls_certificate=self.tls_certificate, tls_key=self.tls_key)


def refused(config):
    """Why vLLM's configuration is not for this backend; empty where it is."""
    parallel, cache, transfer = (config.parallel_config, config.cache_config,
                                 config.kv_transfer_config)
    checks = (
        (not config.model_config.use_mla, "the model has no multi-head latent attention (MLA)"),
        (not config.model_config.enforce_eager, "enforce_eager=False: graphs hold no calls"),
        (cache.cache_dtype not in ("auto", "bfloat16", "float16"),
         f"kv_cache_dtype {cache.cache_dtype!r}: the pool's rows have the format of the pool"),
        (config.speculative_config is not None, "speculative decoding"),
        (parallel.tensor_parallel_size > 1, "tensor parallelism above 1"),
        (parallel.pipeline_parallel_size > 1, "pipeline parallelism above 1"),
        (parallel.data_parallel_size > 1, "data parallelism above 1"),
        (parallel.decode_context_parallel_size > 1, "decode context parallelism above 1"),
        (transfer.kv_load_failure_policy != "recompute",
         'kv_load_failure_policy must be "recompute": a lost sequence is computed again'),
    )
    return "; ".join(why for wrong, why in checks if wrong)


def check(config):
    """Raises ValueError for a configuration that is refused."""
    if why := refused(config):
        raise ValueError(f"Tributary does not serve this configuration: {why}")


def check_pool(shape, heads, kv_lora_rank, qk_rope_head_dim, layers, softmax_scale):
    """Raises ValueError for a pool whose shape or scale is not the model's."""
    model = {"heads": heads, "kv_lora_rank": kv_lora_rank, "qk_rope_head_dim": qk_rope_head_dim,
             "layers": layers}
    differ = [f"{name} is {getattr(shape, name)}, the model's {value}"
              for name, value in model.items() if getattr(shape, name) != value]
    if abs(shape.softmax_scale - softmax_scale) > 1e-5 * softmax_scale:
        differ.append(f"softmax_scale is {shape.softmax_scale}, the model's {softmax_scale}")
    if shape.topk:
        differ.append(f"topk is {shape.topk}: the model attends to all rows")
    if differ:
        raise ValueError(f"the pool is not the model's: {'; '.join(differ)}")
