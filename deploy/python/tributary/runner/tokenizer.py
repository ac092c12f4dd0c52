# Text to tokens and back.
"""The tokenizer of a GGUF file with a byte-level BPE vocabulary, as SmolLM2's."""

from __future__ import annotations


def make_tokenizer(model):
    """A `tokenizers.Tokenizer`: `encode(text).ids`, `decode(ids)`."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    tokens = model.vocabulary["tokens"]
    merges = [tuple(merge.split(" ")) for merge in model.vocabulary["merges"]]
    tokenizer = Tokenizer(models.BPE({token: i for i, token in enumerate(tokens)}, merges))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Digits(individual_digits=True),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)])
    tokenizer.decoder = decoders.ByteLevel()
    control = 3  # gguf.TokenType.CONTROL
    tokenizer.add_special_tokens([
        AddedToken(token, special=True, normalized=False)
        for token, kind in zip(tokens, model.vocabulary["token_type"]) if kind == control])
    return tokenizer
