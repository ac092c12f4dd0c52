# Awaitable forms of the package's calls.
"""The same interface for asyncio. The calls block in threads of an executor (there is no event loop
underneath): each call that waits takes one thread, `workers` of them at most at a time."""
import asyncio
import concurrent.futures
import functools
from collections.abc import Callable, Coroutine, Iterable
from typing import Any, Concatenate, ParamSpec, TypeVar

from ._core import Client, Sequence, Shape, Step

_P = ParamSpec("_P")
_R = TypeVar("_R")
_Self = TypeVar("_Self", bound="_Awaitable")


def _free(admitted: concurrent.futures.Future[Sequence]) -> None:
    if not admitted.cancelled() and admitted.exception() is None:
        admitted.result().free()


class _Awaitable:
    """Calls of `inner` in the executor."""

    def __init__(self, inner: Any, executor: concurrent.futures.Executor) -> None:
        self._inner = inner
        self._executor = executor

    def _call(self, function: Callable[..., _R], *arguments: Any,
              **options: Any) -> asyncio.Future[_R]:
        return asyncio.get_running_loop().run_in_executor(
            self._executor, functools.partial(function, *arguments, **options))

    async def __aenter__(self: _Self) -> _Self:
        return self

    async def __aexit__(self, *raised: object) -> None:
        await self._call(self._inner.__exit__, *raised)


def _awaited(function: Callable[Concatenate[Any, _P], _R]) -> (
        Callable[Concatenate[Any, _P], Coroutine[Any, Any, _R]]):
    """The call `function` of the inner object, awaited."""
    @functools.wraps(function)
    async def call(self: Any, *arguments: Any, **options: Any) -> Any:
        return await self._call(function, self._inner, *arguments, **options)
    del call.__wrapped__  # inspect finds no signature there
    return call


class AsyncSequence(_Awaitable):
    """A Sequence whose calls are awaited. `sequence` is the blocking form of the same. The rows of
    a push(), and the `out` of a pull(), must not change meanwhile."""

    _inner: Sequence

    @property
    def sequence(self) -> Sequence:
        return self._inner

    @property
    def shape(self) -> Shape:
        return self._inner.shape

    @property
    def length(self) -> int:
        return self._inner.length

    @property
    def present_tokens(self) -> int:
        return self._inner.present_tokens

    async def fork(self, *arguments: Any, **options: Any) -> "AsyncSequence":
        """Sequence.fork(): an AsyncSequence, freed at the end of its `async with`."""
        return await _admitted(self._executor, self._inner.fork, *arguments, **options)

    push = _awaited(Sequence.push)
    pull = _awaited(Sequence.pull)
    wait_ready = _awaited(Sequence.wait_ready)
    extend = _awaited(Sequence.extend)
    truncate = _awaited(Sequence.truncate)
    refresh = _awaited(Sequence.refresh)
    free = _awaited(Sequence.free)


async def _admitted(executor: concurrent.futures.Executor, admit: Callable[..., Sequence],
                    *arguments: Any, **options: Any) -> AsyncSequence:
    """The new sequence that `admit` returns; it is freed where nobody waits for it any more."""
    admitted = executor.submit(admit, *arguments, **options)
    try:
        return AsyncSequence(await asyncio.wrap_future(admitted), executor)
    except asyncio.CancelledError:
        admitted.add_done_callback(_free)  # nobody else knows of it
        raise


class AsyncStep(_Awaitable):
    """A Step whose calls are awaited, but for accept(), which does not wait; one at a time."""

    _inner: Step

    @property
    def tokens(self) -> list[int]:
        return self._inner.tokens

    attend = _awaited(Step.attend)
    attend_projected = _awaited(Step.attend_projected)
    forward = _awaited(Step.forward)
    commit = _awaited(Step.commit)
    abort = _awaited(Step.abort)

    def accept(self, tokens: Iterable[int]) -> None:
        """Step.accept(); does not wait."""
        self._inner.accept(tokens)


class AsyncClient(_Awaitable):
    """Client for asyncio: the same arguments, or a Client or Pool that there is, which it does not
    close; and `workers`, the threads that its calls wait in.

    A call that is cancelled goes on in its thread until it ends or its deadline passes; what a
    cancelled admit() was given is freed.
    """

    def __init__(self, *arguments: Any, workers: int = 16, **options: Any) -> None:
        if arguments and isinstance(arguments[0], Client):
            (self.client,) = arguments
            if options:
                raise TypeError(f"{', '.join(options)}: the client is there already")
        else:
            self.client = Client(*arguments, **options)
        super().__init__(self.client,
                         concurrent.futures.ThreadPoolExecutor(workers, "tributary"))

    async def __aexit__(self, *raised: object) -> None:
        self.close()

    def close(self) -> None:
        """Starts no further calls; those that run go on to their end."""
        self._executor.shutdown(wait=False)

    async def admit(self, prompt_tokens: int, max_new_tokens: int, wait: float | None = None,
                    **options: Any) -> AsyncSequence:
        """Client.admit(): an AsyncSequence, freed at the end of its `async with`."""
        return await _admitted(self._executor, self.client.admit, prompt_tokens, max_new_tokens,
                               wait, **options)

    async def adopt(self, sequence: Sequence, **options: Any) -> AsyncSequence:
        """Client.adopt(), of a Sequence."""
        return AsyncSequence(await self._call(self.client.adopt, sequence, **options),
                             self._executor)

    def release(self, sequence: AsyncSequence) -> None:
        """Client.release(), of an AsyncSequence; does not wait."""
        self.client.release(sequence.sequence)

    def step(self, sequences: Iterable[AsyncSequence],
             tokens: int | list[int] = 1) -> AsyncStep:
        """Client.step(), of AsyncSequences; for `async with`."""
        return AsyncStep(self.client.step([s.sequence for s in sequences], tokens), self._executor)

    async def push(self, layer: int, parts: Iterable[tuple[AsyncSequence, int, Any]],
                   **options: Any) -> None:
        """Client.push(), of (AsyncSequence, begin, rows) each."""
        await self._call(self.client.push, layer, [(s.sequence, begin, rows)
                                                   for s, begin, rows in parts], **options)

    async def pull(self, parts: Iterable[tuple[AsyncSequence, int, int, int]],
                   **options: Any) -> list[Any]:
        """Client.pull(), of (AsyncSequence, layer, begin, end) each."""
        return await self._call(self.client.pull, [(s.sequence, *rest) for s, *rest in parts],
                                **options)

    async def wait_ready(self, sequences: Iterable[AsyncSequence], **options: Any) -> None:
        """Client.wait_ready(), of AsyncSequences."""
        await self._call(self.client.wait_ready, [s.sequence for s in sequences], **options)

    async def free(self, sequences: Iterable[AsyncSequence], **options: Any) -> None:
        """Client.free(), of AsyncSequences."""
        await self._call(self.client.free, [s.sequence for s in sequences], **options)
