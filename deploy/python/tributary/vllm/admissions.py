# The scheduler's calls of the tier, all from one thread: the scheduler never waits for them.
import atexit
import threading

import tributary

from .options import log

RETRY_S = 0.1


class Admissions:
    def __init__(self, client, options):
        self._client = client
        self._options = options
        self._changed = threading.Condition()  # guards what follows
        self._wanted = {}   # request -> (prompt tokens, new ones), the oldest first
        self._decided = {}  # request -> its sequence, or None where the tier can never hold it
        self._freed = []
        self._ended = False
        self._thread = threading.Thread(target=self._run, name="tributary-admissions", daemon=True)
        self._thread.start()
        atexit.register(self.close)

    def ask(self, request, prompt_tokens, new_tokens):
        """Whether it is decided already; take() then says how."""
        with self._changed:
            if request in self._decided:
                return True
            if request not in self._wanted:
                self._wanted[request] = prompt_tokens, new_tokens
                self._changed.notify_all()
            return False

    def take(self, request):
        with self._changed:
            return self._decided.pop(request)

    def give_up(self, request):
        """What it was admitted with, or is going to be, is freed."""
        with self._changed:
            self._wanted.pop(request, None)
            sequence = self._decided.pop(request, None)
        if sequence is not None:
            self.free([sequence])

    def free(self, sequences):
        with self._changed:
            self._freed += sequences
            self._changed.notify_all()

    def wait_briefly(self):
        """For a scheduler that has nothing else to do than to ask again."""
        with self._changed:
            if self._wanted and not self._decided:
                self._changed.wait(0.002)

    def close(self):
        """Frees what is to be freed, within seconds."""
        with self._changed:
            self._ended = True
            self._wanted.clear()
            self._freed += [s for s in self._decided.values() if s is not None]
            self._decided.clear()
            self._changed.notify_all()
        self._thread.join(5.0)
        atexit.unregister(self.close)

    def _run(self):
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._wanted or self._freed or self._ended)
                freed, self._freed = self._freed, []
                request, tokens = next(iter(self._wanted.items()), (None, None))
                if self._ended and not freed:
                    return
            if freed:
                self._free_now(freed)
            if request is not None:
                self._admit(request, *tokens)

    def _free_now(self, sequences):
        try:
            self._client.free(sequences, timeout=5.0)
        except tributary.Error as error:
            log.warning("%d sequences end with their leases: %s", len(sequences), error)

    def _admit(self, request, prompt_tokens, new_tokens):
        pause, sequence = None, None
        try:
            sequence = self._client.admit(prompt_tokens, new_tokens, spread=self._options.spread,
                                          timeout=min(2.0, self._options.timeout))
        except tributary.TooLarge as error:
            log.warning("request %s stays in the engine: %s", request, error)
        except tributary.PoolFull as error:
            pause = min(error.retry_after, RETRY_S)
        except tributary.Error as error:
            log.warning("request %s waits for the tier: %s", request, error)
            pause = RETRY_S
        with self._changed:
            if pause is not None:
                # Room that this process gives back is worth another try at once.
                self._changed.wait_for(lambda: self._freed or self._ended, pause)
            elif request in self._wanted:
                del self._wanted[request]
                self._decided[request] = sequence
                self._changed.notify_all()
            elif sequence is not None:
                self._freed.append(sequence)
