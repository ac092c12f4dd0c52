# Settings, options and pools that are refused at start, by name.
import types

import pytest

from tributary.vllm.options import Options, check_pool, refused

POOL = dict(heads=4, kv_lora_rank=512, qk_rope_head_dim=64, layers=2, softmax_scale=0.07)


def config(**changes):
    parts = {
        "model_config": dict(use_mla=True, enforce_eager=True),
        "cache_config": dict(enable_prefix_caching=False, cache_dtype="auto"),
        "parallel_config": dict(tensor_parallel_size=1, pipeline_parallel_size=1,
                                data_parallel_size=1, decode_context_parallel_size=1),
        "kv_transfer_config": dict(kv_load_failure_policy="recompute",
                                   kv_connector_extra_config={"url": "http://127.0.0.1:7300"}),
    }
    for part in parts.values():
        part.update((name, changes.pop(name)) for name in list(changes) if name in part)
    made = {name: types.SimpleNamespace(**part) for name, part in parts.items()}
    return types.SimpleNamespace(**made, speculative_config=changes.pop("speculative", None))


def test_the_start_line_is_served():
    assert refused(config()) == ""
    assert Options.of(config()).url == "http://127.0.0.1:7300"


@pytest.mark.parametrize(("change", "words"), [
    ({"use_mla": False}, "no multi-head latent attention"),
    ({"enforce_eager": False}, "enforce_eager=False"),
    ({"cache_dtype": "fp8"}, "kv_cache_dtype 'fp8'"),
    ({"cache_dtype": "fp8_ds_mla"}, "kv_cache_dtype 'fp8_ds_mla'"),
    ({"speculative": object()}, "speculative decoding"),
    ({"tensor_parallel_size": 2}, "tensor parallelism"),
    ({"pipeline_parallel_size": 2}, "pipeline parallelism"),
    ({"data_parallel_size": 2}, "data parallelism"),
    ({"decode_context_parallel_size": 2}, "context parallelism"),
    ({"kv_load_failure_policy": "fail"}, 'must be "recompute"'),
])
def test_what_is_refused(change, words):
    assert words in refused(config(**change))


@pytest.mark.parametrize(("given", "words"), [
    ({}, "lacks \"url\""), ({"url": "x", "urls": "y"}, "urls; there are"),
])
def test_bad_options(given, words):
    with pytest.raises(ValueError, match=words):
        Options.of(config(kv_connector_extra_config=given))


@pytest.mark.parametrize(("change", "words"), [
    ({"heads": 8}, "heads is 8, the model's 4"), ({"layers": 3}, "layers is 3"),
    ({"kv_lora_rank": 256}, "kv_lora_rank is 256"),
    ({"softmax_scale": 0.08}, "softmax_scale is 0.08"),
    ({"topk": 2048}, "topk is 2048: the model attends to all rows"),
])
def test_another_models_pool(change, words):
    good = dict(topk=0)
    check_pool(types.SimpleNamespace(**good, **POOL), **POOL)
    with pytest.raises(ValueError, match=words):
        check_pool(types.SimpleNamespace(**good | POOL | change), **POOL)
