# The rows of one request, on the worker.
import threading

import torch


class Held:
    """A request's rows lie in a sequence of the tier. They lie here too while a prompt is computed
    and until its first step there has ended; and as long as the tier has no room for a sequence
    that was lost: attention is computed here then."""

    def __init__(self, layers, last, hands_over=False):
        self.last = last           # tokens with rows that it has in the end
        self.hands_over = hands_over  # its sequence is another engine's in the end
        self.sequence = None       # where its rows go
        self.ready = False         # they have arrived there
        self.settled = None        # the sequence that settle() found room in
        self.settling = False
        self.over = threading.Event()
        self.pushes = []           # futures
        self.layers = layers
        self.restart()

    def restart(self):
        """vLLM computes all tokens from position 0 on."""
        self._rows = [[] for _ in range(self.layers)]

    @property
    def here(self):
        return self._rows is not None

    def forget_rows(self):
        self._rows = None

    def add(self, layer, rows):
        self._rows[layer].append(rows)

    def rows(self, layer):
        """[n, C + R] of positions 0 to n - 1."""
        parts = self._rows[layer]
        if len(parts) > 1:
            parts[:] = [torch.cat(parts)]
        return parts[0] if parts else None

    def snapshot(self, layer, begin, end):
        """The same for another thread, while rows are added."""
        return torch.cat(list(self._rows[layer]))[begin:end]

    def complete(self):
        """The number of positions whose rows of all layers are here."""
        return min(sum(len(part) for part in list(parts)) for parts in self._rows)
