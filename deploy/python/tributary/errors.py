# A class for every error code of the library; those that Python has a word for are that too.
"""What calls raise: Error, and below it one class for each code."""


from __future__ import annotations

import typing

__all__ = ["AlreadyExists", "CommunicatorPoisoned", "Corrupt", "DeadlineExceeded", "Error",
           "FailedPrecondition", "Internal", "InvalidArgument", "Io", "MalformedInput", "NotFound",
           "PermissionDenied", "PoolFull", "PoolLost", "StaleEpoch", "TooLarge", "Unavailable",
           "Unsupported", "WorkerFailed", "WorkerLost"]


class Error(Exception):
    """A call failed. `code` names why, as in logs and JSON: `pool_full`, `deadline_exceeded`.

    A call on many items raises the first one's when all have ended. `failed`: index -> the error of
    each item that failed; of a step's layer, `results` is what the call would have returned, where
    the rows of other items are valid."""

    code = "error"
    failed: dict[int, Error]
    results: typing.Any

    def __init__(self, *arguments: object) -> None:
        super().__init__(*arguments)
        self.failed = {}
        self.results = None


class InvalidArgument(Error, ValueError):
    """A value, a shape or an index outside its bound."""


class MalformedInput(Error, ValueError):
    """A file or a message that does not follow its format."""


class Unsupported(Error):
    """Well-formed, but nothing here implements it."""


class NotFound(Error, LookupError):
    """It names something that does not exist: the sequence has ended."""


class Io(Error):
    """The operating system refused."""


class PoolFull(Error):
    """No room now. `retry_after`: seconds until it is worth to ask again, the tier's estimate."""

    def __init__(self, message: str, retry_after: float = 0.0) -> None:
        super().__init__(message)
        self.retry_after = retry_after

    def __reduce__(self):
        return type(self), (*self.args, self.retry_after), self.__dict__


class TooLarge(Error):
    """It can never fit."""


class FailedPrecondition(Error):
    """The right call at the wrong time."""


class StaleEpoch(Error):
    """The sequence has moved on."""


class DeadlineExceeded(Error, TimeoutError):
    """A wait ended without its event."""


class CommunicatorPoisoned(Error):
    """An earlier failure ended the pool's communicator."""


class WorkerFailed(Error):
    """Some worker failed inside a round."""


class PoolLost(Error):
    """The pool that held the sequence is gone, and the sequence with it."""


class WorkerLost(Error):
    """A worker is gone that held rows of the sequence, or was its home; its pool goes on.
    `refresh()` the sequence, push the rows that it has `lost`, `wait_ready()`; or free it."""


class Unavailable(Error):
    """Nobody can do it at the moment; try again."""


class PermissionDenied(Error):
    """No token, or a wrong one."""


class AlreadyExists(Error):
    """A thing of this name, id or place exists."""


class Corrupt(Error):
    """Bytes do not have their checksum."""


class Internal(Error):
    """A bug of ours."""


_classes: dict[str, type[Error]] = {}
for _class in Error.__subclasses__():
    _class.code = "".join(f"_{c.lower()}" if c.isupper() else c for c in _class.__name__)[1:]
    _classes[_class.code] = _class


def exception_of(code: str, message: str, retry_after: float) -> Error:
    """What the library raises for an error of its own."""
    kind = _classes.get(code, Error)
    return PoolFull(message, retry_after) if kind is PoolFull else kind(message)
