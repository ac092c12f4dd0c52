# Rows that the tier has of requests that begin, layer by layer.
import torch

import tributary

AHEAD = 2  # layers that are under way before they are needed


class Pulls:
    """Of one engine step. The rows go to the front of what is held of each request."""

    def __init__(self, worker, present):
        """present: request -> how many of its rows the tier has."""
        self._worker = worker
        self._present = present
        self._dim = {name: worker.held(name).sequence.shape.latent_dim for name in present}
        self._types = {name: worker.types(worker.held(name).sequence.shape)[1] for name in present}
        self._sequences = {name: worker.held(name).sequence for name in present}
        self._coming = {}  # layer -> (requests, their rows, the call)
        for layer in range(min(AHEAD, len(worker.layers))):
            self._ask(layer)

    def _ask(self, layer):
        names = list(self._sequences)
        rows = [torch.empty(self._present[name], self._dim[name], dtype=self._types[name])
                for name in names]
        call = None
        if names:
            call = self._worker.pulling.submit(
                self._worker.client.pull,
                [(self._sequences[name], layer, 0, self._present[name]) for name in names], rows)
        self._coming[layer] = names, rows, call

    def take(self, layer, like):
        """Waits for the layer's rows; they get the type and the device of `like`. A request that is
        lost gets zeros: vLLM computes it again."""
        if layer not in self._coming:
            return  # again: a pass that failed
        names, rows, call = self._coming.pop(layer)
        failed = {}
        try:
            if call is not None:
                call.result()
        except tributary.Error as error:
            failed = error.failed or dict.fromkeys(range(len(names)), error)
        got = {name: own for i, (name, own) in enumerate(zip(names, rows)) if i not in failed}
        for index, why in failed.items():
            name = names[index]
            held = self._worker.held(name)
            if self._sequences.pop(name, None) is held.sequence is not None:
                self._worker.lose(name, held, why, here=False)
        for name, count in self._present.items():
            own = got.get(name)
            if own is None:
                own = torch.zeros(count, self._dim[name], dtype=self._types[name])
            self._worker.held(name).add(layer, own.to(like))
        if layer + AHEAD < len(self._worker.layers):
            self._ask(layer + AHEAD)
