# One forward pass of the model in the tier: a prompt that is pushed, or a decode step.
"""A pass takes layer after layer, in order, and then ends; or it is given up.

`real` [B, T] marks the tokens that are no padding; B sequences, T tokens of each in this pass. Only
the real ones go to the tier, one sequence's after the other's (n of all).
"""

from __future__ import annotations

import torch

from ..errors import Error, Unsupported

# The most tokens of a sequence in one step of the tier.
STEP_TOKENS = 16
_DTYPES = {"f32": torch.float32, "bf16": torch.bfloat16}


def visible(mask: torch.Tensor, keys: int) -> torch.Tensor:
    """[B or 1, T, keys]: true where a query sees a key."""
    return (mask if mask.dtype == torch.bool else mask == 0)[:, 0, :, :keys].cpu()


def real_tokens(mask: torch.Tensor | None, past: torch.Tensor, tokens: int) -> torch.Tensor:
    """Which of the T new tokens are real, [B, T], by the mask that transformers made.

    mask: [B or 1, 1, T, L + T], true or 0 where a query sees a key; None: every query sees all
    tokens up to its own. past: [B, L], which of the earlier tokens are real. Raises Unsupported
    where the mask is not causal attention to all real tokens, which is what a tier computes.
    """
    batch, length = past.shape
    if mask is None:
        new = torch.ones(batch, tokens, dtype=torch.bool)
        keys = (length + 1 + torch.arange(tokens)).expand(batch, tokens)
    else:
        seen = visible(mask, length + tokens).expand(batch, -1, -1)
        new = seen[:, :, length:].diagonal(dim1=1, dim2=2)
        keys = seen.sum(-1)
    expected = past.sum(1, keepdim=True) + new.cumsum(1)
    if not torch.equal(keys[new], expected[new]):
        raise Unsupported(
            "attention_mask: a tier computes causal attention to all tokens but padding, whose "
            "mask must not change from call to call")
    return new


def pull(client, sequences, real: torch.Tensor, layer: int, like: torch.Tensor) -> torch.Tensor:
    """The rows that a layer's sequences have, [B, L, C + R], where `real` [B, L] marks those that are
    no padding; of the type and on the device of `like`."""
    shape = sequences[0].shape
    rows = torch.zeros(*real.shape, shape.latent_dim, dtype=_DTYPES[shape.row_values])
    own = [torch.empty(s.length, shape.latent_dim, dtype=rows.dtype) for s in sequences]
    client.pull([(s, layer, 0, s.length) for s in sequences if s.length],
                [part for part in own if len(part)])
    rows[real] = torch.cat(own)
    return rows.to(like)


class PromptPass:
    """The model attends to prompts by itself, or to what follows on sequences that there are; the new
    rows go to the tier."""

    def __init__(self, client, real: torch.Tensor, parents, room: int, check, **options):
        """Admits a sequence for each prompt, or forks that of its past, with `room` tokens besides;
        calls check(shape)."""
        self.real = real
        self.sequences, self._begins = [], []
        try:
            for count, parent in zip(real.sum(1).tolist(), parents or [None] * len(real)):
                past = parent.length if parent else 0
                self._begins.append(past)
                self.sequences.append(
                    parent.fork(past, room, prompt_tokens=past + count) if past else
                    client.admit(count, room, **options))
                check(self.sequences[-1].shape)
        except BaseException:
            self.give_up()
            raise

    def push(self, layer: int, rows: torch.Tensor) -> None:
        """rows: [B, T, C + R]."""
        for sequence, begin, own, real in zip(self.sequences, self._begins, rows, self.real):
            own = own[real].to("cpu", _DTYPES[sequence.shape.row_values]).contiguous()
            if len(own):
                sequence.push(layer, begin, own)

    def end(self) -> None:
        for sequence in self.sequences:
            sequence.wait_ready()

    def give_up(self) -> None:
        free(self.sequences)
        self.sequences = []


class StepPass:
    """The tier attends."""

    def __init__(self, client, sequences, real: torch.Tensor):
        """At most STEP_TOKENS new ones each."""
        self.real = real
        counts = real.sum(1).tolist()
        own = [(sequence, count) for sequence, count in zip(sequences, counts) if count]
        self._step = client.step(*zip(*own)) if own else None
        self.shape = sequences[0].shape

    def attend(self, layer: int, query: torch.Tensor, row: torch.Tensor,
               selected: torch.Tensor | None) -> torch.Tensor:
        """query [n, H, C + R], row [n, C + R], selected [n, K] -> o [n, H, C], fp32."""
        query = query.to("cpu", _DTYPES[self.shape.query_dtype]).contiguous()
        row = row.to("cpu", _DTYPES[self.shape.row_values]).contiguous()
        if self._step is None:  # padding alone
            return query[..., :self.shape.kv_lora_rank].float()
        o, _ = self._step.attend(layer, query, row, selected=selected)
        return o

    def forward(self, layer: int, hidden: torch.Tensor) -> torch.Tensor:
        """The attention module of a pool with weights: hidden states [n, hidden_size], in fp32."""
        hidden = hidden.to("cpu", torch.float32).contiguous()
        return self._step.forward(layer, hidden) if self._step else hidden

    def end(self) -> None:
        if self._step:
            self._step.commit()

    def give_up(self) -> None:
        try:
            if self._step:
                self._step.abort()
        except Error:
            pass  # why it is given up is what the caller hears


def free(sequences) -> None:
    """Frees them all; what cannot be told now ends with its lease."""
    for sequence in sequences:
        try:
            sequence.free()
        except Error:
            pass
