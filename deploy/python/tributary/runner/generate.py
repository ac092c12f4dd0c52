# Greedy decoding, alone and through a tier.
"""Greedy generation: by the model alone, and with its cache in a decode tier."""

from __future__ import annotations

from typing import Iterator, Sequence


from .llama import Llama, LocalCache


def generate_alone(model: Llama, prompt: Sequence[int], new_tokens: int) -> list[int]:
    """The model's own tokens, its cache in this process."""
    cache, tokens, length = LocalCache(model), list(prompt), 0
    generated = []
    while len(generated) < new_tokens:
        logits = model.forward([tokens], [length], cache.attend)
        length += len(tokens)
        tokens = [int(logits[0].argmax())]
        generated += tokens
    return generated


class Prefilled:
    """Rows of new tokens and the first token after them, for any number of tiers."""

    def __init__(self, model: Llama, tokens: Sequence[int], past=None):
        """past: a sequence of a tier that the tokens follow on; its rows are pulled."""
        self.tokens = list(tokens)
        self.begin = past.length if past else 0
        rows = [past.pull(layer, 0, self.begin) for layer in range(model.layers)] if past else None
        cache = LocalCache(model, rows)
        logits = model.forward([tokens], [self.begin], cache.attend)
        self.first_token = int(logits[0].argmax())
        self.rows = [cache.rows(layer)[self.begin:] for layer in range(model.layers)]

    def push(self, sequence) -> None:
        """Sends the rows to their owners and waits until they are there."""
        for layer, rows in enumerate(self.rows):
            sequence.push(layer, self.begin, rows)
        sequence.wait_ready()


class TierDecoder:
    """Decodes a batch whose cache is in a tier. `sequences` are admitted, their rows pushed."""

    def __init__(self, model: Llama, client, sequences: Sequence, first_tokens: Sequence[int]):
        for sequence in sequences:
            model.attention.check(sequence.shape)
        self._model, self._client, self._sequences = model, client, list(sequences)
        self._tokens = list(first_tokens)
        self.outputs = None  # called with (layer, o, lse) of every layer of a step, if set

    def steps(self, count: int) -> Iterator[list[int]]:
        """Each step's new tokens, one a sequence: the first are those that the prompts gave."""
        yield self._tokens
        for _ in range(count - 1):
            yield self.step()

    def step(self) -> list[int]:
        heads = self._model.attention
        starts = [sequence.length for sequence in self._sequences]
        with self._client.step(self._sequences, tokens=1) as step:

            def attend(layer, q, k, v):
                o, lse = step.attend(layer, heads.queries(q), heads.rows(k, v))
                if self.outputs:
                    self.outputs(layer, o, lse)
                return heads.outputs(o)

            logits = self._model.forward([[token] for token in self._tokens], starts, attend)
            step.accept([1] * len(self._sequences))
        self._tokens = [int(own.argmax()) for own in logits]
        return self._tokens
