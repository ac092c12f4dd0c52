# Awaitable forms of the package's calls.
"""The same interface for asyncio. The calls block in threads of an executor (there is no event loop
underneath): each call that waits takes one thread, `workers` of them at most at a time."""
import asyncio
import concurrent.futures
import functools

from ._core import Client


def _free(admitted):
    if not admitted.cancelled() and admitted.exception() is None:
        admitted.result().free()


class _Awaitable:
    """Calls of `inner` in the executor."""

    def __init__(self, inner, executor):
        self._inner = inner
        self._executor = executor

    def _call(self, function, *arguments, **options):
        return asyncio.get_running_loop().run_in_executor(
            self._executor, functools.partial(function, *arguments, **options))

    async def __aenter__(self):
        return self

    async def __aexit__(self, *raised):
        await self._call(self._inner.__exit__, *raised)


class AsyncSequence(_Awaitable):
    """A Sequence whose calls are awaited. `sequence` is the blocking form of the same."""

    @property
    def sequence(self):
        return self._inner

    @property
    def shape(self):
        return self._inner.shape

    @property
    def length(self):
        return self._inner.length

    async def push(self, layer, begin, rows, **options):
        """Sequence.push(); `rows` must not change meanwhile."""
        await self._call(self._inner.push, layer, begin, rows, **options)

    async def wait_ready(self, **options):
        """Sequence.wait_ready()."""
        await self._call(self._inner.wait_ready, **options)

    async def extend(self, max_new_tokens, **options):
        """Sequence.extend()."""
        await self._call(self._inner.extend, max_new_tokens, **options)

    async def truncate(self, length, **options):
        """Sequence.truncate()."""
        await self._call(self._inner.truncate, length, **options)

    async def refresh(self, **options):
        """Sequence.refresh()."""
        await self._call(self._inner.refresh, **options)

    async def free(self, **options):
        """Sequence.free()."""
        await self._call(self._inner.free, **options)


class AsyncStep(_Awaitable):
    """A Step whose calls are awaited; one at a time."""

    @property
    def tokens(self):
        return self._inner.tokens

    async def attend(self, layer, query, row, out=None, **options):
        """Step.attend(): (o, lse)."""
        return await self._call(self._inner.attend, layer, query, row, out, **options)

    async def attend_projected(self, layer, query, row, out=None, **options):
        """Step.attend_projected(): the heads' values."""
        return await self._call(self._inner.attend_projected, layer, query, row, out, **options)

    async def forward(self, layer, hidden, out=None, **options):
        """Step.forward(): hidden states."""
        return await self._call(self._inner.forward, layer, hidden, out, **options)

    def accept(self, tokens):
        """Step.accept(); does not wait."""
        self._inner.accept(tokens)

    async def commit(self, **options):
        """Step.commit()."""
        await self._call(self._inner.commit, **options)

    async def abort(self, **options):
        """Step.abort()."""
        await self._call(self._inner.abort, **options)


class AsyncClient(_Awaitable):
    """Client for asyncio: the same arguments, or a Client or Pool that there is, which it does not
    close; and `workers`, the threads that its calls wait in.

    A call that is cancelled goes on in its thread until it ends or its deadline passes; what a
    cancelled admit() was given is freed.
    """

    def __init__(self, *arguments, workers=16, **options):
        if arguments and isinstance(arguments[0], Client):
            (self.client,) = arguments
            if options:
                raise TypeError(f"{', '.join(options)}: the client is there already")
        else:
            self.client = Client(*arguments, **options)
        super().__init__(self.client,
                         concurrent.futures.ThreadPoolExecutor(workers, "tributary"))

    async def __aexit__(self, *raised):
        self.close()

    def close(self):
        """Starts no further calls; those that run go on to their end."""
        self._executor.shutdown(wait=False)

    async def admit(self, prompt_tokens, max_new_tokens, wait=None, **options):
        """Client.admit(): an AsyncSequence, freed at the end of its `async with`."""
        admitted = self._executor.submit(self.client.admit, prompt_tokens, max_new_tokens, wait,
                                         **options)
        try:
            return AsyncSequence(await asyncio.wrap_future(admitted), self._executor)
        except asyncio.CancelledError:
            admitted.add_done_callback(_free)  # nobody else knows of it
            raise

    def adopt(self, sequence):
        """Client.adopt(), of a Sequence; does not wait."""
        return AsyncSequence(self.client.adopt(sequence), self._executor)

    def release(self, sequence):
        """Client.release(), of an AsyncSequence; does not wait."""
        self.client.release(sequence.sequence)

    def step(self, sequences, tokens=1):
        """Client.step(), of AsyncSequences; for `async with`."""
        return AsyncStep(self.client.step([s.sequence for s in sequences], tokens), self._executor)

    async def push(self, layer, parts, **options):
        """Client.push(), of (AsyncSequence, begin, rows) each."""
        await self._call(self.client.push, layer, [(s.sequence, begin, rows)
                                                   for s, begin, rows in parts], **options)

    async def wait_ready(self, sequences, **options):
        """Client.wait_ready(), of AsyncSequences."""
        await self._call(self.client.wait_ready, [s.sequence for s in sequences], **options)

    async def free(self, sequences, **options):
        """Client.free(), of AsyncSequences."""
        await self._call(self.client.free, [s.sequence for s in sequences], **options)
