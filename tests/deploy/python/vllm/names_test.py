# Which of vLLM's hashes name the tier's blocks.
import types

import pytest

import tributary
from tributary.vllm.names import BlockNames


def names_of(hash_tokens, **model):
    model = {"model": "m", "revision": None, "dtype": "float32", "quantization": None} | model
    return BlockNames(types.SimpleNamespace(model_config=types.SimpleNamespace(**model)), hash_tokens)


def request_of(hash_tokens, tokens):
    return types.SimpleNamespace(
        block_hashes=[b"%32d" % end for end in range(hash_tokens, tokens + 1, hash_tokens)])


@pytest.mark.parametrize(("hash_tokens", "block"), [(16, 64), (64, 64), (128, 128), (48, 192)])
def test_a_block_ends_where_both_do_and_has_the_hash_of_its_end(monkeypatch, hash_tokens, block):
    names = names_of(hash_tokens)
    assert names.block_tokens == block
    made = []
    monkeypatch.setattr(tributary, "Prefix", lambda *a, cache_salt: made.append(a))
    for tokens in (0, block - 1, block, 5 * block + 3):
        names.of(request_of(hash_tokens, tokens), tokens)
    # Tokens whose hash is not made yet, and a hash of the last token, which has no row.
    names.of(request_of(hash_tokens, 3 * block), 9 * block)
    names.of(request_of(hash_tokens, 3 * block), 3 * block - 1)
    assert made == [
        (block, [b"%32d" % (block * i) for i in range(1, count + 1)]) for count in (1, 5, 3, 2)]


def test_another_model_has_other_names(monkeypatch):
    salts = []
    monkeypatch.setattr(tributary, "Prefix", lambda *a, cache_salt: salts.append(cache_salt))
    for model in ({}, {"model": "n"}, {"revision": "2"}, {"dtype": "bfloat16"}, {"quantization": "fp8"},
                  {}):
        names_of(16, **model).of(request_of(16, 64), 64)
    assert len(set(salts)) == 5 and salts[0] == salts[-1] and len(salts[0]) == 32


def test_a_prompt_of_a_million_tokens_has_as_many_names_as_a_prefix_may():
    assert len(names_of(16).of(request_of(16, 1 << 20), 1 << 20)) == 4096
