# The scheduler's calls of the tier, all from one thread: the scheduler never waits for them.
import array
import atexit
import dataclasses
import hashlib
import threading
import time

import tributary

from .options import log

RETRY_S = 0.1
READY_S = 0.05  # for the last rows of a prompt that another engine has computed
_NO_NAMES = tributary.Prefix(64, [])


def hash_of(tokens):
    """Of a prompt: 64 hexadecimal digits."""
    return hashlib.sha256(array.array("q", tokens).tobytes()).hexdigest()


@dataclasses.dataclass(frozen=True)
class HandOff:
    """What a request brings from the engine that has pushed its prompt, if its user says so."""

    sequence: str       # as JSON
    prompt: str | None  # the hash of the tokens that were pushed
    tokens: list        # the request's own


@dataclasses.dataclass
class Wanted:
    prompt_tokens: int
    new_tokens: int
    prefix: tributary.Prefix | None
    handed_over: HandOff | None
    asked: float = dataclasses.field(default_factory=time.monotonic)


class Admissions:
    def __init__(self, client, options):
        self._client = client
        self._options = options
        self._changed = threading.Condition()  # guards what follows
        self._wanted = {}   # request -> Wanted, the oldest first
        self._decided = {}  # request -> (its sequence, or None where the tier can never hold it;
                            # whether it was claimed)
        self._freed = []    # (sequence, the Prefix of all its blocks or None)
        self._ended = False
        self._shares = True  # whether the pool takes names
        self._thread = threading.Thread(target=self._run, name="tributary-admissions", daemon=True)
        self._thread.start()
        atexit.register(self.close)

    def ask(self, request, prompt_tokens, new_tokens, prefix=None, handed_over=None):
        """Whether it is decided already; take() then says how. `prefix`: a Prefix of the prompt;
        `handed_over`: a HandOff."""
        with self._changed:
            if request in self._decided:
                return True
            if request not in self._wanted:
                self._wanted[request] = Wanted(prompt_tokens, new_tokens, prefix, handed_over)
                self._changed.notify_all()
            return False

    def take(self, request):
        with self._changed:
            return self._decided.pop(request)

    def give_up(self, request):
        """What it was admitted with, or is going to be, is freed."""
        with self._changed:
            self._wanted.pop(request, None)
            sequence, _ = self._decided.pop(request, (None, False))
        if sequence is not None:
            self.free(sequence)

    def free(self, sequence, prefix=None):
        """prefix: names what it leaves behind."""
        with self._changed:
            self._freed.append((sequence, prefix))
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
            self._freed += [(s, None) for s, _ in self._decided.values() if s is not None]
            self._decided.clear()
            self._changed.notify_all()
        self._thread.join(5.0)
        atexit.unregister(self.close)

    def _run(self):
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._wanted or self._freed or self._ended)
                freed, self._freed = self._freed, []
                request, wanted = next(iter(self._wanted.items()), (None, None))
                if self._ended and not freed:
                    return
            if freed:
                self._free_now(freed)
            if request is not None:
                (self._admit if wanted.handed_over is None else self._claim)(request, wanted)

    def _free_now(self, freed):
        sequences = [sequence for sequence, _ in freed]
        try:
            self._client.free(sequences, timeout=5.0,
                              prefixes=[prefix or _NO_NAMES for _, prefix in freed])
        except (tributary.InvalidArgument, tributary.FailedPrecondition) as error:
            log.debug("what a sequence leaves behind has no name: %s", error)  # it has ended
        except tributary.Error as error:
            log.warning("%d sequences end with their leases: %s", len(sequences), error)

    def _admit(self, request, wanted):
        pause, sequence = None, None
        if not self._shares:
            wanted.prefix = None
        try:
            sequence = self._client.admit(
                wanted.prompt_tokens, wanted.new_tokens, spread=self._options.spread,
                prefix=wanted.prefix, timeout=min(2.0, self._options.timeout))
        except tributary.TooLarge as error:
            log.warning("request %s stays in the engine: %s", request, error)
        except tributary.PoolFull as error:
            pause = min(error.retry_after, RETRY_S)
        except tributary.Error as error:
            if wanted.prefix is not None and isinstance(error, tributary.InvalidArgument):
                log.warning("no prefixes are shared: %s", error)  # the pool's leaves are smaller
                self._shares, pause = False, 0
            else:
                log.warning("request %s waits for the tier: %s", request, error)
                pause = RETRY_S
        if pause is None:
            self._decide(request, sequence, claimed=False)
            return
        with self._changed:
            # Room that this process gives back is worth another try at once.
            self._changed.wait_for(lambda: self._freed or self._ended, pause)

    def _claim(self, request, wanted):
        """Makes the sequence that another engine has handed over this one's alone. Where that
        cannot be, the request is admitted as any other."""
        sequence, given = None, wanted.handed_over
        try:
            handle = tributary.Sequence.from_json(given.sequence)
            if (handle.prompt_tokens != wanted.prompt_tokens
                    or given.prompt != hash_of(given.tokens[:wanted.prompt_tokens])):
                raise tributary.InvalidArgument(f"{handle} holds another prompt")
            sequence = self._client.adopt(handle, timeout=min(2.0, self._options.timeout))
            sequence.wait_ready(timeout=READY_S)
            # A new epoch: nobody else who has the handle can step or claim any more.
            sequence.truncate(wanted.prompt_tokens, timeout=min(2.0, self._options.timeout))
        except Exception as error:  # whatever a user has sent, this thread goes on
            if sequence is not None:
                self._client.release(sequence)
            self._claim_failed(request, wanted, error)
            return
        log.info("request %s has claimed %s", request, sequence)
        self._decide(request, sequence, claimed=True)

    def _claim_failed(self, request, wanted, error):
        patience = time.monotonic() < wanted.asked + self._options.timeout
        if isinstance(error, tributary.DeadlineExceeded) and patience:
            with self._changed:  # its last rows are on their way: others go first
                if self._wanted.pop(request, None) is not None:
                    self._wanted[request] = wanted
            return
        log.warning("request %s computes its prompt itself: %s", request, error)
        wanted.handed_over = None

    def _decide(self, request, sequence, claimed):
        with self._changed:
            if self._wanted.pop(request, None) is not None:
                self._decided[request] = sequence, claimed
                self._changed.notify_all()
            elif sequence is not None:  # nobody waits for it any more
                self._freed.append((sequence, None))
